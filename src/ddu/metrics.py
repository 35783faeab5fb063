"""How good are scores and probabilities? Out of distribution is the positive class; larger means more uncertain."""

import torch
from torch import Tensor

from ddu.errors import InputError


def auroc(negative: Tensor, positive: Tensor) -> float:
    """Chance that a positive sample scores above a negative one, ties counting half (area under the ROC curve).

    Args:
        negative: Scores of in-distribution samples, (n,).
        positive: Scores of out-of-distribution samples, (m,).

    >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    0.875
    """
    if len(negative) == 0 or len(positive) == 0:
        raise InputError(
            f"AUROC needs scores of both kinds. Got {len(negative)} negative and {len(positive)} positive."
        )
    negative, positive = negative.flatten().double(), positive.flatten().double()
    if torch.isnan(negative).any() or torch.isnan(positive).any():
        raise InputError("AUROC of NaN scores has no meaning: find where they come from.")
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive, right=False)
    not_above = torch.searchsorted(ordered, positive, right=True)
    return float((below + not_above).double().mean() / (2 * len(negative)))


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of samples whose most likely class is the label.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    0.5
    """
    return float((probs.argmax(1) == labels).double().mean())


def negative_log_likelihood(logits: Tensor, labels: Tensor) -> float:
    """Mean of -log p(label) in nats."""
    return float(torch.nn.functional.cross_entropy(logits.double(), labels))


def expected_calibration_error(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Mean distance between confidence and accuracy over equal-width bins of confidence, weighted by their samples.

    Bins are closed on the right: (i / n, (i + 1) / n].

    >>> probs = torch.tensor([[0.75, 0.25]]).repeat(4, 1)
    >>> expected_calibration_error(probs, torch.tensor([0, 0, 0, 1]))  # right three times out of four
    0.0
    """
    confidence, predicted = probs.double().max(1)
    correct = (predicted == labels).double()
    # Compared with the edges themselves: confidence × bins may round across one
    edges = torch.arange(1, bins, dtype=torch.float64, device=probs.device) / bins
    index = torch.searchsorted(edges, confidence)
    gap = torch.zeros(bins, dtype=torch.float64, device=probs.device).index_add_(0, index, correct - confidence)
    return float(gap.abs().sum() / len(labels))
