"""What a calibrated detector says of every set: all that metrics and figures are made from."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ddu.evaluation import classification_metrics, false_alarm_metrics, ood_metrics, selective_metrics
from ddu.files import write_bytes

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
        run: The fingerprint of the run whose network it is put around; empty if that is not known.
    """

    logits: Tensor
    labels: Tensor
    temperature: float
    threshold: float
    test: Judged
    ood: Mapping[str, Judged]
    run: str = ""

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

    def save(self, path: Path) -> None:
        """Writes the scores to an `.npz` file, whole or not at all."""
        arrays = {
            "logits": self.logits.numpy(),
            "labels": self.labels.numpy(),
            "calibration": np.array([self.temperature, self.threshold]),
            "sets": np.array(list(self.ood), dtype=np.str_),
            "run": np.array(self.run),
        }
        for index, judged in enumerate((self.test, *self.ood.values())):
            arrays |= {f"epistemic_{index}": judged.epistemic.numpy(), f"aleatoric_{index}": judged.aleatoric.numpy()}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> "Scores":
        """Reads what `save` wrote."""
        with np.load(path) as arrays:
            sets = [None, *arrays["sets"].tolist()]
            judged = {
                name: Judged(*(torch.from_numpy(arrays[f"{kind}_{index}"]) for kind in ("epistemic", "aleatoric")))
                for index, name in enumerate(sets)
            }
            temperature, threshold = arrays["calibration"].tolist()
            logits, labels = torch.from_numpy(arrays["logits"]), torch.from_numpy(arrays["labels"])
            run = str(arrays["run"]) if "run" in arrays else ""
        return cls(logits, labels, temperature, threshold, judged.pop(None), judged, run)
