"""The detectors that can be entered in a comparison, by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

from torch import nn

from ddu.density import GaussianDensity
from ddu.detectors import (
    DDU,
    DUQ,
    SNGP,
    BaseDetector,
    Energy,
    Ensemble,
    Mahalanobis,
    Softmax,
    from_pytorch_ood,
    list_pytorch_ood,
)
from ddu.errors import InputError, MissingExtraError
from ddu.features import FeatureSource
from ddu.messages import check_name


@dataclass(frozen=True)
class Kind:
    """A kind of detector.

    Attributes:
        make: Makes one of a network, or of a list of them, and options.
        method: What trains the network that it is entered with unless told otherwise: one of `ddu.runs.METHODS`.
        members: How many networks it takes unless told otherwise.
    """

    make: Callable[..., BaseDetector]
    method: str = "softmax"
    members: int = 1

    @property
    def options(self) -> list[str] | None:
        """The names of its options; None for a detector that accepts or refuses them itself."""
        _, *parameters = inspect.signature(self.make).parameters.values()  # the first is the network
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return None
        settled = {"class_names", *getattr(self.make, "keywords", {})}
        return [parameter.name for parameter in parameters if parameter.name not in settled]


def _ddu(
    model: nn.Module,
    *,
    features: FeatureSource = None,
    density: Mapping[str, Any] | None = None,
    class_names: Sequence[str] | None = None,
) -> DDU:
    """DDU, with its density described by options."""
    if not isinstance(density, Mapping | None):
        raise InputError(
            f"The density of ddu must be a mapping such as {{covariance: shared}}. Got {density!r} instead."
        )
    for option in density or {}:
        check_name(option, inspect.signature(GaussianDensity).parameters, "A density has no option {name!r}")
    return DDU(model, features=features, density=GaussianDensity(**density or {}), class_names=class_names)


# The names that rows, tables and the paper's figures know them by
KINDS: dict[str, Kind] = {
    "ddu": Kind(_ddu, "ddu"),
    "softmax": Kind(partial(Softmax, score="entropy")),
    "confidence": Kind(partial(Softmax, score="confidence")),
    "energy": Kind(Energy),
    "mahalanobis": Kind(partial(Mahalanobis, relative=False)),
    "relative_mahalanobis": Kind(partial(Mahalanobis, relative=True)),
    "ensemble_mi": Kind(partial(Ensemble, score="mutual_information"), members=5),
    "ensemble_pe": Kind(partial(Ensemble, score="predictive_entropy"), members=5),
    "ensemble_ee": Kind(partial(Ensemble, score="expected_entropy"), members=5),
    "duq": Kind(DUQ, "duq"),
    "sngp": Kind(partial(SNGP, method="monte_carlo"), "sngp"),
    "sngp_mean_field": Kind(partial(SNGP, method="mean_field"), "sngp"),
}


def find_kind(name: str) -> Kind:
    """The kind of detector of that name: one of `KINDS`, or of pytorch-ood in small letters."""
    if name in KINDS:
        return KINDS[name]
    try:
        theirs = [one.lower() for one in list_pytorch_ood()]
    except MissingExtraError:
        if not get_close_matches(name, KINDS):
            raise  # it may well be one of theirs
        theirs = []
    check_name(name, [*KINDS, *theirs], "There is no detector {name!r}")
    return Kind(partial(from_pytorch_ood, name))
