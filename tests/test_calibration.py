"""Calibration: the best temperature, and thresholds that keep their promise."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor

from ddu.calibration import Calibration, HeldOut, calibrate, entropy_threshold, fit_temperature
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


def held_out_data(samples: int = 500) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, epistemic scores and labels."""
    generator = torch.Generator().manual_seed(0)
    logits, epistemic = torch.randn(samples, 3, generator=generator), torch.randn(samples, generator=generator)
    return logits, epistemic, torch.softmax(2 * logits, 1).multinomial(1, generator=generator).squeeze(1)


def test_a_calibration_is_its_parts() -> None:
    logits, epistemic, labels = held_out_data()
    found = calibrate(logits, epistemic, labels, false_alarm_rate=0.05)
    assert found.temperature == fit_temperature(logits, labels)
    assert found.epistemic_threshold == float(epistemic.sort(descending=True).values[24])  # 0.05 of 501 is 25.05
    assert found.entropy_threshold == entropy_threshold(entropy(logits / found.temperature), logits.argmax(1) == labels)
    right = (logits / found.temperature).softmax(1).gather(1, labels[:, None]).squeeze(1)
    assert found.candidate_level == float(right.sort(descending=True).values[475])  # 0.95 of 501 is 475.95
    assert (found.false_alarm_rate, found.least_p_value) == (0.05, 1 / 501)


def test_the_papers_threshold_is_the_plain_quantile() -> None:
    logits, epistemic, labels = held_out_data()
    found = calibrate(logits, epistemic, labels, false_alarm_rate=0.013, threshold="training_quantile")
    wanted = np.quantile(epistemic.numpy(), 1 - 0.013, method="inverted_cdf")
    assert found.epistemic_threshold == wanted
    assert found.least_p_value == 0


def test_a_rate_that_is_set_later_gives_what_it_would_have_given_at_once() -> None:
    logits, epistemic, labels = held_out_data()
    settings: dict[str, Any] = {"confidence": 0.9, "error_rate": 0.3, "coverage": 0.8}
    later = replace(calibrate(logits, epistemic, labels, **settings), false_alarm_rate=0.2)
    assert later == calibrate(logits, epistemic, labels, false_alarm_rate=0.2, **settings)
    assert (
        later.epistemic_threshold
        == calibrate(logits, epistemic, labels, false_alarm_rate=0.2, confidence=0.9).epistemic_threshold
    )
    assert later != calibrate(logits, epistemic, labels, **settings)


def test_the_rows_that_set_the_threshold_are_those_named() -> None:
    logits, epistemic, labels = held_out_data()
    rows = torch.arange(400).flip(0)
    found = calibrate(logits, epistemic[rows], labels, rows=rows, false_alarm_rate=0.05)
    assert found.temperature == fit_temperature(logits, labels)  # of all
    order = epistemic[:400].argsort()
    assert torch.equal(found.held_out.epistemic, epistemic[order].double())
    right = (logits.argmax(1) == labels)[order]
    assert found.held_out.correct is not None
    assert torch.equal(found.held_out.correct, right)


def test_without_labels_there_are_p_values_alone() -> None:
    logits, epistemic, _ = held_out_data()
    found = calibrate(logits, epistemic, false_alarm_rate=0.1)
    assert (found.temperature, found.entropy_threshold, found.candidates(logits, logits.argmax(1))) == (1.0, None, None)
    verdicts = found.verdicts(epistemic, torch.full((500,), 1e9), logits.argmax(1))
    assert set(verdicts) == {Verdict.IN_DISTRIBUTION, Verdict.OUT_OF_DISTRIBUTION}
    with pytest.raises(InputError) as caught:
        replace(found, error_rate=0.1)
    assert str(caught.value) == "An error rate of 0.1 needs labels: calibrate with (inputs, labels)."


def test_a_verdict_asks_for_the_epistemic_score_first() -> None:
    correct = torch.tensor([True, True, True, False])
    kept = HeldOut(
        torch.tensor([2.0, 1.0, 0.0, 0.0]), torch.zeros(4).long(), torch.tensor([0.1, 0.5, 0.5, 0.6]), correct
    )
    calibration = Calibration(kept, false_alarm_rate=0.2)
    assert (calibration.epistemic_threshold, calibration.entropy_threshold) == (2.0, 0.5)
    scores, entropies = torch.tensor([2.0, 2.0, 2.1, 2.1]), torch.tensor([0.5, 0.6, 0.5, 0.6])
    verdicts = calibration.verdicts(scores, entropies, torch.zeros(4).long())
    unknown = Verdict.OUT_OF_DISTRIBUTION
    assert verdicts.tolist() == [Verdict.IN_DISTRIBUTION, Verdict.AMBIGUOUS, unknown, unknown]


def test_the_likeliest_class_is_always_a_candidate() -> None:
    probs, labels = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]), torch.tensor([0, 0, 0])
    kept = HeldOut(torch.arange(3.0), labels, torch.zeros(3), labels == 0, probs[:, 0])
    calibration = Calibration(kept, false_alarm_rate=0.5, coverage=0.5)  # the second largest of 0.9, 0.8, 0.7
    found = calibration.candidates(torch.tensor([[0.6, 0.4], [0.15, 0.85]]), torch.tensor([0, 1]))
    assert found is not None
    assert found.tolist() == [[True, False], [False, True]]
    unsure = replace(calibration, coverage=0.99).candidates(torch.tensor([[0.6, 0.4]]), torch.tensor([0]))
    assert unsure is not None
    assert unsure.all()


def test_scores_that_are_not_finite_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        HeldOut(torch.tensor([1.0, torch.nan]), torch.zeros(2).long())
    assert str(caught.value) == ("The 'epistemic' of 1 of 2 held-out inputs is not finite: check them and the model.")
