"""Trained networks, with what they make of every set: extracted once, and shared by all detectors."""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import nn

from ddu import data
from ddu.data import ArrayDataset
from ddu.detectors import BaseDetector, join_members
from ddu.features import FeatureBatch, FeatureTap, LayersTap, LogitsTap, Tap, extract
from ddu.models import Classifier
from ddu.runs import Run, RunData, make_detector

Sets = Mapping[str, ArrayDataset]
"""Sets by name: train, validation and test, and every OoD set under its own name."""


class TrainedNetwork:
    """A trained network, and what it makes of each set: extracted when it is first asked for, and kept.

    Attributes:
        sets: The sets that it is shown.
        training_seconds: How long its training took.
        extraction_seconds: How long the features of each set took.
    """

    def __init__(self, run: Run, sets: Sets):
        self.sets = sets
        self.training_seconds = run.metrics["seconds"]
        self.extraction_seconds: dict[str, float] = {}
        self._run = run
        self._batches: dict[str, list[FeatureBatch]] = {}

    @cached_property
    def model(self) -> Classifier:
        """The network, in evaluation mode."""
        return self._run.load_model()

    @cached_property
    def tap(self) -> Tap:
        """What extracts the features: that of the detector that the network was trained for."""
        return make_detector(self.model).tap

    def batches(self, name: str) -> list[FeatureBatch]:
        """The features, logits and labels of a set."""
        if name not in self._batches:
            started = time.perf_counter()
            self._batches[name] = list(extract(self.tap, data.loader(self.sets[name])))
            self.extraction_seconds[name] = time.perf_counter() - started
        return self._batches[name]

    def serves(self, detector: BaseDetector) -> bool:
        """Whether a detector can do with what was extracted; otherwise it has to see the inputs."""
        if detector.needs_inputs:
            return False
        return isinstance(detector.tap, LogitsTap) or _place(detector.tap) == _place(self.tap)


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
    def extraction_seconds(self) -> dict[str, float]:
        """How long each set took, one member after the other."""
        names = self._networks[0].extraction_seconds
        return {name: sum(network.extraction_seconds.get(name, 0.0) for network in self._networks) for name in names}

    @property
    def model(self) -> list[nn.Module]:
        """The members' networks."""
        return [network.model for network in self._networks]

    def batches(self, name: str) -> list[FeatureBatch]:
        """The members' logits of a set, those of their mixture, and the labels."""
        members = [network.batches(name) for network in self._networks]
        return [join_members(parts) for parts in zip(*members, strict=True)]

    def serves(self, detector: BaseDetector) -> bool:
        """Always: an ensemble asks for logits only."""
        return True


def by_name(known: RunData, ood: Sets) -> Sets:
    """The sets of a run and OoD sets together."""
    return {"train": known.train, "validation": known.validation, "test": known.test, **ood}


def _place(tap: Tap) -> Any:
    """Where a tap takes features from: a place, or a list of several."""
    if isinstance(tap, LayersTap):
        first, *others = [one.features for one in tap.taps]
        return [first, *others] if others else first
    return tap.features if isinstance(tap, FeatureTap) else tap
