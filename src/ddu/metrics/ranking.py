"""Does a score put one kind of sample above the other? The positive kind is the one that should score higher."""

import torch
from torch import Tensor

from ddu.errors import InputError
from ddu.metrics._checks import check_share, count_for, without_nan


def auroc(negative: Tensor, positive: Tensor) -> float:
    """Chance that a positive sample scores above a negative one, ties counting half (area under the ROC curve).

    Args:
        negative: Scores of in-distribution samples, (n,).
        positive: Scores of out-of-distribution samples, (m,).

    >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    0.875
    """
    negative, positive = _checked("AUROC", negative, positive)
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
    negative, positive = _checked("Average precision", negative, positive)
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
    negative, positive = _checked("FPR", negative, positive)
    check_share("fpr_at_tpr", "tpr", tpr)
    threshold = positive.sort(descending=True).values[count_for(tpr, len(positive)) - 1]
    return float((negative >= threshold).double().mean())


def fpr_at_id_kept(negative: Tensor, positive: Tensor, kept: float = 0.95) -> float:
    """Share of positives that pass by the lowest threshold that still lets `kept` of the negatives pass.

    With uncertainties, this is the share of out-of-distribution samples that go unnoticed when 95 % of the
    in-distribution samples are kept: FPR95 where in distribution counts as positive. It equals
    `fpr_at_tpr(-positive, -negative, kept)`.

    Args:
        negative: Scores of in-distribution samples, (n,).
        positive: Scores of out-of-distribution samples, (m,).
        kept: The share of negatives to be kept, in (0, 1].

    >>> fpr_at_id_kept(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([2.5, 4.0]))
    0.5
    """
    negative, positive = _checked("FPR", negative, positive)
    check_share("fpr_at_id_kept", "kept", kept)
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
    negative, positive = _checked("The ROC curve", negative, positive)
    thresholds = torch.cat([negative, positive]).unique().flip(0)
    start = torch.zeros(1, dtype=torch.float64)
    false = _count_flagged(negative, thresholds) / len(negative)
    true = _count_flagged(positive, thresholds) / len(positive)
    return torch.cat([start, false]), torch.cat([start, true])


def _count_flagged(scores: Tensor, thresholds: Tensor) -> Tensor:
    """How many scores are at each threshold or above."""
    return (len(scores) - torch.searchsorted(scores.sort().values, thresholds)).double()


def _checked(metric: str, negative: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    if negative.numel() == 0 or positive.numel() == 0:
        raise InputError(
            f"{metric} needs scores of both kinds. Got {negative.numel()} negative and {positive.numel()} positive."
        )
    return without_nan(metric, "scores", negative.flatten()), without_nan(metric, "scores", positive.flatten())
