"""Is what is left right, if the most uncertain predictions are refused?"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddu.errors import InputError
from ddu.metrics._checks import check_share, count_for, without_nan


@dataclass(frozen=True)
class RiskCoverage:
    """How often a classifier that answers only its surest predictions is wrong.

    Attributes:
        coverage: The share of predictions answered, k / n for k = 1 .. n, (n,).
        risk: The share of those that are wrong, (n,).
    """

    coverage: Tensor
    risk: Tensor

    @property
    def accuracy(self) -> Tensor:
        """The share of answers that are right, (n,)."""
        return 1 - self.risk

    @property
    def area(self) -> float:
        """The mean risk over all coverages (AURC); smaller is better."""
        return float(self.risk.mean())


def risk_coverage(uncertainty: Tensor, correct: Tensor) -> RiskCoverage:
    """The risk-coverage curve: predictions are answered from the least uncertain on.

    Equal uncertainties are answered in a random order, of which the curve is the mean: it does not depend on the order
    of the samples.

    Args:
        uncertainty: Larger is refused earlier, (n,).
        correct: Whether each prediction is right, (n,).

    >>> curve = risk_coverage(torch.tensor([0.1, 0.2, 0.9, 0.3]), torch.tensor([True, True, False, True]))
    >>> curve.risk.tolist(), curve.area
    ([0.0, 0.0, 0.0, 0.25], 0.0625)
    """
    if uncertainty.ndim != 1 or uncertainty.shape != correct.shape or len(uncertainty) == 0:
        raise InputError(
            f"Risk and coverage need an uncertainty for each prediction, at least one. Got {tuple(uncertainty.shape)} "
            f"uncertainties and {tuple(correct.shape)} predictions."
        )
    uncertainty = without_nan("Risk", "uncertainties", uncertainty)
    wrong = 1 - without_nan("Risk", "correctness", correct)
    # Within a group of equal uncertainties the expected number of mistakes grows evenly
    _, group, size = uncertainty.unique(return_inverse=True, return_counts=True)
    mistakes = torch.zeros(len(size), dtype=torch.float64).index_add_(0, group, wrong)
    answered = torch.arange(1, len(wrong) + 1, dtype=torch.float64)
    risk = (mistakes / size).repeat_interleave(size).cumsum(0) / answered
    return RiskCoverage(coverage=answered / len(wrong), risk=risk)


def selective_accuracy(uncertainty: Tensor, correct: Tensor, coverages: Sequence[float]) -> list[float]:
    """The accuracy on the least uncertain share of the predictions, for each coverage.

    Of n predictions the ⌈coverage × n⌉ surest are answered; ties as in `risk_coverage`.

    >>> uncertainty, correct = torch.tensor([0.1, 0.2, 0.9, 0.3]), torch.tensor([True, True, False, True])
    >>> selective_accuracy(uncertainty, correct, [0.75, 1.0])
    [1.0, 0.75]
    """
    curve = risk_coverage(uncertainty, correct)
    for coverage in coverages:
        check_share("selective_accuracy", "coverage", coverage)
    return [float(curve.accuracy[count_for(coverage, len(correct)) - 1]) for coverage in coverages]
