"""Metrics against scikit-learn, torchmetrics, scipy and sums written out, with ties, and by their invariances."""

from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score, average_precision_score, brier_score_loss, log_loss, roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from ddu.errors import InputError, LabelError
from ddu.metrics import (
    MeanAndStandardError,
    accuracy,
    auroc,
    average_precision,
    brier_score,
    calibration_bins,
    expected_calibration_error,
    fpr_at_id_kept,
    fpr_at_tpr,
    mean_and_standard_error,
    negative_log_likelihood,
    risk_coverage,
    roc_curve,
    selective_accuracy,
)

# Few distinct values, so that ties are the rule
VALUES = [-1e300, -2.0, 0.0, 0.5, 0.5000000000000001, 3.0, 1e300]
SCORES = st.lists(st.sampled_from(VALUES), min_size=1, max_size=30).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)
SHARES = st.sampled_from([0.05, 0.07, 0.5, 0.9, 0.95, 1.0])
RANKING = [auroc, average_precision, fpr_at_tpr, fpr_at_id_kept]
by_chance = settings(derandomize=True, deadline=None, max_examples=80)


def as_labelled(negative: Tensor, positive: Tensor) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat([0, 1], [len(negative), len(positive)]), torch.cat([negative, positive]).numpy()


def sklearn_fpr_at_tpr(negative: Tensor, positive: Tensor, wanted: float) -> float:
    fpr, tpr, _ = sklearn_roc_curve(*as_labelled(negative, positive), drop_intermediate=False)
    # 0.07 × 100 positives is 7 of them, whichever way the quotient rounds
    return float(fpr[np.argmax(tpr >= wanted - 1e-12)])


@pytest.fixture(scope="module")
def many() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3000, generator=generator), torch.randn(2000, generator=generator) + 1


@given(negative=SCORES, positive=SCORES, share=SHARES)
@by_chance
def test_every_metric_equals_scikit_learns_with_ties(negative: Tensor, positive: Tensor, share: float) -> None:
    truth, scores = as_labelled(negative, positive)
    assert auroc(negative, positive) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    assert average_precision(negative, positive) == pytest.approx(average_precision_score(truth, scores), abs=1e-12)
    expected = sklearn_fpr_at_tpr(negative, positive, share)
    assert fpr_at_tpr(negative, positive, share) == pytest.approx(expected, abs=1e-12)
    fpr, tpr, _ = sklearn_roc_curve(truth, scores, drop_intermediate=False)
    false, true = roc_curve(negative, positive)
    np.testing.assert_allclose(false, fpr, atol=1e-12)
    np.testing.assert_allclose(true, tpr, atol=1e-12)


def test_metrics_of_many_float32_scores_equal_scikit_learns(many: tuple[Tensor, Tensor]) -> None:
    truth, scores = as_labelled(*many)
    assert auroc(*many) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    assert average_precision(*many) == pytest.approx(average_precision_score(truth, scores), abs=1e-12)
    assert fpr_at_tpr(*many) == pytest.approx(sklearn_fpr_at_tpr(*many, 0.95), abs=1e-12)


def test_both_readings_of_aupr_and_of_fpr95_name_their_positive_class(many: tuple[Tensor, Tensor]) -> None:
    known, unknown = many
    truth, scores = as_labelled(known, unknown)
    aupr_in = average_precision_score(1 - truth, -scores)
    assert average_precision(-unknown, -known) == pytest.approx(aupr_in, abs=1e-12)
    assert aupr_in != pytest.approx(average_precision(known, unknown), abs=0.01)
    # By hand: the 95 % least uncertain known samples are kept, and what is no more uncertain passes with them
    threshold = known.sort().values[2849]
    assert fpr_at_id_kept(known, unknown) == pytest.approx(float((unknown <= threshold).double().mean()), abs=1e-12)
    assert fpr_at_id_kept(known, unknown) != pytest.approx(fpr_at_tpr(known, unknown), abs=0.01)


@given(negative=SCORES, positive=SCORES)
@by_chance
def test_swapping_the_kinds_or_the_sign_mirrors_auroc(negative: Tensor, positive: Tensor) -> None:
    mirrored = 1 - auroc(negative, positive)
    assert auroc(positive, negative) == pytest.approx(mirrored, abs=1e-12)
    assert auroc(-negative, -positive) == pytest.approx(mirrored, abs=1e-12)


@pytest.mark.parametrize("metric", RANKING)
@given(negative=SCORES, positive=SCORES, seed=st.integers(0, 99))
@by_chance
def test_neither_order_nor_a_monotone_map_of_the_scores_matters(
    metric, negative: Tensor, positive: Tensor, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    expected = metric(negative, positive)
    shuffled = [scores[torch.randperm(len(scores), generator=generator)] for scores in (negative, positive)]
    assert metric(*shuffled) == pytest.approx(expected, abs=1e-12)
    # Ranks keep every order and every tie
    ranks = torch.searchsorted(torch.tensor(VALUES, dtype=torch.float64), torch.cat([negative, positive])).exp()
    assert metric(ranks[: len(negative)], ranks[len(negative) :]) == pytest.approx(expected, abs=1e-12)


@given(negative=SCORES, positive=SCORES)
@by_chance
def test_the_area_below_the_curve_is_auroc(negative: Tensor, positive: Tensor) -> None:
    false, true = roc_curve(negative, positive)
    assert float(torch.trapezoid(true, false)) == pytest.approx(auroc(negative, positive), abs=1e-12)


def test_scores_apart_and_scores_alike() -> None:
    low, high = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([3.0, 4.0])
    assert [metric(low, high) for metric in RANKING] == [1.0, 1.0, 0.0, 0.0]
    # One score for all: everything is flagged, and precision is the share of positives
    same = [metric(torch.zeros(3), torch.zeros(2)) for metric in RANKING]
    assert same == [0.5, 0.4, 1.0, 1.0]


def test_infinite_scores_are_ranked_like_others() -> None:
    assert auroc(torch.tensor([-torch.inf, 0.0]), torch.tensor([torch.inf])) == 1.0
    assert auroc(torch.tensor([torch.inf]), torch.tensor([torch.inf])) == 0.5
    assert average_precision(torch.tensor([torch.inf]), torch.tensor([torch.inf])) == 0.5
    assert fpr_at_tpr(torch.tensor([-torch.inf, 0.0]), torch.tensor([torch.inf])) == 0.0


def test_integer_and_boolean_scores_are_accepted() -> None:
    for metric in RANKING:
        expected = metric(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0]))
        assert metric(torch.tensor([False, True]), torch.tensor([True, True])) == expected
        assert metric(torch.tensor([0, 1]), torch.tensor([1, 1])) == expected


@pytest.mark.parametrize(
    ("metric", "name"),
    [(auroc, "AUROC"), (average_precision, "Average precision"), (fpr_at_tpr, "FPR"), (roc_curve, "The ROC curve")],
)
def test_nan_and_a_missing_kind_are_refused(metric, name: str) -> None:
    with pytest.raises(InputError) as caught:
        metric(torch.tensor([1.0, 2.0]), torch.tensor([]))
    assert str(caught.value) == f"{name} needs scores of both kinds. Got 2 negative and 0 positive."
    with pytest.raises(InputError) as caught:
        metric(torch.tensor([1.0, torch.nan]), torch.tensor([1.0]))
    assert str(caught.value) == f"{name} of NaN scores has no meaning: find where they come from."


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, 95])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    scores = torch.arange(3.0)
    with pytest.raises(InputError) as caught:
        fpr_at_tpr(scores, scores, share)
    assert str(caught.value) == f"The tpr of fpr_at_tpr must be above 0 and at most 1. Got {share} instead."
    with pytest.raises(InputError) as caught:
        fpr_at_id_kept(scores, scores, share)
    assert str(caught.value) == f"The kept of fpr_at_id_kept must be above 0 and at most 1. Got {share} instead."


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


PREDICTIONS = [
    (accuracy, "Accuracy", "probabilities"),
    (negative_log_likelihood, "Negative log-likelihood", "logits"),
    (brier_score, "The Brier score", "probabilities"),
    (expected_calibration_error, "Calibration", "probabilities"),
]


@pytest.mark.parametrize(("metric", "name", "what"), PREDICTIONS)
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


SAMPLES = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 1e300]), st.booleans()), min_size=1, max_size=25)


def as_tensors(samples: list[tuple[float, bool]]) -> tuple[Tensor, Tensor]:
    uncertainty, correct = zip(*samples, strict=True)
    return torch.tensor(uncertainty, dtype=torch.float64), torch.tensor(correct)


def test_ties_are_answered_in_every_order_alike() -> None:
    samples = [(0.2, True), (0.1, False), (0.2, False), (0.2, True), (0.7, False), (0.7, True)]
    risks = []
    for order in permutations(samples):
        by_uncertainty = sorted(order, key=lambda sample: sample[0])  # stable: the order decides between ties
        wrong = np.cumsum([not right for _, right in by_uncertainty])
        risks.append(wrong / np.arange(1, 7))
    curve = risk_coverage(*as_tensors(samples))
    np.testing.assert_allclose(curve.risk, np.mean(risks, axis=0), rtol=1e-12)
    np.testing.assert_allclose(curve.coverage, np.arange(1, 7) / 6)
    np.testing.assert_allclose(curve.accuracy, 1 - np.mean(risks, axis=0), rtol=1e-12)
    assert curve.area == pytest.approx(np.mean(risks), rel=1e-12)


@given(samples=SAMPLES, seed=st.integers(0, 99))
@settings(derandomize=True, deadline=None, max_examples=80)
def test_neither_order_nor_a_monotone_map_matters_and_full_coverage_is_the_error_rate(
    samples: list[tuple[float, bool]], seed: int
) -> None:
    uncertainty, correct = as_tensors(samples)
    curve = risk_coverage(uncertainty, correct)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
    np.testing.assert_allclose(risk_coverage(uncertainty[order], correct[order]).risk, curve.risk, atol=1e-12)
    np.testing.assert_allclose(risk_coverage(uncertainty.atan(), correct).risk, curve.risk, atol=1e-12)
    assert float(curve.risk[-1]) == pytest.approx(1 - float(correct.double().mean()), abs=1e-12)
    assert bool(((curve.risk >= -1e-12) & (curve.risk <= 1 + 1e-12)).all())


@given(samples=SAMPLES)
@settings(derandomize=True, deadline=None, max_examples=40)
def test_an_uncertainty_that_knows_the_mistakes_has_the_least_area(samples: list[tuple[float, bool]]) -> None:
    uncertainty, correct = as_tensors(samples)
    best = risk_coverage((~correct).double(), correct).area
    worst = risk_coverage(correct.double(), correct).area
    assert best - 1e-12 <= risk_coverage(uncertainty, correct).area <= worst + 1e-12


def test_selective_accuracy_answers_at_least_the_share_asked_for() -> None:
    uncertainty = torch.arange(10.0)
    correct = torch.tensor([True] * 7 + [False] * 3)
    assert selective_accuracy(uncertainty, correct, [0.7, 0.71, 0.8, 1.0]) == pytest.approx([1, 7 / 8, 7 / 8, 0.7])
    assert selective_accuracy(uncertainty, correct, [1e-9]) == [1.0]
    # 0.07 × 100 is 7.000000000000001: not a reason to answer an eighth
    hundred = torch.arange(100.0)
    assert selective_accuracy(hundred, hundred < 7, [0.07]) == [1.0]


def test_nan_wrong_shapes_and_wrong_coverages_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        risk_coverage(torch.tensor([0.1, torch.nan]), torch.tensor([True, False]))
    assert str(caught.value) == "Risk of NaN uncertainties has no meaning: find where they come from."
    with pytest.raises(InputError) as caught:
        risk_coverage(torch.zeros(3), torch.ones(2).bool())
    assert str(caught.value) == (
        "Risk and coverage need an uncertainty for each prediction, at least one. Got (3,) uncertainties and (2,) "
        "predictions."
    )
    with pytest.raises(InputError) as caught:
        selective_accuracy(torch.zeros(3), torch.ones(3).bool(), [0.5, 80])
    assert str(caught.value) == ("The coverage of selective_accuracy must be above 0 and at most 1. Got 80 instead.")


@pytest.mark.parametrize("count", [2, 5, 25])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_standard_error_is_scipys(count: int, offset: float) -> None:
    values = offset + np.random.default_rng(0).normal(size=count)
    result = mean_and_standard_error(values)
    assert result.mean == pytest.approx(values.mean(), rel=1e-12)
    assert result.standard_error == pytest.approx(stats.sem(values), rel=1e-9)
    assert result.count == count


def test_tensors_generators_and_integers_are_values() -> None:
    expected = MeanAndStandardError(2.0, 1.0, 2)
    assert mean_and_standard_error(torch.tensor([1.0, 3.0])) == expected
    assert mean_and_standard_error(value for value in (1, 3)) == expected


def test_one_run_has_no_standard_error_and_equal_runs_have_none_to_speak_of() -> None:
    assert mean_and_standard_error([0.25]) == MeanAndStandardError(0.25, None, 1)
    assert mean_and_standard_error([0.25, 0.25]) == MeanAndStandardError(0.25, 0.0, 2)


def test_nothing_and_nan_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        mean_and_standard_error([])
    assert str(caught.value) == "The mean of no values has no meaning: give at least one."
    with pytest.raises(InputError) as caught:
        mean_and_standard_error([1.0, float("nan")])
    assert str(caught.value) == "The mean of NaN values has no meaning: find where they come from."
