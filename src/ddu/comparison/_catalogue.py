"""The detectors that can be entered in a comparison, by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from ddu.comparison._names import check_name
from ddu.density import GaussianDensity
from ddu.detectors import DDU, BaseDetector, Energy, Ensemble, Mahalanobis, Softmax
from ddu.features import FeatureSource


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
    def options(self) -> list[str]:
        """The names of its options."""
        _, *names = inspect.signature(self.make).parameters  # the first is the network
        settled = getattr(self.make, "keywords", {})
        return [name for name in names if name != "class_names" and name not in settled]


def _ddu(
    model: nn.Module,
    *,
    features: FeatureSource = None,
    density: Mapping[str, Any] | None = None,
    class_names: Sequence[str] | None = None,
) -> DDU:
    """DDU, with its density described by options."""
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
}


def find_kind(name: str) -> Kind:
    """The kind of detector of that name."""
    check_name(name, KINDS, "There is no detector {name!r}")
    return KINDS[name]
