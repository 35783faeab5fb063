"""Trained networks, and what they make of every set: extracted in one pass, and shared by all detectors."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ddu import data
from ddu.data import ArrayDataset
from ddu.detectors import BaseDetector, join_members
from ddu.features import FeatureBatch, FeatureTap, LayersTap, LogitsTap, Tap, extract
from ddu.models import Classifier
from ddu.runs import Run

Sets = Mapping[str, ArrayDataset]
"""Sets by name: train, validation and test, and every OoD set under its own name."""

Place = tuple[tuple[str, str], ...]
"""A layer whose features are extracted, as `FeatureTap.describe` has it."""


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
        self._expected: dict[Place, None] = {}
        self._features: dict[str, dict[Place, list[Tensor]]] = {}
        self._logits: dict[str, list[FeatureBatch]] = {}
        self._seconds: dict[str, float] = defaultdict(float)

    @cached_property
    def model(self) -> Classifier:
        """The network, in evaluation mode."""
        return self._run.load_model()

    def expect(self, detector: BaseDetector) -> None:
        """Notes the layers that a detector will ask for."""
        self._expected |= dict.fromkeys(self._places(detector) or [])

    def batches(self, name: str, detector: BaseDetector) -> Iterable[Any]:
        """A set as a detector wants it: features, logits and labels, or a loader if it has to see the inputs."""
        places = self._places(detector)
        if places is None:
            return data.loader(self.sets[name])
        if any(place not in self._features.get(name, {}) for place in places):
            self._extract(name, dict.fromkeys([*self._expected, *places]))
        features = [self._features[name][place] for place in places]
        return [
            batch._replace(features=torch.cat([layer[index] for layer in features], 1)) if features else batch
            for index, batch in enumerate(self.logits(name))
        ]

    def logits(self, name: str) -> list[FeatureBatch]:
        """The logits and labels of a set; the logits stand for the features."""
        if name not in self._logits:
            self._extract(name, self._expected)
        return self._logits[name]

    def extraction_seconds(self, name: str, detector: BaseDetector | None = None) -> float:
        """How long the pass over a set took; none for a detector that has to see the inputs."""
        return 0.0 if detector is not None and self._places(detector) is None else self._seconds[name]

    def forget(self, name: str) -> None:
        """Lets go of the features of a set that no detector asks for any more."""
        self._features.pop(name, None)

    def _places(self, detector: BaseDetector) -> list[Place] | None:
        """The layers that a detector taps; None if it has to see the inputs."""
        tap = detector.tap
        if detector.needs_inputs:
            return None
        if isinstance(tap, LogitsTap):
            return []
        taps = tap.taps if isinstance(tap, LayersTap) else [tap] if isinstance(tap, FeatureTap) else None
        if taps is None:
            return None
        if not all(one.is_located for one in taps):
            tap(self.sets["test"].__getitems__([0])[0])
        places = [one.describe() for one in taps]
        return None if any(place["kind"] == "callable" for place in places) else [tuple(p.items()) for p in places]

    def _extract(self, name: str, places: Iterable[Place]) -> None:
        places = list(places)
        tap: Tap = LayersTap(self.model, [dict(place) for place in places]) if places else LogitsTap(self.model)
        started = time.perf_counter()
        batches = list(extract(tap, data.loader(self.sets[name])))
        self._seconds[name] += time.perf_counter() - started
        self._logits[name] = [batch._replace(features=batch.logits) for batch in batches]
        widths = tap.widths if isinstance(tap, LayersTap) and tap.widths else []
        columns = zip(*(batch.features.split(widths, 1) for batch in batches), strict=True) if places else []
        self._features[name] = dict(zip(places, map(list, columns), strict=True))


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
