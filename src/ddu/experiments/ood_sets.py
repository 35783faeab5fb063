"""The out-of-distribution sets of a comparison: their names, and what they hold."""

import os
from collections.abc import Iterable
from pathlib import Path

from ddu import data
from ddu.data import ArrayDataset
from ddu.data.corruptions import CORRUPTIONS, SEVERITIES
from ddu.errors import InputError

_CORRUPTED = "cifar10_c"
_RESERVED = ("train", "validation", "test")


def expand(names: Iterable[str]) -> tuple[str, ...]:
    """Names of OoD sets, each once; a corruption stands for its severities, and cifar10_c for all corruptions.

    >>> expand(["svhn", "cifar10_c:fog"])[:3]
    ('svhn', 'cifar10_c:fog:1', 'cifar10_c:fog:2')
    """
    families = {
        f"{_CORRUPTED}:{one}": [f"{_CORRUPTED}:{one}:{severity}" for severity in SEVERITIES] for one in CORRUPTIONS
    }
    families[_CORRUPTED] = [name for family in families.values() for name in family]
    return tuple(dict.fromkeys(member for name in names for member in families.get(name, [name])))


def load_ood(
    names: Iterable[str], known: str, root: str | os.PathLike[str] | None, *, skip_bad: bool = False
) -> dict[str, ArrayDataset]:
    """OoD sets by name, with the size and the normalisation of the known one."""
    info, found = data.info(known, root=root), dict[str, ArrayDataset]()
    for name in names:
        if name == known:
            raise InputError(f"{known} is the training data, and cannot be out of distribution as well.")
        if name in _RESERVED:
            raise InputError(f"An OoD set cannot be called {name}, which is a part of the training data: rename it.")
        found[name] = data.load_ood(name, info, root=root, skip_bad=skip_bad)
        if not len(found[name]):
            raise InputError(f"The set {name} is empty: there is nothing in it to be out of distribution.")
    return found


def split_severity(ood: str | None) -> tuple[str | None, int | None]:
    """The name of an OoD set and, of a corruption of CIFAR-10, its severity.

    >>> split_severity("cifar10_c:fog:3"), split_severity("svhn")
    (('cifar10_c:fog', 3), ('svhn', None))
    """
    if ood is None or not ood.startswith(f"{_CORRUPTED}:"):
        return ood, None
    name, _, severity = ood.rpartition(":")
    return name, int(severity)


def set_name(name: str) -> str:
    """The name of a set for titles and files; of one that is a path, the name of its file or folder.

    >>> set_name("npz:/data/my images.npz"), set_name("svhn")
    ('my images', 'svhn')
    """
    return Path(name).stem if os.sep in name else name
