"""Metrics of predictions against scikit-learn, torchmetrics and sums written out."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from ddu.errors import InputError, LabelError
from ddu.metrics import (
    accuracy,
    brier_score,
    calibration_bins,
    expected_calibration_error,
    negative_log_likelihood,
)


def predictions(count: int, classes: int, scale: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (count,), generator=generator)


@pytest.mark.parametrize("classes", [2, 10])
def test_accuracy_likelihood_and_brier_score_equal_scikit_learns(classes: int) -> None:
    logits, labels = predictions(200, classes)
    probs = logits.softmax(1)
    assert accuracy(probs, labels) == pytest.approx(accuracy_score(labels, probs.argmax(1)))
    expected = log_loss(labels, probs.numpy(), labels=np.arange(classes))
    assert negative_log_likelihood(logits, labels) == pytest.approx(expected, rel=1e-9)
    expected = brier_score_loss(labels, probs.numpy(), labels=np.arange(classes), scale_by_half=False)
    assert brier_score(probs, labels) == pytest.approx(expected, rel=1e-9)


def test_likelihood_of_extreme_logits_is_exact() -> None:
    logits = torch.tensor([[1e4, 0.0], [0.0, -1e4]])
    assert negative_log_likelihood(logits, torch.tensor([1, 0])) == 5000.0


def test_the_brier_score_goes_from_zero_to_two() -> None:
    certain = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert brier_score(certain, torch.tensor([0, 0])) == 0.0
    assert brier_score(certain, torch.tensor([1, 1])) == 2.0


def calibration_error_by_bins(probs: np.ndarray, labels: np.ndarray, edges: np.ndarray) -> float:
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    error = 0.0
    for low, high in pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            error += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    return error


@pytest.mark.parametrize("bins", [1, 10, 15, 100])
@pytest.mark.parametrize("classes", [2, 10])
def test_calibration_error_equals_the_sum_over_bins_and_torchmetrics(bins: int, classes: int) -> None:
    logits, labels = predictions(500, classes)
    probs = logits.softmax(1)
    ours = expected_calibration_error(probs, labels, bins)
    expected = calibration_error_by_bins(probs.numpy(), labels.numpy(), np.arange(bins + 1) / bins)
    assert ours == pytest.approx(expected, rel=1e-9)
    # torchmetrics bins in single precision
    theirs = multiclass_calibration_error(probs, labels, num_classes=classes, n_bins=bins)
    assert ours == pytest.approx(float(theirs), abs=1e-6)


@pytest.mark.parametrize("bins", [10, 15, 25, 49])
def test_a_confidence_on_a_boundary_belongs_to_the_bin_below(bins: int) -> None:
    # Right where on the boundary and wrong just above it: in one bin they would balance
    edges = torch.arange((bins + 1) // 2 + 1, bins, dtype=torch.float64) / bins
    confidence = torch.cat([edges, torch.nextafter(edges, torch.ones_like(edges))])
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    labels = torch.arange(2).repeat_interleave(len(edges))
    expected = calibration_error_by_bins(probs.numpy(), labels.numpy(), np.arange(bins + 1) / bins)
    assert expected_calibration_error(probs, labels, bins) == pytest.approx(expected, rel=1e-9)


def test_calibration_error_of_literal_cases() -> None:
    certain = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert expected_calibration_error(certain, torch.tensor([0, 0])) == 0.0
    assert expected_calibration_error(certain, torch.tensor([1, 1])) == 1.0
    assert expected_calibration_error(certain, torch.tensor([0, 1])) == 0.5


@pytest.mark.parametrize("bins", [1, 7, 15])
@pytest.mark.parametrize("count", [105, 500, 11])
def test_adaptive_bins_hold_equally_many_samples(bins: int, count: int) -> None:
    logits, labels = predictions(count, 10)
    probs = logits.softmax(1)
    binned = calibration_bins(probs, labels, bins, adaptive=True)
    assert int(binned.count.sum()) == count
    assert int(binned.count.max() - binned.count.min()) <= 1
    # Samples by confidence, dealt out in consecutive runs of those sizes
    confidence, predicted = probs.max(1)
    order = confidence.argsort()
    runs = order.split(binned.count.tolist())
    gaps = [abs(float((confidence[i] - (predicted == labels)[i].double()).sum())) for i in runs]
    expected = sum(gaps) / count
    assert expected_calibration_error(probs, labels, bins, adaptive=True) == pytest.approx(expected, rel=1e-9)


def test_equal_confidences_share_an_adaptive_bin_whatever_their_order() -> None:
    confidence = torch.tensor([0.6] * 8 + [0.9] * 2, dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 0, 1])
    binned = calibration_bins(probs, labels, bins=5, adaptive=True)
    assert binned.count.tolist() == [8, 0, 0, 0, 2]
    expected = (8 * abs(5 / 8 - 0.6) + 2 * abs(1 / 2 - 0.9)) / 10
    for order in (torch.arange(10), torch.arange(10).flip(0), torch.tensor([9, 0, 7, 3, 1, 8, 2, 6, 4, 5])):
        error = expected_calibration_error(probs[order], labels[order], bins=5, adaptive=True)
        assert error == pytest.approx(expected, rel=1e-9)


def test_bins_carry_what_a_reliability_diagram_draws() -> None:
    confidence = torch.tensor([0.55, 0.65, 0.95, 1.0], dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    binned = calibration_bins(probs, torch.tensor([0, 1, 0, 0]), bins=5)
    assert binned.edges.tolist() == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert binned.count.tolist() == [0, 0, 1, 1, 2]
    np.testing.assert_allclose(binned.confidence, [np.nan, np.nan, 0.55, 0.65, 0.975])
    np.testing.assert_allclose(binned.accuracy, [np.nan, np.nan, 1.0, 0.0, 1.0])


METRICS = [
    (accuracy, "Accuracy", "probabilities"),
    (negative_log_likelihood, "Negative log-likelihood", "logits"),
    (brier_score, "The Brier score", "probabilities"),
    (expected_calibration_error, "Calibration", "probabilities"),
]


@pytest.mark.parametrize(("metric", "name", "what"), METRICS)
def test_nan_wrong_shapes_and_wrong_labels_are_refused(metric, name: str, what: str) -> None:
    values = torch.full((3, 2), 0.5)
    with pytest.raises(InputError) as caught:
        metric(values.index_fill(0, torch.tensor([1]), torch.nan), torch.zeros(3).long())
    assert str(caught.value) == f"{name} of NaN {what} has no meaning: find where they come from."
    with pytest.raises(InputError) as caught:
        metric(values, torch.zeros(2).long())
    assert str(caught.value) == (
        f"{name} needs {what} of shape (sample, class) and a label for each sample, at least one. Got (3, 2) and (2,)."
    )
    with pytest.raises(LabelError) as caught:
        metric(values, torch.tensor([0, 1, 2]))
    assert str(caught.value) == f"{name} has {what} of 2 classes, and labels from 0 to 2: they must be from 0 to 1."


def test_calibration_without_bins_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        expected_calibration_error(torch.full((3, 2), 0.5), torch.zeros(3).long(), bins=0)
    assert str(caught.value) == "Calibration needs at least one bin. Got 0."
