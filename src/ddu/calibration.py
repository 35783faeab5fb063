"""What held-out data says: a temperature, p-values, thresholds for verdicts, and candidate classes.

`HeldOut` keeps a few numbers of every held-out input, and a `Calibration` derives everything from them, so that a rate
can be changed afterwards without the data.
"""

import math
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from ddu.conformal import candidate_level, check_share, conformal_rank, count_at_least, error_rate_threshold
from ddu.errors import CalibrationWarning, InputError
from ddu.measures import entropy
from ddu.messages import check_entries
from ddu.types import Verdict

# Inverse temperatures outside this range, for logits of unit spread, mean that the data does not determine one
_LOWEST, _HIGHEST = 1e-4, 1e4

_VERDICTS = np.array([Verdict.IN_DISTRIBUTION, Verdict.AMBIGUOUS, Verdict.OUT_OF_DISTRIBUTION], dtype=object)

ThresholdRule = Literal["conformal", "training_quantile"]

# With which an error rate holds, unless another confidence is asked for
_CONFIDENCE = 0.95


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature T that minimises the mean of -log softmax(logits / T)[label].

    In β = 1/T this is convex with the derivative g(β) = mean(E_p[l] - l_y) and curvature mean(Var_p[l]), where the
    softmax of βl gives p. The root of g is found by Newton's method, safeguarded by a bracket.

    If no finite temperature is best (every held-out prediction right, or none better than chance), it warns and
    returns 1.

    >>> fit_temperature(torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]]), torch.tensor([0, 0, 0, 1]))
    3.64095690...
    """
    logits = logits.double()
    # In units of their spread, so that the range searched follows the logits
    spread = float((logits.amax(1) - logits.amin(1)).mean()) or 1.0
    logits = logits / spread
    right = logits.gather(1, labels[:, None]).squeeze(1)

    def slope_and_curvature(beta: float) -> tuple[float, float]:
        probs = torch.softmax(beta * logits, dim=1)
        mean = (probs * logits).sum(1)
        variance = (probs * (logits - mean[:, None]).square()).sum(1)
        return float((mean - right).mean()), float(variance.mean())

    informative, imperfect = slope_and_curvature(_LOWEST)[0] < 0, slope_and_curvature(_HIGHEST)[0] > 0
    if not (informative and imperfect):
        advice = (
            "Hold out more, and more typical, data."
            if informative
            else "Check that the labels belong to these inputs, with the classes numbered as in training."
        )
        warnings.warn(
            f"No temperature is best for these {len(labels)} held-out predictions, of which "
            f"{int((logits.argmax(1) == labels).sum())} are right: it stays 1. {advice}",
            CalibrationWarning,
            stacklevel=2,
        )
        return 1.0

    low, high, beta = _LOWEST, _HIGHEST, 1.0
    while high - low > 1e-12 * high:
        slope, curvature = slope_and_curvature(beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        newton = beta - slope / curvature if curvature > 0 else -1.0
        # Once Newton's steps are at rounding, the bracket's far end no longer moves
        if abs(newton - beta) <= 1e-14 * beta:
            break
        beta = newton if low < newton < high else math.sqrt(low * high)
    return spread / beta


def entropy_threshold(entropy: Tensor, correct: Tensor) -> float:
    """The entropy that best tells wrong held-out predictions from right ones.

    It maximises Youden's J, the share of wrong predictions above the threshold minus that of right ones. Where every
    prediction is right, it is the largest entropy among them.

    >>> entropy_threshold(torch.tensor([0.1, 0.2, 0.3, 1.0, 1.2]), torch.tensor([True, True, True, False, False]))
    0.3...
    """
    ordered, order = entropy.double().sort()
    hit = correct[order].double()
    wrong, right = 1 - hit, hit
    # Shares above ordered[i], for each i
    wrong_above = (wrong.sum() - wrong.cumsum(0)) / wrong.sum().clamp(min=1)
    right_above = (right.sum() - right.cumsum(0)) / right.sum().clamp(min=1)
    # Equal entropies fall on one side together: only the last of each run is a candidate
    last = torch.ones_like(hit, dtype=torch.bool)
    last[:-1] = ordered[1:] > ordered[:-1]
    youden = torch.where(last, wrong_above - right_above, -torch.inf)
    return float(ordered[youden.argmax()])


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What is kept of every held-out input, in ascending order of the epistemic score.

    Attributes:
        epistemic: The epistemic score, (sample,).
        predicted: The likeliest class, (sample,).
        entropy: The entropy of the probabilities; None without labels, as are the following.
        correct: Whether the likeliest class is the right one.
        label_prob: The probability of the right class.
    """

    epistemic: Tensor
    predicted: Tensor
    entropy: Tensor | None = None
    correct: Tensor | None = None
    label_prob: Tensor | None = None

    def __post_init__(self) -> None:
        order = self.epistemic.detach().cpu().double().sort(stable=True).indices
        for name, dtype in _KEPT.items():
            value = getattr(self, name)
            if value is None:
                continue
            bad = int((~torch.isfinite(value)).sum())
            if bad:
                raise InputError(
                    f"The {name!r} of {bad} of {len(value)} held-out inputs is not finite: check them and the model."
                )
            object.__setattr__(self, name, value.detach().cpu().to(dtype)[order])

    def __len__(self) -> int:
        return len(self.epistemic)

    @property
    def has_labels(self) -> bool:
        """Whether the right classes were known."""
        return self.correct is not None

    def tensors(self) -> dict[str, Tensor]:
        """Everything by name, where it is known."""
        return {name: getattr(self, name) for name in _KEPT if getattr(self, name) is not None}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The same from `tensors`, or an error that says what is wrong with them."""
        names = list(_KEPT) if len(tensors) > len(_UNLABELLED) else _UNLABELLED
        check_entries("the kept tensors of the calibration", dict(tensors), names)
        samples = tensors["epistemic"].shape[:1]
        for name, tensor in tensors.items():
            if tensor.dtype != _KEPT[name] or tensor.shape != samples or not tensor.numel():
                raise InputError(
                    f"The kept tensor {name!r} of a calibration must be {_KEPT[name]} of shape (samples,), as many as "
                    f"there are scores. Got {tensor.dtype} of shape {tuple(tensor.shape)} instead."
                )
            if name != "epistemic" and bool((tensor < 0).any()):
                raise InputError(f"The kept tensor {name!r} of a calibration must not be negative.")
        return cls(**tensors)


_KEPT = {
    "epistemic": torch.float64,
    "predicted": torch.int64,
    "entropy": torch.float64,
    "correct": torch.bool,
    "label_prob": torch.float64,
}
_UNLABELLED = ["epistemic", "predicted"]


@dataclass(frozen=True, eq=False)
class Calibration:
    """Temperature, p-values, verdicts and candidates, by what was kept of held-out data.

    `dataclasses.replace(calibration, false_alarm_rate=0.05)` needs no data, and moves whatever depends on it.

    Attributes:
        held_out: What was kept of every held-out input.
        temperature: Divides the logits.
        false_alarm_rate: Share of in-distribution inputs that may be called out of distribution.
        threshold: "conformal" keeps that rate for new inputs; "training_quantile" is the paper's plain share.
        confidence: With which the rates hold for these held-out inputs; None is on average over held-out sets, and
            0.95 for the error rate.
        per_class: Whether the rate holds within each predicted class.
        error_rate: Share of the inputs called in distribution that may be predicted wrongly; None is no promise, and
            the entropy that best tells wrong held-out predictions from right ones.
        coverage: Share of inputs whose right class is to be among the candidates.
    """

    held_out: HeldOut
    temperature: float = 1.0
    false_alarm_rate: float = 0.01
    threshold: ThresholdRule = "conformal"
    confidence: float | None = None
    per_class: bool = False
    error_rate: float | None = None
    coverage: float = 0.95

    def __post_init__(self) -> None:
        self._check()
        # All of it now, so that what cannot be promised is refused now
        _ = self._allowed, self.entropy_threshold, self.candidate_level

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Calibration):
            return NotImplemented
        mine, theirs = self.held_out.tensors(), other.held_out.tensors()
        kept = mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
        return kept and self.settings() == other.settings()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def settings(self) -> dict[str, Any]:
        """Everything but what was kept, as JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "held_out"}

    @classmethod
    def restore(cls, settings: dict[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """The same from `settings` and the kept tensors, or an error that says what is wrong with them."""
        check_entries("the calibration", settings, [field.name for field in fields(cls) if field.name != "held_out"])
        return cls(HeldOut.restore(tensors), **settings)

    # What it says of new inputs

    def p_values(self, epistemic: Tensor, label: Tensor) -> Tensor:
        """The share of in-distribution inputs at least as unknown as each of these, (sample,), in double precision.

        (k + 1) / (n + 1) for k of n held-out inputs, of the same predicted class if the rate is one per class: a new
        in-distribution input has a p-value of at most r with a probability of at most r. With the paper's threshold,
        the plain share k / n.
        """
        count, samples, _ = self._counted(epistemic, label)
        one = self.threshold == "conformal"
        return ((count + one).double() / (samples + one)).to(epistemic.device)

    def verdicts(self, epistemic: Tensor, aleatoric: Tensor, label: Tensor) -> np.ndarray:
        """A `Verdict` for each input: the epistemic score first, as entropy means something for known inputs only.

        p <= rate, decided by rank. Without labels nothing is called ambiguous.
        """
        count, _, allowed = self._counted(epistemic, label)
        ambiguous = torch.zeros_like(count)
        if self.entropy_threshold is not None:
            ambiguous = (aleatoric.cpu().double() > self.entropy_threshold).long()
        return _VERDICTS[torch.where(count <= allowed, 2, ambiguous).numpy()]

    def candidates(self, probs: Tensor, label: Tensor) -> Tensor | None:
        """The classes that fit, (sample, class): the likeliest, and all that are likely enough; None without labels."""
        if self.candidate_level is None:
            return None
        return (probs.double() >= self.candidate_level).scatter(1, label[:, None], True)

    @property
    def epistemic_threshold(self) -> float | None:
        """Epistemic score above which an input is out of distribution; None if each class has its own."""
        scores, allowed = self._allowed[None]
        return None if self.per_class else float(scores[-1 - allowed])

    @cached_property
    def entropy_threshold(self) -> float | None:
        """Entropy above which an input in distribution is ambiguous; None without labels."""
        kept = self.held_out
        if kept.entropy is None or kept.correct is None:
            return None
        if self.error_rate is None:
            return entropy_threshold(kept.entropy, kept.correct)
        # All that are not flagged but one: below the score that is the threshold, the others are independent
        known = torch.zeros(len(kept), dtype=torch.bool)
        for group, (scores, allowed) in self._allowed.items():
            rows = slice(None) if group is None else (kept.predicted == group).nonzero().squeeze(1)
            at = len(scores) - 1 - allowed
            known[rows] = (scores <= scores[at]) & (torch.arange(len(scores)) != at)
        confidence = _CONFIDENCE if self.confidence is None else self.confidence
        return error_rate_threshold(kept.entropy[known], kept.correct[known], self.error_rate, confidence)

    @cached_property
    def candidate_level(self) -> float | None:
        """Probability from which a class is a candidate; None without labels."""
        return None if self.held_out.label_prob is None else candidate_level(self.held_out.label_prob, self.coverage)

    @property
    def groups(self) -> dict[int | None, Tensor]:
        """The held-out scores that a new one is ranked among, in ascending order.

        The first group, None, is all of them; the others are the predicted classes, if the rate is one per class.
        """
        kept = self.held_out
        groups: dict[int | None, Tensor] = {None: kept.epistemic}
        if self.per_class:
            groups |= {c: kept.epistemic[kept.predicted == c] for c in kept.predicted.unique().tolist()}
        return groups

    @property
    def p_value_threshold(self) -> float:
        """The largest p-value that is out of distribution: the false-alarm rate, or less to be confident of it."""
        scores, allowed = self._allowed[None]
        return self.false_alarm_rate if self.confidence is None else (allowed + 1) / (len(scores) + 1)

    @property
    def least_p_value(self) -> float:
        """The smallest p-value that the held-out inputs can give; of the class with the fewest, if per class."""
        return 1 / (1 + min(len(scores) for scores, _ in self._allowed.values())) * (self.threshold == "conformal")

    @cached_property
    def _allowed(self) -> dict[int | None, tuple[Tensor, int]]:
        """The scores of each group, and how many of them may be at least as large as one that is flagged.

        A score is above the k-th largest if fewer than k are at least as large.
        """
        return {group: (scores, self._allowed_of(group, len(scores))) for group, scores in self.groups.items()}

    def _allowed_of(self, group: int | None, samples: int) -> int:
        if self.threshold == "training_quantile":
            return int(Fraction(str(float(self.false_alarm_rate))) * samples)
        try:
            return conformal_rank(samples, self.false_alarm_rate, confidence=self.confidence) - 1
        except InputError as error:
            if group is None:
                raise
            raise InputError(f"Within the predicted class {group}: {error}") from error

    def _counted(self, epistemic: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each input: how many held-out scores are at least as large, of how many, and how many may be."""
        scores, label = epistemic.detach().cpu().double().contiguous(), label.cpu()
        count, samples, allowed = (torch.zeros(len(scores), dtype=torch.int64) for _ in range(3))
        # First with all of them, where a class that was never predicted for held-out inputs stays
        for group, (ordered, most) in self._allowed.items():
            rows = torch.ones_like(label, dtype=torch.bool) if group is None else label == group
            count[rows] = count_at_least(scores[rows], ordered)
            samples[rows], allowed[rows] = len(ordered), most
        return count, samples, allowed

    def _check(self) -> None:
        temperature, largest = self.temperature, sys.float_info.max
        if not isinstance(temperature, float | int) or not math.ulp(0.0) <= temperature <= largest:
            raise InputError(
                f"The 'temperature' of a calibration must be a finite float above 0. Got {temperature!r} instead."
            )
        object.__setattr__(self, "temperature", float(temperature))
        check_share("false-alarm rate", self.false_alarm_rate)
        check_share("coverage", self.coverage)
        if self.confidence is not None:
            check_share("confidence", self.confidence)
        if self.error_rate is not None:
            check_share("error rate", self.error_rate)
            if not self.held_out.has_labels:
                raise InputError(f"An error rate of {self.error_rate:g} needs labels: calibrate with (inputs, labels).")
        if self.threshold not in (rules := get_args(ThresholdRule)):
            named = ", ".join(map(repr, rules))
            raise InputError(f"The 'threshold' must be one of {named}. Got {self.threshold!r} instead.")
        if self.per_class not in (True, False):
            raise InputError(f"The 'per_class' parameter must be True or False. Got {self.per_class!r} instead.")


def calibrate(
    logits: Tensor, epistemic: Tensor, labels: Tensor | None = None, *, rows: Tensor | None = None, **settings: Any
) -> Calibration:
    """A calibration from the logits, epistemic scores and labels of held-out data.

    Args:
        logits: Of all held-out inputs, (sample, class); they set the temperature.
        epistemic: The scores of those that everything else is set on.
        labels: Of all, (sample,); without them there are p-values alone, and the temperature is 1.
        rows: Which of them those are; None is all.
        settings: As the attributes of `Calibration`.

    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> scores, labels = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, 0, 0, 1])
    >>> calibrate(logits, scores, labels, false_alarm_rate=0.4).epistemic_threshold
    3.0
    """
    temperature = 1.0 if labels is None else fit_temperature(logits, labels)
    scaled = (logits if rows is None else logits[rows]) / temperature
    probs = torch.softmax(scaled, dim=1)
    predicted, known = probs.argmax(1), {}
    if labels is not None:
        truth = labels if rows is None else labels[rows]
        known = {
            "entropy": entropy(scaled),
            "correct": predicted == truth,
            "label_prob": probs.gather(1, truth[:, None]).squeeze(1),
        }
    return Calibration(HeldOut(epistemic, predicted, **known), temperature, **settings)
