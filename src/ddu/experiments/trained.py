"""Trained networks, and what they make of every set: extracted in one pass, and shared by all detectors."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import nn

from ddu import data
from ddu.data import ArrayDataset
from ddu.detectors import BaseDetector, join_members
from ddu.features import FeatureBatch, ModelTap, SharedBatch, SharedTap, extract
from ddu.models import Classifier
from ddu.runs import Run

Sets = Mapping[str, ArrayDataset]
"""Sets by name: train, validation and test, and every OoD set under its own name."""


class TrainedNetwork:
    """A trained network, and what it makes of each set.

    A set runs through the network once for all detectors: every layer that one of them asks for is extracted in the
    same pass. Features are kept until `forget`, logits and labels for good.

    Attributes:
        sets: The sets that it is shown.
        training_seconds: How long its training took.
    """

    def __init__(self, run: Run, sets: Sets):
        self.sets = sets
        self.training_seconds = run.metrics["seconds"]
        self._run = run
        self._taps: list[ModelTap] = []
        self._shared: SharedTap | None = None
        self._features: dict[str, list[SharedBatch]] = {}
        self._logits: dict[str, list[FeatureBatch]] = {}
        self._seconds: dict[str, float] = defaultdict(float)

    @cached_property
    def model(self) -> Classifier:
        """The network, in evaluation mode."""
        return self._run.load_model()

    def expect(self, detector: BaseDetector) -> None:
        """Notes the layers that a detector will ask for."""
        tap = _shareable(detector)
        if tap is not None and tap.taps and not (self._shared and self._shared.serves(tap)):
            shared = SharedTap(self.model, [*self._taps, tap])
            shared(self.sets["test"].__getitems__([0])[0])  # finds the layers, or fails for this detector alone
            self._taps, self._shared = [*self._taps, tap], shared
            self._features.clear()

    def batches(self, name: str, detector: BaseDetector) -> Iterable[Any]:
        """A set as a detector wants it: features, logits and labels, or a loader if it has to see the inputs."""
        tap = _shareable(detector)
        if tap is None:
            return data.loader(self.sets[name])
        if not tap.taps:
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
    return None if any(one.is_located and one.found.kind == "callable" for one in tap.taps) else tap


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
