"""Risk and coverage against the mean over all orders of tied samples, and by their invariances."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddu.errors import InputError
from ddu.metrics import risk_coverage, selective_accuracy

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
