"""What the checks look at, and the words that they share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ddu.detectors import DDU, BaseDetector
from ddu.detectors.score import Score
from ddu.diagnostics.findings import Finding
from ddu.diagnostics.sample import Judge, Sample
from ddu.features import FeatureTap, LayersTap


@dataclass(frozen=True)
class Checkup:
    """Everything that was given, and the tables that the checks fill.

    Attributes:
        judge: What is diagnosed.
        held_out: Held-out inputs as it sees them; None where there are none.
        train: Training inputs, likewise.
        new: New inputs, to be compared with those of calibration; None where there are none.
        progress: As in `BaseDetector.fit`.
        tables: The rows, by the name of a table.
    """

    judge: Judge
    held_out: Sample | None
    train: Sample | None
    new: Any
    progress: bool | None
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def detector(self) -> BaseDetector | None:
        """The detector around a network; None for a graph that was exported from one."""
        return self.judge if isinstance(self.judge, BaseDetector) else None

    @property
    def score(self) -> Score | None:
        """The sum of parts of a fitted DDU; None of any other detector."""
        return self.judge.score if isinstance(self.judge, DDU) else None

    @property
    def tap(self) -> FeatureTap | LayersTap | None:
        """What reads the features that the score looks at."""
        tap = None if self.detector is None else self.detector.tap
        return tap if isinstance(tap, FeatureTap | LayersTap) else None

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes, or their numbers."""
        sample = self.held_out or self.train
        if sample is None:
            return ()
        names = sample.prediction.class_names
        return names or [str(label) for label in range(sample.prediction.probs.shape[1])]

    def by_layer(self, features: Tensor) -> dict[str, Tensor]:
        """Features by the name of their layer; the last is what the head sees, unless others were named."""
        tap = self.tap
        assert tap is not None
        widths = tap.widths if isinstance(tap, LayersTap) else None
        names = [f"{place.kind} of {place.layer}" for place in tap.places]
        return dict(zip(names, features.split(widths or [features.shape[1]], dim=1), strict=True))


def not_asked(check: str, reason: str, remedy: str) -> Finding:
    """A check that cannot be asked."""
    return Finding("note", check, f"Not asked: {reason}", None, remedy)


NEEDS_HELD_OUT = "it needs held-out data, which is not at hand.", "Give held-out inputs with labels (--data)."
NEEDS_NETWORK = (
    "it needs the network and its features, and there is a graph alone.",
    "Ask the run or the detector that was exported.",
)
