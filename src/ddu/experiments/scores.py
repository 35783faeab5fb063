"""What a calibrated detector says of every set: all that metrics and figures are made from."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddu.files import write_arrays
from ddu.results import (
    RowKey,
    classification_metrics,
    false_alarm_metrics,
    ood_errors,
    ood_metrics,
    selective_metrics,
)

IN_DISTRIBUTION_METRICS = (
    *("accuracy", "temperature", "nll", "nll_uncalibrated", "brier", "brier_uncalibrated"),
    *("ece", "ece_uncalibrated", "ece_adaptive", "false_alarm_rate"),
    *("aurc", "accuracy_at_80", "accuracy_at_90", "accuracy_at_95"),
)
OOD_METRICS = (
    *("auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_in", "detection_rate"),
    *("aurc", "accuracy_at_80", "accuracy_at_90", "accuracy_at_95"),
)


@dataclass(frozen=True)
class Judged:
    """Both uncertainties of the inputs of one set, each (input,)."""

    epistemic: Tensor
    aleatoric: Tensor


@dataclass(frozen=True)
class Scores:
    """What a calibrated detector says of the test set and of each OoD set.

    Attributes:
        logits: Logits of the test inputs as trained, (input, class).
        labels: Their classes, (input,).
        temperature: What the detector divides logits by.
        threshold: Epistemic score above which an input is called out of distribution.
        test: Uncertainties of the test inputs.
        ood: Uncertainties of the inputs of each OoD set, by its name.
    """

    logits: Tensor
    labels: Tensor
    temperature: float
    threshold: float
    test: Judged
    ood: Mapping[str, Judged] = field(default_factory=dict)

    @property
    def probs(self) -> Tensor:
        """Class probabilities of the test inputs, after temperature scaling, (input, class)."""
        return (self.logits.double() / self.temperature).softmax(1)

    @property
    def correct(self) -> Tensor:
        """Whether the prediction for each test input is right, (input,)."""
        return self.logits.argmax(1) == self.labels

    def with_ood(self, name: str, judged: Judged) -> "Scores":
        """The same, and what is said of one more OoD set."""
        return replace(self, ood={**self.ood, name: judged})

    def refusal(self, ood: str | None = None) -> tuple[Tensor, Tensor]:
        """The order in which predictions are refused, and which of them are right.

        What is called out of distribution is refused first, the most unknown before all others; then what is most
        ambiguous. So one rule serves detectors that tell the two apart and those that cannot.

        Args:
            ood: Mixes the test inputs with those of this set, of which no prediction is right.

        Returns:
            Larger is refused earlier, (input,); and whether the prediction is right, (input,).
        """
        judged, correct = self.test, self.correct
        if ood is not None:
            unknown = self.ood[ood]
            judged = Judged(
                torch.cat([judged.epistemic, unknown.epistemic]), torch.cat([judged.aleatoric, unknown.aleatoric])
            )
            correct = torch.cat([correct, torch.zeros(len(unknown.epistemic), dtype=torch.bool)])
        flagged = judged.epistemic > self.threshold
        # Above every entropy there is, and in [0, 1) beyond that by rank: equal scores stay equal
        _, ranks = judged.epistemic.double().unique(return_inverse=True)
        beyond = 1 + np.log(self.logits.shape[1]) + ranks / len(ranks)
        return torch.where(flagged, beyond, judged.aleatoric.double()), correct

    def in_distribution_metrics(self) -> dict[str, float]:
        """Accuracy, calibration, false alarms and refusals on the test set: `IN_DISTRIBUTION_METRICS`."""
        return {
            **classification_metrics(self.logits, self.labels, self.temperature),
            **false_alarm_metrics(self.test.epistemic, self.threshold),
            **selective_metrics(*self.refusal()),
        }

    def ood_metrics(self, ood: str) -> dict[str, float]:
        """How an OoD set is told from the test set, and refusals on both together: `OOD_METRICS`."""
        unknown = self.ood[ood].epistemic
        rates = false_alarm_metrics(self.test.epistemic, self.threshold, unknown)
        return {
            **ood_metrics(self.test.epistemic, unknown),
            "detection_rate": rates["detection_rate"],
            **selective_metrics(*self.refusal(ood)),
        }

    def ood_errors(self, ood: str) -> dict[str, float]:
        """The standard errors of auroc and fpr95, over the inputs of both sets."""
        return ood_errors(self.test.epistemic, self.ood[ood].epistemic)

    def save(self, folder: Path, ood: str | None = None) -> None:
        """Writes what is said of the test set, or of one OoD set, to a file of its own in a folder."""
        if ood is not None:
            _write(folder / f"{file_name(ood)}.npz", name=ood, **asdict(self.ood[ood]))
            return
        calibration = np.array([self.temperature, self.threshold])
        _write(folder / _TEST, logits=self.logits, labels=self.labels, calibration=calibration, **asdict(self.test))

    @classmethod
    def load(cls, folder: Path) -> "Scores | None":
        """Reads what `save` wrote; None if there is nothing of the test set."""
        if not (folder / _TEST).is_file():
            return None
        test = _read(folder / _TEST)
        temperature, threshold = test["calibration"].tolist()
        ood = [_read(path) for path in sorted(folder.glob("*.npz")) if path.name != _TEST]
        logits, labels = (torch.from_numpy(test[name]) for name in ("logits", "labels"))
        by_name = {str(arrays["name"]): _judged(arrays) for arrays in ood}
        return cls(logits, labels, temperature, threshold, _judged(test), by_name)


def set_name(name: str) -> str:
    """The name of a set for titles and files; of one that is a path, the name of its file or folder.

    >>> set_name("npz:/data/my images.npz"), set_name("svhn")
    ('my images', 'svhn')
    """
    return Path(name).stem if os.sep in name else name


def scores_folder(folder: Path, key: RowKey) -> Path:
    """Where the scores of a detector are in the folder of all scores; `key` is that of any of its rows."""
    name = f"{key.detector} on {key.network} {set_name(key.data)} seed{key.seed}"
    return folder / file_name(f"{name} x{key.members} {key.run}" if key.members > 1 else f"{name} {key.run}")


def file_name(words: str) -> str:
    """Words as the name of a file.

    >>> file_name("ddu on resnet18+sn")
    'ddu-on-resnet18+sn'
    """
    return "".join(character if character.isalnum() or character in "_.+=" else "-" for character in words)


_TEST = "test set.npz"  # no name of an OoD set, which would have a dash


def _judged(arrays: Mapping[str, np.ndarray]) -> Judged:
    return Judged(*(torch.from_numpy(arrays[name]) for name in ("epistemic", "aleatoric")))


def _read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def _write(path: Path, **arrays: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_arrays(path, {name: np.asarray(array) for name, array in arrays.items()})
