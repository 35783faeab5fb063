"""Calibration: the best temperature, and thresholds that keep their promise."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor

from ddu.calibration import (
    Calibration,
    calibrate,
    conformal_threshold,
    entropy_threshold,
    fit_temperature,
    training_quantile,
)
from ddu.errors import CalibrationWarning, InputError
from ddu.measures import entropy
from ddu.metrics import negative_log_likelihood
from ddu.types import Verdict


def problem(
    seed: int, scale: float, *, classes: int = 4, count: int = 80, signal: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Labels drawn from the softmax of logits, which are then reported at another scale."""
    generator = torch.Generator().manual_seed(seed)
    logits = signal * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return logits * scale, labels


@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 30.0, 1e3, 1e6]),
    signal=st.sampled_from([0.8, 2.0, 4.0]),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_temperature_is_the_one_scipy_finds(seed: int, scale: float, signal: float) -> None:
    logits, labels = problem(seed, scale, signal=signal)

    def loss(log_beta: float) -> float:
        return negative_log_likelihood(logits * math.exp(log_beta), labels)

    centre = -math.log(scale)
    best: Any = minimize_scalar(loss, bounds=(centre - 5, centre + 5), method="bounded", options={"xatol": 1e-10})
    temperature = fit_temperature(logits, labels)
    # A flat minimum is found to the root of double precision by its values alone
    assert math.log(temperature) == pytest.approx(-best.x, abs=1e-6)
    assert negative_log_likelihood(logits / temperature, labels) <= best.fun * (1 + 1e-12)


@given(seed=st.integers(0, 10**6), factor=st.sampled_from([1e-8, 1e-3, 7.0, 1e3, 1e8]))
@settings(derandomize=True, deadline=None, max_examples=20)
def test_temperature_grows_with_the_logits(seed: int, factor: float) -> None:
    logits, labels = problem(seed, 1.0)
    assert fit_temperature(logits * factor, labels) == pytest.approx(factor * fit_temperature(logits, labels), rel=1e-9)


@given(seed=st.integers(0, 10**6), step=st.sampled_from([0.01, 0.5, 3.0]))
@settings(derandomize=True, deadline=None, max_examples=20)
def test_no_other_temperature_is_better_and_further_ones_are_worse(seed: int, step: float) -> None:
    """In the inverse temperature the loss is convex: its differences grow away from the minimum."""
    logits, labels = problem(seed, 5.0)
    beta = 1 / fit_temperature(logits, labels)
    losses = [negative_log_likelihood(logits * beta * (1 + i * step), labels) for i in range(4)]
    assert losses == sorted(losses)
    assert (np.diff(losses, 2) > -1e-12).all()


def test_shifting_a_samples_logits_leaves_the_temperature() -> None:
    logits, labels = problem(0, 1.0)
    shift = torch.linspace(-500, 500, len(labels), dtype=torch.float64)[:, None]
    assert fit_temperature(logits + shift, labels) == pytest.approx(fit_temperature(logits, labels), rel=1e-9)


SUSPECT_LABELS = "Check that the labels belong to these inputs, with the classes numbered as in training."


def test_single_precision_logits_give_the_same_temperature() -> None:
    logits, labels = problem(0, 1.0)
    assert fit_temperature(logits.float(), labels) == pytest.approx(fit_temperature(logits, labels), rel=1e-5)


@pytest.mark.parametrize(
    ("logits", "labels", "right", "advice"),
    [
        ([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]], [0, 1, 0], 3, "Hold out more, and more typical, data."),
        ([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]], [1, 0, 1], 0, SUSPECT_LABELS),
        ([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]], [0, 1, 0], 2, SUSPECT_LABELS),
    ],
    ids=["all right", "all wrong", "all tied"],
)
def test_a_temperature_that_the_data_does_not_settle_is_warned_of(
    logits: list[list[float]], labels: list[int], right: int, advice: str
) -> None:
    with pytest.warns(CalibrationWarning) as caught:
        assert fit_temperature(torch.tensor(logits), torch.tensor(labels)) == 1.0
    assert [str(warning.message) for warning in caught] == [
        f"No temperature is best for these 3 held-out predictions, of which {right} are right: it stays 1. {advice}"
    ]
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("count", "rate", "expected"),
    [
        (1, 0.5, 1),
        (19, 0.05, 1),
        (20, 0.05, 1),
        (39, 0.05, 2),
        (99, 0.07, 7),
        (99, 0.29, 29),
        (9, 0.9, 9),
        (3, 0.99, 3),
    ],
)
def test_the_conformal_threshold_is_the_kth_smallest(count: int, rate: float, expected: int) -> None:
    """k = ⌊rate (n + 1)⌋, also where the product of floats falls on the wrong side of an integer."""
    values = torch.arange(1.0, count + 1)[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    assert conformal_threshold(values, rate) == expected
    assert conformal_threshold(values, np.float64(rate)) == expected


@pytest.mark.parametrize(("count", "rate"), [(19, 0.05), (50, 0.1), (99, 0.01), (30, 0.25)])
def test_the_false_alarm_rate_is_kept_exactly(count: int, rate: float) -> None:
    """An exchangeable new value is below the threshold with probability k / (n + 1), whatever the distribution."""
    trials = 4000
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(trials, count + 1, generator=generator, dtype=torch.float64).exp()
    alarms = sum(float(row[-1]) < conformal_threshold(row[:-1], rate) for row in values)
    exact = math.floor(round(rate * (count + 1), 9)) / (count + 1)
    assert exact <= rate + 1e-12
    # Five standard errors
    assert alarms / trials == pytest.approx(exact, abs=5 * math.sqrt(exact * (1 - exact) / trials))


def test_ties_only_lower_the_false_alarm_rate() -> None:
    values = torch.randint(0, 5, (2000, 20), generator=torch.Generator().manual_seed(0)).double()
    alarms = sum(float(row[-1]) < conformal_threshold(row[:-1], 0.25) for row in values)
    assert alarms / 2000 < 0.25


def test_too_few_samples_for_a_false_alarm_rate_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        conformal_threshold(torch.zeros(50), 0.01)
    assert str(caught.value) == (
        "A false-alarm rate of 0.01 needs at least 99 held-out samples, there are 50: hold out more, or accept a rate "
        "of 0.0197."
    )
    assert conformal_threshold(torch.zeros(99), 0.01) == 0.0


@pytest.mark.parametrize("threshold", [conformal_threshold, training_quantile])
@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5, float("nan")])
def test_a_rate_that_is_no_probability_is_refused(threshold: Callable[[Tensor, float], float], rate: float) -> None:
    with pytest.raises(InputError) as caught:
        threshold(torch.zeros(10), rate)
    assert str(caught.value) == f"The false-alarm rate must be a float between 0 and 1. Got {rate!r} instead."


def test_the_training_quantile_is_numpys() -> None:
    values = torch.randn(1001, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert training_quantile(values, 0.013) == np.quantile(values.numpy(), 0.013)


@given(
    data=st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0, 1.5]), st.booleans()), min_size=1, max_size=25)
)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_no_entropy_threshold_separates_better(data: list[tuple[float, bool]]) -> None:
    entropy = np.array([value for value, _ in data])
    correct = np.array([hit for _, hit in data])

    def youden(threshold: float) -> float:
        above = entropy > threshold
        caught = above[~correct].mean() if (~correct).any() else 0.0
        disturbed = above[correct].mean() if correct.any() else 0.0
        return float(caught - disturbed)

    threshold = entropy_threshold(torch.from_numpy(entropy), torch.from_numpy(correct))
    assert threshold in entropy
    assert youden(threshold) == pytest.approx(max(youden(value) for value in entropy), abs=1e-12)
    if correct.all():
        assert threshold == entropy.max()


@pytest.mark.parametrize("held_out", [1, 5, 11, 20, 50, 98])
def test_the_rate_that_the_refusal_offers_is_accepted(held_out: int) -> None:
    log_density = torch.arange(float(held_out))
    with pytest.raises(InputError) as refusal:
        conformal_threshold(log_density, 0.01)
    offered = float(str(refusal.value).rsplit(" ", 1)[1].rstrip("."))
    assert conformal_threshold(log_density, offered) == 0.0


@pytest.mark.parametrize(
    ("rule", "threshold"), [("conformal", conformal_threshold), ("training_quantile", training_quantile)]
)
def test_a_calibration_is_its_parts(rule: Any, threshold: Callable[[Tensor, float], float]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, epistemic = torch.randn(500, 3, generator=generator), torch.randn(500, generator=generator)
    labels = torch.softmax(2 * logits, 1).multinomial(1, generator=generator).squeeze(1)
    found = calibrate(logits, epistemic, labels, 0.05, rule)
    assert found.temperature == fit_temperature(logits, labels)
    assert found.epistemic_threshold == -threshold(-epistemic, 0.05)
    assert found.entropy_threshold == entropy_threshold(entropy(logits / found.temperature), logits.argmax(1) == labels)
    assert found.false_alarm_rate == 0.05


def test_a_verdict_asks_for_the_epistemic_score_first() -> None:
    calibration = Calibration(1.0, epistemic_threshold=2.0, entropy_threshold=0.5, false_alarm_rate=0.1)
    verdicts = calibration.verdicts(torch.tensor([2.0, 2.0, 2.1, 2.1]), torch.tensor([0.5, 0.6, 0.5, 0.6]))
    unknown = Verdict.OUT_OF_DISTRIBUTION
    assert verdicts.tolist() == [Verdict.IN_DISTRIBUTION, Verdict.AMBIGUOUS, unknown, unknown]
