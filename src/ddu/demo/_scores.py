"""What the demo measures."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddu.data import DigitsDemoData
from ddu.detectors import DDU
from ddu.errors import NotFittedError
from ddu.metrics import accuracy, auroc, expected_calibration_error
from ddu.types import Prediction, Verdict

# A patch whose brightness has a smaller standard deviation shows nothing: sky, or a blurred background
FLAT = 0.02


@dataclass(frozen=True)
class Judged:
    """The detector's word on every test input.

    Attributes:
        clean: On clean digits.
        ambiguous: On ambiguous digits.
        photos: On patches of photographs.
        uncalibrated: Probabilities of clean, then ambiguous digits before temperature scaling, (digit, class).
    """

    clean: Prediction
    ambiguous: Prediction
    photos: Prediction
    uncalibrated: Tensor


@dataclass(frozen=True)
class Auroc:
    """How well each uncertainty tells two sets apart: 0.5 is chance, 1 is perfect."""

    entropy: float
    density: float


@dataclass(frozen=True)
class Scores:
    """The numbers of the demo, all on inputs that were neither trained nor calibrated on.

    Attributes:
        accuracy_clean: Share of clean digits read right.
        accuracy_ambiguous: Share of ambiguous digits for which the label that was drawn is the one read.
        accuracy_ambiguous_best: What a reader who knows the mixing weights could expect there.
        ece_uncalibrated: Expected calibration error on clean and ambiguous digits, before temperature scaling.
        ece: The same after it.
        ece_by_chance: What the same probabilities would show on as many digits if they were perfectly calibrated.
        temperature: The temperature.
        entropy_threshold: Entropy above which an input is ambiguous.
        density_threshold: Log-density below which it is out of distribution.
        false_alarm_rate_wanted: Share of digits that may be called out of distribution.
        false_alarm_rate: Share of clean and ambiguous digits that were.
        photos_vs_digits: Patches against all digits, clean and ambiguous.
        photos_vs_clean: Patches against clean digits.
        textured_photos_vs_digits: Patches that are not flat against all digits.
        ambiguous_vs_clean: Ambiguous digits against clean ones.
        flat_photos: How many patches are flat.
        verdicts: For each set, the share of each verdict.
        samples: Size of each set.
    """

    accuracy_clean: float
    accuracy_ambiguous: float
    accuracy_ambiguous_best: float
    ece_uncalibrated: float
    ece: float
    ece_by_chance: float
    temperature: float
    entropy_threshold: float
    density_threshold: float
    false_alarm_rate_wanted: float
    false_alarm_rate: float
    photos_vs_digits: Auroc
    photos_vs_clean: Auroc
    textured_photos_vs_digits: Auroc
    ambiguous_vs_clean: Auroc
    flat_photos: int
    verdicts: dict[str, dict[str, float]]
    samples: dict[str, int]


def score(data: DigitsDemoData, judged: Judged, detector: DDU) -> Scores:
    """Compares the verdicts with the truth."""
    if detector.entropy_threshold is None or detector.density_threshold is None or detector.false_alarm_rate is None:
        raise NotFittedError("The demo scores a calibrated detector. Call calibrate(loader) first.")
    clean, ambiguous, photos = judged.clean, judged.ambiguous, judged.photos
    labels = torch.cat([data.clean.labels, data.ambiguous.labels])
    digits = (torch.cat([clean.aleatoric, ambiguous.aleatoric]), torch.cat([clean.epistemic, ambiguous.epistemic]))
    probs = torch.cat([clean.probs, ambiguous.probs])
    textured = data.photos.flatten(1).std(1) >= FLAT
    return Scores(
        accuracy_clean=accuracy(clean.probs, data.clean.labels),
        accuracy_ambiguous=accuracy(ambiguous.probs, data.ambiguous.labels),
        accuracy_ambiguous_best=float(data.ambiguous.label_probs.amax(1).double().mean()),
        ece_uncalibrated=expected_calibration_error(judged.uncalibrated, labels),
        ece=expected_calibration_error(probs, labels),
        ece_by_chance=_ece_by_chance(probs),
        temperature=detector.temperature,
        entropy_threshold=detector.entropy_threshold,
        density_threshold=detector.density_threshold,
        false_alarm_rate_wanted=detector.false_alarm_rate,
        false_alarm_rate=float((-digits[1].double() < detector.density_threshold).double().mean()),
        photos_vs_digits=_auroc(digits, _both(photos)),
        photos_vs_clean=_auroc(_both(clean), _both(photos)),
        textured_photos_vs_digits=_auroc(digits, _both(photos[textured])),
        ambiguous_vs_clean=_auroc(_both(clean), _both(ambiguous)),
        flat_photos=int((~textured).sum()),
        verdicts={name: _shares(getattr(judged, name)) for name in ("clean", "ambiguous", "photos")},
        samples={
            "train": len(data.train),
            "calibration": len(data.calibration),
            "clean": len(data.clean),
            "ambiguous": len(data.ambiguous),
            "photos": len(data.photos),
        },
    )


def _both(prediction: Prediction) -> tuple[Tensor, Tensor]:
    return prediction.aleatoric, prediction.epistemic


def _auroc(negative: tuple[Tensor, Tensor], positive: tuple[Tensor, Tensor]) -> Auroc:
    return Auroc(entropy=auroc(negative[0], positive[0]), density=auroc(negative[1], positive[1]))


def _ece_by_chance(probs: Tensor, draws: int = 100) -> float:
    """Mean calibration error over labels that are drawn from the probabilities themselves."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.multinomial(probs, draws, replacement=True, generator=generator)
    return sum(expected_calibration_error(probs, drawn) for drawn in labels.T) / draws


def _shares(prediction: Prediction) -> dict[str, float]:
    verdicts = np.asarray(prediction.verdict)
    return {str(verdict): float(np.mean(verdicts == verdict)) for verdict in Verdict}
