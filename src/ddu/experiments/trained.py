"""The sets of an experiment, and what trained networks make of them: extracted in one pass, shared by all detectors."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from torch import nn

from ddu import data
from ddu.data import ArrayDataset
from ddu.data.corruptions import CORRUPTIONS, SEVERITIES
from ddu.data.registry import Root
from ddu.detectors import BaseDetector, join_members
from ddu.errors import InputError
from ddu.features import FeatureBatch, FeatureTap, ModelTap, SharedBatch, SharedTap, extract

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


def load_ood(names: Iterable[str], known: str, root: Root, *, skip_bad: bool = False) -> dict[str, ArrayDataset]:
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


def shown_rows(dataset: ArrayDataset, count: int | None) -> np.ndarray:
    """Rows of at most so many samples, drawn at random in whole groups, always the same; None is all."""
    everything = np.arange(len(dataset))
    return everything if count is None or count >= len(dataset) else data.draw(dataset, count, seed=0)


def limited(dataset: ArrayDataset, count: int | None) -> ArrayDataset:
    """At most so many samples: those of `shown_rows`."""
    return dataset if count is None or count >= len(dataset) else dataset.subset(shown_rows(dataset, count))


def split_severity(ood: str | None) -> tuple[str | None, int | None]:
    """The name of an OoD set and, of a corruption of CIFAR-10, its severity.

    >>> split_severity("cifar10_c:fog:3"), split_severity("svhn")
    (('cifar10_c:fog', 3), ('svhn', None))
    """
    if ood is None or not ood.startswith(f"{_CORRUPTED}:"):
        return ood, None
    name, _, severity = ood.rpartition(":")
    return name, int(severity)


Sets = Mapping[str, ArrayDataset]
"""Sets by name: train, validation and test, and every OoD set under its own name."""


class Trained(Protocol):
    """What has been trained: a `ddu.runs.Run`, or a new head on a pretrained backbone."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Among them the `seconds` that it took."""
        ...

    def load_model(self) -> nn.Module:
        """The network, in evaluation mode."""
        ...


class TrainedNetwork:
    """A trained network, and what it makes of each set.

    A set runs through the network once for all detectors: every layer that one of them asks for is extracted in the
    same pass. Features are kept until `forget`, logits and labels for good.

    Attributes:
        sets: The sets that it is shown.
        training_seconds: How long its training took.
    """

    def __init__(self, run: Trained, sets: Sets):
        self.sets = sets
        self.training_seconds = run.metrics["seconds"]
        self._run = run
        self._taps: list[ModelTap] = []
        self._shared: SharedTap | None = None
        self._features: dict[str, list[SharedBatch]] = {}
        self._logits: dict[str, list[FeatureBatch]] = {}
        self._seconds: dict[str, float] = defaultdict(float)

    @cached_property
    def model(self) -> nn.Module:
        """The network, in evaluation mode."""
        return self._run.load_model()

    def expect(self, detector: BaseDetector) -> None:
        """Notes the layers that a detector will ask for."""
        tap = _shareable(detector)
        if tap is not None and tap.sources and not (self._shared and self._shared.serves(tap)):
            shared = SharedTap(self.model, [*self._taps, tap])
            shared(self.sets["test"].__getitems__([0])[0])  # finds the layers, or fails for this detector alone
            self._taps, self._shared = [*self._taps, tap], shared
            self._features.clear()

    def batches(self, name: str, detector: BaseDetector) -> Iterable[Any]:
        """A set as a detector wants it: features, logits and labels, or a loader if it has to see the inputs."""
        tap = _shareable(detector)
        if tap is None:
            return data.loader(self.sets[name])
        if not tap.sources:
            return self.logits(name)
        self.expect(detector)
        if name not in self._features:
            self._extract(name)
        assert self._shared is not None
        return [self._shared.batch_for(tap, batch) for batch in self._features[name]]

    def logits(self, name: str) -> list[FeatureBatch]:
        """The logits and labels of a set; the logits stand for the features."""
        if name not in self._logits:
            self._extract(name)
        return self._logits[name]

    def extraction_seconds(self, name: str, detector: BaseDetector | None = None) -> float:
        """How long the pass over a set took; none for a detector that has to see the inputs."""
        return 0.0 if detector is not None and _shareable(detector) is None else self._seconds[name]

    def forget(self, name: str) -> None:
        """Lets go of the features of a set that no detector asks for any more."""
        self._features.pop(name, None)

    def _extract(self, name: str) -> None:
        started = time.perf_counter()
        batches = list(extract(self._shared or SharedTap(self.model, []), data.loader(self.sets[name])))
        self._seconds[name] += time.perf_counter() - started
        self._features[name] = batches
        self._logits[name] = [FeatureBatch(batch.logits, batch.logits, batch.labels) for batch in batches]


def _shareable(detector: BaseDetector) -> ModelTap | None:
    """The tap of a detector that can do with extracted features; None if it has to see the inputs."""
    tap = detector.tap
    if detector.needs_inputs or not isinstance(tap, ModelTap):
        return None
    return None if isinstance(tap, FeatureTap) and tap.is_located and tap.found.kind == "callable" else tap


class Members:
    """Several trained networks, as an ensemble sees them: a batch has the logits of all.

    Attributes:
        sets: The sets that they are shown.
        training_seconds: How long their training took, one after the other.
    """

    def __init__(self, networks: Sequence[TrainedNetwork]):
        self.sets = networks[0].sets
        self.training_seconds = sum(network.training_seconds for network in networks)
        self._networks = networks

    @property
    def model(self) -> list[nn.Module]:
        """The members' networks."""
        return [network.model for network in self._networks]

    def expect(self, detector: BaseDetector) -> None:
        """Nothing: an ensemble asks for logits only."""

    def batches(self, name: str, detector: BaseDetector) -> list[FeatureBatch]:
        """The members' logits of a set, those of their mixture, and the labels."""
        members = [network.logits(name) for network in self._networks]
        return [join_members(parts) for parts in zip(*members, strict=True)]

    def extraction_seconds(self, name: str, detector: BaseDetector) -> float:
        """How long a set took, one member after the other."""
        return sum(network.extraction_seconds(name) for network in self._networks)

    def forget(self, name: str) -> None:
        """Nothing: logits are kept."""
