"""Sets that the detector of a run has judged: what pages tell of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ddu import data
from ddu.data import ArrayDataset
from ddu.detectors import BaseDetector
from ddu.experiments.measure import ask
from ddu.progress import track
from ddu.report import Card, entropy_histogram, epistemic_histogram, make_cards
from ddu.results import source
from ddu.runs import Run
from ddu.types import Prediction, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class JudgedSet:
    """A set, and what a detector made of its inputs.

    Attributes:
        inputs: The set.
        logits: As trained, (input, class).
        labels: The classes of the set itself, (input,).
        prediction: The rest.
    """

    inputs: ArrayDataset
    logits: Tensor
    labels: Tensor
    prediction: Prediction

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def verdict_shares(self) -> dict[str, float]:
        """The share of each verdict."""
        return verdict_shares(np.asarray(self.prediction.verdict))

    def most_ambiguous(self, count: int) -> Tensor:
        """The inputs of the highest entropy, the highest first; of what is unknown the entropy means nothing."""
        known = np.asarray(self.prediction.verdict) != Verdict.OUT_OF_DISTRIBUTION
        return _highest(self.prediction.aleatoric, count, among=torch.from_numpy(known))

    def most_unknown(self, count: int) -> Tensor:
        """The inputs of the highest epistemic score, the highest first."""
        return _highest(self.prediction.epistemic, count)

    def most_familiar(self, count: int) -> Tensor:
        """The inputs of the lowest epistemic score, the lowest first."""
        return _highest(-self.prediction.epistemic, count)

    def cards(self, rows: Tensor) -> list[Card]:
        """Some of the inputs as pictures, as the network sees them, with what the detector made of them."""
        info, images = self.inputs.info, None
        if info.is_image and len(rows):
            mean, std = (torch.tensor(values)[:, None, None] for values in (info.mean, info.std))
            images = self.inputs.__getitems__(rows.tolist())[0] * std + mean
        return make_cards(images, self.prediction[rows], [info.classes[label] for label in self.labels[rows].tolist()])


def judge_set(detector: BaseDetector, inputs: ArrayDataset, words: str = "judging") -> JudgedSet:
    """Shows a set to a calibrated detector; the words stand beside the progress bar."""
    evidence, labels = ask(detector, track(data.loader(inputs), words))
    return JudgedSet(inputs, evidence.logits, labels, detector.decide(evidence))


def verdict_shares(verdicts: np.ndarray) -> dict[str, float]:
    """The share of each verdict."""
    return {str(verdict): float(np.mean(verdicts == verdict)) for verdict in Verdict if verdict != Verdict.INVALID}


def uncertainty_histograms(
    entropies: Mapping[str, Tensor], epistemic: Mapping[str, Tensor], detector: BaseDetector, num_classes: int
) -> "list[tuple[Figure, str]]":
    """Both uncertainties of each set as histograms with the thresholds of a detector, and what they show in words."""
    assert detector.entropy_threshold is not None
    assert detector.epistemic_threshold is not None
    return [
        (
            entropy_histogram(entropies, detector.entropy_threshold, num_classes),
            f"Histograms of the softmax entropy. {_medians(entropies, 2)}.",
        ),
        (
            epistemic_histogram(epistemic, detector.epistemic_threshold),
            f"Histograms of the epistemic score. {_medians(epistemic, 1)}.",
        ),
    ]


def run_facts(run: Run, command: str) -> dict[str, Any]:
    """The columns of a row that say which run it is of, and what it was measured with."""
    return {
        "network": run.spec.label,
        "data": run.spec.data,
        "seed": run.spec.seed,
        "run": run.fingerprint,
        "reductions": run.reductions,
        **source(command),
    }


def _highest(scores: Tensor, count: int, among: Tensor | None = None) -> Tensor:
    """The positions of the highest scores, the highest first and of equal ones the first."""
    order = scores.argsort(descending=True, stable=True)
    return (order if among is None else order[among[order]])[:count]


def _medians(values: Mapping[str, Tensor], digits: int) -> str:
    return "Medians: " + ", ".join(f"{name} {float(value.median()):.{digits}f}" for name, value in values.items())
