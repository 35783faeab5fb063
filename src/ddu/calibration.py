"""Temperature and thresholds from held-out data: pure functions, and the value that holds their results."""

import math
import sys
import warnings
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ddu.errors import CalibrationWarning, InputError
from ddu.measures import entropy
from ddu.types import Verdict

# Inverse temperatures outside this range, for logits of unit spread, mean that the data does not determine one
_LOWEST, _HIGHEST = 1e-4, 1e4

_VERDICTS = np.array([Verdict.IN_DISTRIBUTION, Verdict.AMBIGUOUS, Verdict.OUT_OF_DISTRIBUTION], dtype=object)

ThresholdRule = Literal["conformal", "training_quantile"]


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


def conformal_threshold(log_density: Tensor, false_alarm_rate: float) -> float:
    """The threshold below which a new in-distribution input falls with at most the given probability.

    Of n held-out log-densities it is the k-th smallest with k = ⌊rate (n + 1)⌋: an exchangeable new one is smaller than
    that with probability at most k / (n + 1) ≤ rate, whatever the distribution.

    >>> conformal_threshold(torch.arange(1.0, 200.0), 0.01)
    2.0
    """
    rank = conformal_rank(len(log_density), false_alarm_rate)
    return float(log_density.double().kthvalue(rank).values)


def conformal_rank(samples: int, false_alarm_rate: float) -> int:
    """Which of so many held-out log-densities in ascending order is the threshold, counted from 1.

    >>> conformal_rank(199, 0.01)
    2
    """
    _check_rate(false_alarm_rate)
    # The rate as it was written: 0.07 (99 + 1) is 7, not 7.000000000000001
    rank = math.floor(Fraction(str(false_alarm_rate)) * (samples + 1))
    if rank < 1:
        needed = math.ceil(1 / Fraction(str(false_alarm_rate))) - 1
        raise InputError(
            f"A false-alarm rate of {false_alarm_rate:g} needs at least {needed} held-out samples, there are "
            f"{samples}: hold out more, or accept a rate of {math.ceil(1e4 / (samples + 1)) / 1e4:g}."
        )
    return rank


def training_quantile(log_density: Tensor, false_alarm_rate: float) -> float:
    """The paper's threshold: the plain quantile of the log-densities, meant for those of the training data.

    >>> training_quantile(torch.arange(0.0, 101.0), 0.01)
    1.0
    """
    _check_rate(false_alarm_rate)
    # torch.quantile refuses more than 2²⁴ values; numpy does not
    return float(np.quantile(log_density.double().cpu().numpy(), false_alarm_rate))


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


@dataclass(frozen=True)
class Calibration:
    """Temperature and thresholds, set on held-out data.

    Attributes:
        temperature: Divides the logits.
        epistemic_threshold: Epistemic score above which an input is out of distribution.
        entropy_threshold: Entropy above which one in distribution is ambiguous.
        false_alarm_rate: The rate that the epistemic threshold was set for.
    """

    temperature: float
    epistemic_threshold: float
    entropy_threshold: float
    false_alarm_rate: float

    def __post_init__(self) -> None:
        largest = sys.float_info.max
        for name, wanted, least in (
            ("temperature", "a finite float above 0", math.ulp(0.0)),
            ("epistemic_threshold", "a finite float", -largest),
            ("entropy_threshold", "a finite float", -largest),
        ):
            value = getattr(self, name)
            if not isinstance(value, float | int) or not least <= value <= largest:
                raise InputError(f"The '{name}' of a calibration must be {wanted}. Got {value!r} instead.")
            object.__setattr__(self, name, float(value))
        _check_rate(self.false_alarm_rate)

    def verdicts(self, epistemic: Tensor, aleatoric: Tensor) -> np.ndarray:
        """A `Verdict` for each input: the epistemic score first, as entropy means something for known inputs only."""
        unknown = epistemic.double() > self.epistemic_threshold
        ambiguous = aleatoric.double() > self.entropy_threshold
        return _VERDICTS[torch.where(unknown, 2, ambiguous.long()).cpu().numpy()]


def calibrate(
    logits: Tensor,
    epistemic: Tensor,
    labels: Tensor,
    false_alarm_rate: float = 0.01,
    threshold: ThresholdRule = "conformal",
) -> Calibration:
    """Temperature and thresholds from the logits, epistemic scores and labels of held-out data.

    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> calibrate(logits, torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, 0, 0, 1]), 0.4).epistemic_threshold
    3.0
    """
    rules = {"conformal": conformal_threshold, "training_quantile": training_quantile}
    if threshold not in rules:
        raise InputError(f"The 'threshold' must be one of {', '.join(map(repr, rules))}. Got {threshold!r} instead.")
    epistemic_threshold = -rules[threshold](-epistemic, false_alarm_rate)
    temperature = fit_temperature(logits, labels)
    return Calibration(
        temperature,
        epistemic_threshold,
        entropy_threshold(entropy(logits / temperature), logits.argmax(1) == labels),
        float(false_alarm_rate),
    )


def _check_rate(rate: float) -> None:
    if not isinstance(rate, float | int) or not 0 < rate < 1:
        raise InputError(f"The false-alarm rate must be a float between 0 and 1. Got {rate!r} instead.")
