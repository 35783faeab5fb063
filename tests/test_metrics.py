"""Metrics against scikit-learn and sums written out."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from torch import Tensor

from ddu.errors import InputError
from ddu.metrics import accuracy, auroc, expected_calibration_error, negative_log_likelihood

# Few distinct values, so that ties are the rule
SCORES = st.lists(st.sampled_from([-1e300, -2.0, 0.0, 0.5, 0.5000000000000001, 3.0, 1e300]), min_size=1, max_size=30)


@given(negative=SCORES, positive=SCORES)
@settings(derandomize=True, deadline=None, max_examples=80)
def test_auroc_equals_scikit_learns_with_ties(negative: list[float], positive: list[float]) -> None:
    left, right = torch.tensor(negative, dtype=torch.float64), torch.tensor(positive, dtype=torch.float64)
    truth = np.repeat([0, 1], [len(negative), len(positive)])
    assert auroc(left, right) == pytest.approx(roc_auc_score(truth, negative + positive), abs=1e-12)
    assert auroc(right, left) == pytest.approx(1 - auroc(left, right), abs=1e-12)
    assert auroc(-left, -right) == pytest.approx(1 - auroc(left, right), abs=1e-12)


def test_auroc_of_many_scores_and_infinite_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    negative, positive = torch.randn(3000, generator=generator), torch.randn(2000, generator=generator) + 1
    truth = np.repeat([0, 1], [3000, 2000])
    expected = roc_auc_score(truth, torch.cat([negative, positive]).numpy())
    assert auroc(negative, positive) == pytest.approx(expected, abs=1e-12)
    assert auroc(torch.tensor([-torch.inf, 0.0]), torch.tensor([torch.inf])) == 1.0
    assert auroc(torch.tensor([torch.inf]), torch.tensor([torch.inf])) == 0.5


def test_auroc_without_scores_of_both_kinds_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        auroc(torch.tensor([1.0, 2.0]), torch.tensor([]))
    assert str(caught.value) == "AUROC needs scores of both kinds. Got 2 negative and 0 positive."


def test_auroc_of_nan_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        auroc(torch.tensor([1.0, torch.nan]), torch.tensor([1.0]))
    assert str(caught.value) == "AUROC of NaN scores has no meaning: find where they come from."


def predictions(count: int, classes: int, scale: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (count,), generator=generator)


@pytest.mark.parametrize("classes", [2, 10])
def test_accuracy_and_likelihood_equal_scikit_learns(classes: int) -> None:
    logits, labels = predictions(200, classes)
    probs = logits.softmax(1)
    assert accuracy(probs, labels) == pytest.approx(accuracy_score(labels, probs.argmax(1)))
    expected = log_loss(labels, probs.numpy(), labels=np.arange(classes))
    assert negative_log_likelihood(logits, labels) == pytest.approx(expected, rel=1e-9)


def test_likelihood_of_extreme_logits_is_exact() -> None:
    logits = torch.tensor([[1e4, 0.0], [0.0, -1e4]])
    assert negative_log_likelihood(logits, torch.tensor([1, 0])) == 5000.0


def calibration_error_by_bins(probs: np.ndarray, labels: np.ndarray, bins: int) -> float:
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    error = 0.0
    for i in range(bins):
        inside = (confidence > i / bins) & (confidence <= (i + 1) / bins)
        if inside.any():
            error += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    return error


@pytest.mark.parametrize("bins", [1, 10, 15, 100])
@pytest.mark.parametrize("classes", [2, 10])
def test_calibration_error_equals_the_sum_over_bins(bins: int, classes: int) -> None:
    logits, labels = predictions(500, classes)
    probs = logits.softmax(1)
    expected = calibration_error_by_bins(probs.numpy(), labels.numpy(), bins)
    assert expected_calibration_error(probs, labels, bins) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("bins", [10, 15, 25, 49])
def test_a_confidence_on_a_boundary_belongs_to_the_bin_below(bins: int) -> None:
    # Right where on the boundary and wrong just above it: in one bin they would balance
    edges = torch.arange((bins + 1) // 2 + 1, bins, dtype=torch.float64) / bins
    confidence = torch.cat([edges, torch.nextafter(edges, torch.ones_like(edges))])
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    labels = torch.arange(2).repeat_interleave(len(edges))
    expected = calibration_error_by_bins(probs.numpy(), labels.numpy(), bins)
    assert expected_calibration_error(probs, labels, bins) == pytest.approx(expected, rel=1e-9)


def test_calibration_error_of_literal_cases() -> None:
    certain = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert expected_calibration_error(certain, torch.tensor([0, 0])) == 0.0
    assert expected_calibration_error(certain, torch.tensor([1, 1])) == 1.0
    assert expected_calibration_error(certain, torch.tensor([0, 1])) == 0.5
