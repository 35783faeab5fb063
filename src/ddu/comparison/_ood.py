"""The out-of-distribution sets of a comparison: their names, and what they hold."""

import os
from collections.abc import Iterable

from ddu import data
from ddu.data import ArrayDataset
from ddu.errors import InputError


def load_ood(names: Iterable[str], known: str, root: str | os.PathLike[str] | None) -> dict[str, ArrayDataset]:
    """OoD sets by name, with the size and the normalisation of the known one."""
    info, found = data.info(known, root=root), dict[str, ArrayDataset]()
    for name in names:
        if name == known:
            raise InputError(f"{known} is the training data, and cannot be out of distribution as well.")
        found[name] = data.load_ood(name, info, root=root)
        if not len(found[name]):
            raise InputError(f"The set {name} is empty: there is nothing in it to be out of distribution.")
    return found


def split_severity(ood: str | None) -> tuple[str | None, int | None]:
    """The name of an OoD set and, of a corruption of CIFAR-10, its severity.

    >>> split_severity("cifar10_c:fog:3"), split_severity("svhn")
    (('cifar10_c:fog', 3), ('svhn', None))
    """
    if ood is None or not ood.startswith("cifar10_c:"):
        return ood, None
    name, _, severity = ood.rpartition(":")
    return name, int(severity)
