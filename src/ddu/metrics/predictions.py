"""Are predicted probabilities right, and as sure as they should be?"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ddu.errors import InputError, LabelError
from ddu.metrics._checks import without_nan


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of samples whose most likely class is the label.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    0.5
    """
    probs, labels = _checked("Accuracy", "probabilities", probs, labels)
    return float((probs.argmax(1) == labels).double().mean())


def negative_log_likelihood(logits: Tensor, labels: Tensor) -> float:
    """Mean of -log p(label) in nats.

    >>> negative_log_likelihood(torch.zeros(3, 4), torch.tensor([0, 1, 3]))  # log 4
    1.386294361119890...
    """
    logits, labels = _checked("Negative log-likelihood", "logits", logits, labels)
    return float(torch.nn.functional.cross_entropy(logits, labels))


def brier_score(probs: Tensor, labels: Tensor) -> float:
    """Mean of Σ_c (p_c - [c = label])², from 0 to 2: the sum over all classes, twice the usual value for two.

    >>> brier_score(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
    0.125
    """
    probs, labels = _checked("The Brier score", "probabilities", probs, labels)
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
    probs, labels = _checked("Calibration", "probabilities", probs, labels)
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


def _checked(metric: str, what: str, predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    if predictions.ndim != 2 or labels.shape != predictions.shape[:1] or len(labels) == 0:
        raise InputError(
            f"{metric} needs {what} of shape (sample, class) and a label for each sample, at least one. "
            f"Got {tuple(predictions.shape)} and {tuple(labels.shape)}."
        )
    predictions, labels = without_nan(metric, what, predictions), labels.detach().cpu().long()
    if labels.min() < 0 or labels.max() >= predictions.shape[1]:
        raise LabelError(
            f"{metric} has {what} of {predictions.shape[1]} classes, and labels from {int(labels.min())} to "
            f"{int(labels.max())}: they must be from 0 to {predictions.shape[1] - 1}."
        )
    return predictions, labels
