"""How good are scores and probabilities? Out of distribution is the positive class; larger means more uncertain.

Pure functions of tensors, worked out in float64 and returned as plain floats:

- ranking: does the score order the two kinds? `auroc`, `average_precision`, `fpr_at_tpr`, `fpr_at_id_kept`, `roc_curve`
- their standard errors: `auroc_standard_error`, `fpr_standard_error`
- predictions: are the probabilities right? `accuracy`, `negative_log_likelihood`, `brier_score`,
  `expected_calibration_error`, `calibration_bins`
- selection: is what is left right, if the most uncertain is refused? `risk_coverage`, `selective_accuracy`
- several seeds as one figure: `mean_and_standard_error`
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from ddu.errors import InputError, LabelError

# Of the bootstrap of `fpr_standard_error`
_DRAWS = 10_000


def auroc(negative: Tensor, positive: Tensor) -> float:
    """Chance that a positive sample scores above a negative one, ties counting half (area under the ROC curve).

    Args:
        negative: Scores of in-distribution samples, (n,).
        positive: Scores of out-of-distribution samples, (m,).

    >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    0.875
    """
    negative, positive = _checked_scores("AUROC", negative, positive)
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive, right=False)
    not_above = torch.searchsorted(ordered, positive, right=True)
    return float((below + not_above).double().mean() / (2 * len(negative)))


def average_precision(negative: Tensor, positive: Tensor) -> float:
    """Area under the precision-recall curve, as the step sum Σ (Rₖ - Rₖ₋₁) Pₖ over the distinct scores.

    It depends on which kind is called positive and on how many there are of each, so say which was meant, with
    uncertainties u that are larger out of distribution:

        aupr_out = average_precision(u_in, u_out)      # out of distribution is positive
        aupr_in = average_precision(-u_out, -u_in)     # in distribution is positive

    Args:
        negative: Scores of the kind that should score lower, (n,).
        positive: Scores of the kind that should score higher, (m,).

    >>> average_precision(torch.tensor([0.0, 0.5, 1.5]), torch.tensor([0.1, 2.0]))
    0.75
    """
    negative, positive = _checked_scores("Average precision", negative, positive)
    # Each positive adds 1/m to the recall, at the precision of the threshold that is its own score
    true, false = _count_flagged(positive, positive), _count_flagged(negative, positive)
    return float((true / (true + false)).mean())


def fpr_at_tpr(negative: Tensor, positive: Tensor, tpr: float = 0.95) -> float:
    """Share of negatives that are flagged by the highest threshold that still flags `tpr` of the positives.

    With uncertainties, this is the false-alarm rate on in-distribution samples when 95 % of the out-of-distribution
    samples are found. A sample is flagged if its score is at the threshold or above; nothing is interpolated. The other
    quantity that goes by the name FPR95 is `fpr_at_id_kept`.

    Args:
        negative: Scores of in-distribution samples, (n,).
        positive: Scores of out-of-distribution samples, (m,).
        tpr: The share of positives to be found, in (0, 1].

    >>> fpr_at_tpr(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([2.5, 4.0]))
    0.25
    """
    negative, positive = _checked_scores("FPR", negative, positive)
    _check_share("fpr_at_tpr", "tpr", tpr)
    threshold = positive.sort(descending=True).values[_count_for(tpr, len(positive)) - 1]
    return float((negative >= threshold).double().mean())


def fpr_at_id_kept(negative: Tensor, positive: Tensor, kept: float = 0.95) -> float:
    """Share of positives that pass by the lowest threshold that still lets `kept` of the negatives pass.

    With uncertainties, this is the share of out-of-distribution samples that go unnoticed when 95 % of the
    in-distribution samples are kept: FPR95 where in distribution counts as positive. It equals
    `fpr_at_tpr(-positive, -negative, kept)`, with the share of negatives to be kept in (0, 1].

    >>> fpr_at_id_kept(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([2.5, 4.0]))
    0.5
    """
    negative, positive = _checked_scores("FPR", negative, positive)
    _check_share("fpr_at_id_kept", "kept", kept)
    return fpr_at_tpr(-positive, -negative, kept)


def roc_curve(negative: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """The ROC curve: a point for each distinct score as threshold, from (0, 0) to (1, 1).

    Args:
        negative: Scores of in-distribution samples, (n,).
        positive: Scores of out-of-distribution samples, (m,).

    Returns:
        False and true positive rates, (point,) each.

    >>> false, true = roc_curve(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    >>> false.tolist(), true.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    negative, positive = _checked_scores("The ROC curve", negative, positive)
    thresholds = torch.cat([negative, positive]).unique().flip(0)
    start = torch.zeros(1, dtype=torch.float64)
    false = _count_flagged(negative, thresholds) / len(negative)
    true = _count_flagged(positive, thresholds) / len(positive)
    return torch.cat([start, false]), torch.cat([start, true])


def auroc_standard_error(negative: Tensor, positive: Tensor) -> float:
    """The standard error of `auroc` (DeLong, DeLong and Clarke-Pearson, 1988).

    With V(x) the share of the other kind that a sample x is ranked right against, ties counting half, the variance is
    var V(positive) / m + var V(negative) / n.

    Args:
        negative: Scores of in-distribution samples, (n,).
        positive: Scores of out-of-distribution samples, (m,).

    >>> round(auroc_standard_error(torch.tensor([0.0, 1.0, 3.0]), torch.tensor([2.0, 4.0])), 4)
    0.2357
    """
    negative, positive = _checked_scores("AUROC", negative, positive)
    parts = (_share_below(negative, positive), _share_below(-positive, -negative))
    # A single sample says nothing about the spread of its kind; NaN would, so it counts as none
    return sum(float(part.var()) / len(part) for part in parts if len(part) > 1) ** 0.5


def fpr_standard_error(negative: Tensor, positive: Tensor, tpr: float = 0.95) -> float:
    """The standard error of `fpr_at_tpr`, by the bootstrap of both kinds.

    Drawing m positives again and taking the k-th largest gives the one with the rank ⌈m B⌉, B ~ Beta(k, m - k + 1). Of
    n negatives drawn again, a binomial number is above it, with the share F of all negatives. So nothing is drawn but
    B, and the variance is var F + mean F (1 - F) / n.

    Args:
        negative: Scores of in-distribution samples, (n,).
        positive: Scores of out-of-distribution samples, (m,).
        tpr: The share of positives to be found, in (0, 1].
    """
    negative, positive = _checked_scores("FPR", negative, positive)
    _check_share("fpr_standard_error", "tpr", tpr)
    n, m, k = len(negative), len(positive), _count_for(tpr, len(positive))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        beta = torch.distributions.Beta(torch.tensor(float(k)).double(), torch.tensor(float(m - k + 1)).double())
        ranks = (m * beta.sample((_DRAWS,))).ceil().clamp(1, m).long()
    thresholds = positive.sort(descending=True).values[ranks - 1]
    shares = (n - torch.searchsorted(negative.sort().values, thresholds)).double() / n
    return float(shares.var() + (shares * (1 - shares)).mean() / n) ** 0.5


def _share_below(others: Tensor, scores: Tensor) -> Tensor:
    """For each score, the share of the others that are below it, ties counting half."""
    ordered = others.sort().values
    below, not_above = (torch.searchsorted(ordered, scores, right=right) for right in (False, True))
    return (below + not_above).double() / (2 * len(others))


def _count_flagged(scores: Tensor, thresholds: Tensor) -> Tensor:
    """How many scores are at each threshold or above."""
    return (len(scores) - torch.searchsorted(scores.sort().values, thresholds)).double()


def _checked_scores(metric: str, negative: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    if negative.numel() == 0 or positive.numel() == 0:
        raise InputError(
            f"{metric} needs scores of both kinds. Got {negative.numel()} negative and {positive.numel()} positive."
        )
    return _without_nan(metric, "scores", negative.flatten()), _without_nan(metric, "scores", positive.flatten())


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of samples whose most likely class is the label.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    0.5
    """
    probs, labels = _checked_predictions("Accuracy", "probabilities", probs, labels)
    return float((probs.argmax(1) == labels).double().mean())


def negative_log_likelihood(logits: Tensor, labels: Tensor) -> float:
    """Mean of -log p(label) in nats.

    >>> negative_log_likelihood(torch.zeros(3, 4), torch.tensor([0, 1, 3]))  # log 4
    1.386294361119890...
    """
    logits, labels = _checked_predictions("Negative log-likelihood", "logits", logits, labels)
    return float(torch.nn.functional.cross_entropy(logits, labels))


def brier_score(probs: Tensor, labels: Tensor) -> float:
    """Mean of Σ_c (p_c - [c = label])², from 0 to 2: the sum over all classes, twice the usual value for two.

    >>> brier_score(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
    0.125
    """
    probs, labels = _checked_predictions("The Brier score", "probabilities", probs, labels)
    truth = torch.nn.functional.one_hot(labels, probs.shape[1])
    return float((probs - truth).square().sum(1).mean())


@dataclass(frozen=True)
class CalibrationBins:
    """Samples in bins by their confidence, the probability of the class predicted.

    Attributes:
        edges: Bin i holds confidences in (edges[i], edges[i + 1]], (bin + 1,).
        count: Samples in each bin, (bin,).
        confidence: Their mean confidence, (bin,); NaN in an empty bin.
        accuracy: The share of them predicted right, (bin,); NaN in an empty bin.
    """

    edges: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor


def calibration_bins(probs: Tensor, labels: Tensor, bins: int = 15, *, adaptive: bool = False) -> CalibrationBins:
    """What `expected_calibration_error` averages, and a reliability diagram draws.

    Args:
        probs: Class probabilities, (sample, class).
        labels: True classes, (sample,).
        bins: The number of bins.
        adaptive: Edges at the quantiles of the confidences, so that bins have equally many samples, instead of equal
            widths. Equal confidences always share a bin, so some bins may be larger and others empty.
    """
    probs, labels = _checked_predictions("Calibration", "probabilities", probs, labels)
    if bins < 1:
        raise InputError(f"Calibration needs at least one bin. Got {bins}.")
    confidence, predicted = probs.max(1)
    edges = _equal_mass_edges(confidence, bins) if adaptive else torch.arange(bins + 1).double() / bins
    # Compared with the edges themselves: confidence × bins may round across one
    index = torch.searchsorted(edges[1:-1].contiguous(), confidence)

    def total(values: Tensor) -> Tensor:
        return torch.zeros(bins, dtype=torch.float64).index_add_(0, index, values)

    count = total(torch.ones_like(confidence))
    correct = (predicted == labels).double()
    return CalibrationBins(edges, count.long(), total(confidence) / count, total(correct) / count)


def expected_calibration_error(probs: Tensor, labels: Tensor, bins: int = 15, *, adaptive: bool = False) -> float:
    """Mean distance between confidence and accuracy over bins of confidence, weighted by their samples.

    Bins have equal widths and are closed on the right, (i / n, (i + 1) / n]. With `adaptive` they have equally many
    samples instead: see `calibration_bins`.

    >>> probs = torch.tensor([[0.75, 0.25]]).repeat(4, 1)
    >>> expected_calibration_error(probs, torch.tensor([0, 0, 0, 1]))  # right three times out of four
    0.0
    """
    binned = calibration_bins(probs, labels, bins, adaptive=adaptive)
    filled = binned.count > 0
    gap = (binned.accuracy - binned.confidence).abs()
    return float((binned.count * gap)[filled].sum() / len(labels))


def _equal_mass_edges(confidence: Tensor, bins: int) -> Tensor:
    # The last of bin i is the ⌈i n / bins⌉-th smallest confidence
    ends = (torch.arange(1, bins) * len(confidence) + bins - 1) // bins
    inner = confidence.sort().values[ends - 1]
    return torch.cat([torch.zeros(1).double(), inner, torch.ones(1).double()])


def _checked_predictions(metric: str, what: str, predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    if predictions.ndim != 2 or labels.shape != predictions.shape[:1] or len(labels) == 0:
        raise InputError(
            f"{metric} needs {what} of shape (sample, class) and a label for each sample, at least one. "
            f"Got {tuple(predictions.shape)} and {tuple(labels.shape)}."
        )
    predictions, labels = _without_nan(metric, what, predictions), labels.detach().cpu().long()
    if labels.min() < 0 or labels.max() >= predictions.shape[1]:
        raise LabelError(
            f"{metric} has {what} of {predictions.shape[1]} classes, and labels from {int(labels.min())} to "
            f"{int(labels.max())}: they must be from 0 to {predictions.shape[1] - 1}."
        )
    return predictions, labels


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
    uncertainty = _without_nan("Risk", "uncertainties", uncertainty)
    wrong = 1 - _without_nan("Risk", "correctness", correct)
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
        _check_share("selective_accuracy", "coverage", coverage)
    return [float(curve.accuracy[_count_for(coverage, len(correct)) - 1]) for coverage in coverages]


@dataclass(frozen=True)
class MeanAndStandardError:
    """The mean of several runs, and how far it is from the mean of infinitely many.

    Attributes:
        mean: The mean.
        standard_error: The standard error of the mean; None for a single run, which says nothing about the spread.
        count: The number of runs.
    """

    mean: float
    standard_error: float | None
    count: int


def mean_and_standard_error(values: Iterable[float]) -> MeanAndStandardError:
    """The mean of n values and its standard error s / √n, where s² = Σ (v - mean)² / (n - 1).

    >>> mean_and_standard_error([1.0, 2.0, 3.0, 4.0])
    MeanAndStandardError(mean=2.5, standard_error=0.6454972243679028, count=4)
    >>> mean_and_standard_error([0.9])
    MeanAndStandardError(mean=0.9, standard_error=None, count=1)
    """
    sample = _without_nan("The mean", "values", torch.tensor([float(value) for value in values], dtype=torch.float64))
    if len(sample) == 0:
        raise InputError("The mean of no values has no meaning: give at least one.")
    error = float(sample.std(correction=1)) / len(sample) ** 0.5 if len(sample) > 1 else None
    return MeanAndStandardError(float(sample.mean()), error, len(sample))


def _without_nan(metric: str, what: str, values: Tensor) -> Tensor:
    """The values in float64 on the CPU, which has float64 everywhere."""
    values = values.detach().cpu().double()
    if torch.isnan(values).any():
        raise InputError(f"{metric} of NaN {what} has no meaning: find where they come from.")
    return values


def _check_share(metric: str, name: str, share: float) -> None:
    """Refuses what is not in (0, 1]."""
    if not 0 < share <= 1:
        raise InputError(f"The {name} of {metric} must be above 0 and at most 1. Got {share!r} instead.")


def _count_for(share: float, total: int) -> int:
    """The fewest of `total` that are at least this share of it, with the share as it was written.

    >>> _count_for(0.07, 100)  # not 8, although 0.07 * 100 is 7.000000000000001
    7
    """
    return math.ceil(Fraction(str(float(share))) * total)
