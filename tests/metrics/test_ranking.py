"""Ranking metrics against scikit-learn, with ties, and by their invariances."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve
from torch import Tensor

from ddu.errors import InputError
from ddu.metrics import auroc, average_precision, fpr_at_id_kept, fpr_at_tpr, roc_curve

# Few distinct values, so that ties are the rule
VALUES = [-1e300, -2.0, 0.0, 0.5, 0.5000000000000001, 3.0, 1e300]
SCORES = st.lists(st.sampled_from(VALUES), min_size=1, max_size=30).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)
SHARES = st.sampled_from([0.05, 0.07, 0.5, 0.9, 0.95, 1.0])
METRICS = [auroc, average_precision, fpr_at_tpr, fpr_at_id_kept]
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


@pytest.mark.parametrize("metric", METRICS)
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
    assert [metric(low, high) for metric in METRICS] == [1.0, 1.0, 0.0, 0.0]
    # One score for all: everything is flagged, and precision is the share of positives
    same = [metric(torch.zeros(3), torch.zeros(2)) for metric in METRICS]
    assert same == [0.5, 0.4, 1.0, 1.0]


def test_infinite_scores_are_ranked_like_others() -> None:
    assert auroc(torch.tensor([-torch.inf, 0.0]), torch.tensor([torch.inf])) == 1.0
    assert auroc(torch.tensor([torch.inf]), torch.tensor([torch.inf])) == 0.5
    assert average_precision(torch.tensor([torch.inf]), torch.tensor([torch.inf])) == 0.5
    assert fpr_at_tpr(torch.tensor([-torch.inf, 0.0]), torch.tensor([torch.inf])) == 0.0


def test_integer_and_boolean_scores_are_accepted() -> None:
    for metric in METRICS:
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
