"""The registry of methods: a name, the detector behind it, and the network that it wants.

Training, comparisons, active learning, `ddu.load` and the lists of names in `--help` and the docs all read it. Another
package adds a method by an entry point, which has the `Method`:

    [project.entry-points."ddu.methods"]
    my_method = "my_package:METHOD"
"""

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

from torch import nn

from ddu.detectors.base import BaseDetector
from ddu.detectors.ddu import DDU, PAPER
from ddu.detectors.duq import DUQ
from ddu.detectors.energy import Energy
from ddu.detectors.ensemble import Ensemble
from ddu.detectors.mahalanobis import Mahalanobis
from ddu.detectors.pytorch_ood import from_pytorch_ood, list_pytorch_ood
from ddu.detectors.sngp import SNGP
from ddu.detectors.softmax import Softmax
from ddu.errors import DDUWarning, InputError, MissingExtraError
from ddu.messages import check_name

_PLUGINS = "ddu.methods"


@dataclass(frozen=True)
class NetworkKind:
    """A kind of network that methods share: methods that want the same kind are measured on the same networks.

    Attributes:
        name: What a comparison calls it.
        options: For `ddu.create_model`.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


# The head is named even where it is linear, so that it wins over that of a recipe
SMOOTH = NetworkKind("ddu", {"head": "linear"})
PLAIN = NetworkKind("softmax", {"head": "linear", "spectral_norm": None, "sensitive": False})
RBF = NetworkKind("duq", {**PLAIN.options, "head": "duq"})
GAUSSIAN_PROCESS = NetworkKind("sngp", {"head": "sngp", "sensitive": False})


@dataclass(frozen=True)
class Method:
    """A way to tell what a network does not know.

    Attributes:
        name: What the command line, files of rows and tables call it.
        detector: The class of its detector, or a function of a network (of a list of networks if it takes several
            `members`) and options that makes one. `ddu.load` finds classes only.
        summary: Its score in a few words.
        options: Options of the detector that make it this method.
        network: The kind of network that it wants.
        members: How many networks it takes, trained alike from different seeds.
    """

    name: str
    detector: Callable[..., BaseDetector]
    summary: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    network: NetworkKind = PLAIN
    members: int = 1

    def make(self, model: nn.Module | Sequence[nn.Module], **options: Any) -> BaseDetector:
        """The detector around a network, or around several members; not fitted yet."""
        return self.detector(model, **{**self.options, **options})

    @property
    def free_options(self) -> list[str] | None:
        """The names of the options that can be set; None for a detector that checks them itself."""
        _, *parameters = inspect.signature(self.detector).parameters.values()  # the first is the network
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return None
        return [one.name for one in parameters if one.name not in ("class_names", *self.options)]


_MI, _PE, _EE = "mutual_information", "predictive_entropy", "expected_entropy"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("ddu", DDU, "densities of all stages, and the energy", network=SMOOTH),
        Method("ddu_paper", DDU, "minus the log-density of the features", PAPER, network=SMOOTH),
        # Active learning begins with two labels per class, where the paper's covariances are singular
        Method("density", DDU, "that, with the covariances shrunk", {**PAPER, "density": None}, network=SMOOTH),
        Method("softmax", Softmax, "entropy of the softmax", {"score": "entropy"}),
        Method("confidence", Softmax, "one minus the largest probability", {"score": "confidence"}),
        Method("energy", Energy, "minus the log-sum-exp of the logits"),
        Method("mahalanobis", Mahalanobis, "distance to the nearest class mean", {"relative": False}),
        Method("relative_mahalanobis", Mahalanobis, "that, minus the distance to the overall mean", {"relative": True}),
        Method("ensemble_mi", Ensemble, "mutual information of the members", {"score": _MI}, members=5),
        Method("ensemble_pe", Ensemble, "entropy of the members' mean", {"score": _PE}, members=5),
        Method("ensemble_ee", Ensemble, "mean entropy of the members", {"score": _EE}, members=5),
        Method("duq", DUQ, "minus the largest log-kernel to a class centroid", network=RBF),
        Method("sngp", SNGP, "entropy of the mean softmax of samples", {"method": "monte_carlo"}, GAUSSIAN_PROCESS),
        Method("sngp_mean_field", SNGP, "entropy of a mean-field softmax", {"method": "mean_field"}, GAUSSIAN_PROCESS),
    )
}
"""Every registered method by its name; `list_methods` also looks for those of other packages."""


def register(method: Method) -> Method:
    """Adds a method, which every command then knows by its name."""
    if METHODS.get(method.name, method) != method:
        raise InputError(f"There is a method {method.name!r} already: register yours under another name.")
    known = _classes(METHODS.values())
    for name, one in _classes([method]).items():
        if known.get(name, one) is not one:
            raise InputError(f"There is a detector class with the name {name!r} already: give {one.__name__} its own.")
    METHODS[method.name] = method
    return method


def list_methods() -> list[str]:
    """The names of all methods but those of pytorch-ood, which `list_pytorch_ood` has."""
    _find_plugins()
    return list(METHODS)


def find_method(name: str) -> Method:
    """A method by name: a registered one, or a detector of pytorch-ood in small letters."""
    if name in list_methods():
        return METHODS[name]
    try:
        theirs = [one.lower() for one in list_pytorch_ood()]
    except MissingExtraError:
        if not get_close_matches(name, METHODS):
            raise  # it may well be one of theirs
        theirs = []
    check_name(name, [*METHODS, *theirs], "There is no method {name!r}")
    return Method(name, partial(from_pytorch_ood, name), "of the package pytorch-ood")


def find_network_kind(name: str) -> NetworkKind:
    """A kind of network by name."""
    kinds = network_kinds()
    check_name(name, kinds, "There is no kind of network {name!r}")
    return kinds[name]


def network_kinds() -> dict[str, NetworkKind]:
    """The kinds of networks that registered methods want, by name."""
    return {METHODS[name].network.name: METHODS[name].network for name in list_methods()}


def method_for_head(head: str) -> Method:
    """The first registered method whose network has this head."""
    for name in list_methods():
        if METHODS[name].network.options.get("head", "linear") == head:
            return METHODS[name]
    raise InputError(f"No registered method wants a network with the head {head!r}.")


def detector_classes() -> dict[str, type[BaseDetector]]:
    """The detector classes by the names that saved files have."""
    return _classes([METHODS[name] for name in list_methods()])


def _classes(methods: Iterable[Method]) -> dict[str, type[BaseDetector]]:
    detectors = [method.detector for method in methods]
    return {one.name: one for one in detectors if isinstance(one, type) and issubclass(one, BaseDetector)}


@cache
def _find_plugins() -> None:
    """Registers the methods of other packages; one that cannot be imported is a warning, not the end."""
    for entry in entry_points(group=_PLUGINS):
        try:
            register(_checked(entry.load()))
        except Exception as error:
            warnings.warn(f"The plug-in {entry.value} ({_PLUGINS}) does not work: {error}", DDUWarning, stacklevel=4)


def _checked(found: object) -> Method:
    if not isinstance(found, Method):
        raise InputError(f"it is a {type(found).__name__}, and must be a ddu.detectors.Method.")
    return found
