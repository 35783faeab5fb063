"""Drift: ranks that are independent and uniform, a martingale that keeps its rate, and shifts that are found soon."""

import bisect
import math
import threading

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import ddu
from ddu.errors import InputError, NotFittedError
from ddu.features import FeatureBatch
from ddu.monitoring import DriftReport, Martingale, Monitor, OnlineRanks, _log_bets, kolmogorov_smirnov
from ddu.types import Prediction, Verdict


def streams(seed: int, *sizes: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=size) for size in sizes]


# Ranks


def test_a_p_value_is_the_rank_among_the_calibration_scores_and_all_scores_before():
    values = np.random.default_rng(0).permutation(3000)[:1500].astype(float)
    ranks = OnlineRanks(values[:300])
    not_ranked = set(ranks._grid)
    assert len(not_ranked) == 30
    found = np.concatenate([ranks.update(part) for part in np.split(values[300:], [1, 2, 700])])
    cells = ranks._cells(values).tolist()
    reference = sorted(cell for cell, value in zip(cells[:300], values[:300], strict=True) if value not in not_ranked)
    for cell, p in zip(cells[300:], found, strict=True):
        above = len(reference) - bisect.bisect_right(reference, cell)
        at_least = len(reference) - bisect.bisect_left(reference, cell)
        assert above < p * (len(reference) + 1) <= at_least + 1 + 1e-9
        bisect.insort(reference, cell)


def test_the_grid_keeps_the_order_of_scores_and_tells_most_of_them_apart():
    values = np.sort(np.random.default_rng(0).normal(size=2000))
    cells = OnlineRanks(np.random.default_rng(1).normal(size=500))._cells(values)
    assert (np.diff(cells) >= 0).all()
    assert len(set(cells.tolist())) > 1700
    assert 0 <= cells[0] < cells[-1] < 2**14


def test_ties_are_broken_at_random():
    p = OnlineRanks(np.zeros(100)).update(np.zeros(2000))
    assert stats.kstest(p, "uniform").pvalue > 0.01
    two_values = OnlineRanks(np.repeat([0.0, 1.0], 50)).update(np.tile([0.0, 1.0], 1000))
    assert stats.kstest(two_values, "uniform").pvalue > 0.01
    assert two_values[1::2].max() < 0.6 < two_values[1::2].max() + 0.2  # the larger half is above the other


@pytest.mark.parametrize("draw", [np.random.Generator.normal, np.random.Generator.standard_cauchy])
def test_p_values_are_uniform_and_independent_however_small_the_calibration_set_is(draw):
    random = np.random.default_rng(0)
    found = np.array([OnlineRanks(draw(random, size=20), seed).update(draw(random, size=100)) for seed in range(400)])
    for column in (0, 1, 10, 99):
        assert stats.kstest(found[:, column], "uniform").pvalue > 0.001
    # Of dependent ones, such as those against a fixed set, the means vary more
    sum_of_squares = (((found.mean(1) - 0.5) ** 2) * 12 * 100).sum()
    assert 0.001 < stats.chi2(400).cdf(sum_of_squares) < 0.999


def test_scores_of_any_size_are_ranked():
    ranks = OnlineRanks(np.random.default_rng(0).normal(1e6, 1e-3, size=1000))
    low, high, lowest, highest = ranks.update(np.array([1e6 - 1, 1e6 + 1, -np.inf, np.inf]))
    assert lowest > 0.99 > 0.01 > highest
    assert low > 0.99 > 0.01 > high


# Martingale


def test_every_bet_is_fair():
    for bet in range(_log_bets(np.array([0.5])).shape[1]):
        value, _ = integrate.quad(
            lambda p, bet=bet: math.exp(_log_bets(np.array([p]))[0, bet]),
            0,
            1,
            points=[0.001, 0.01, 0.5, 0.999],
            limit=200,
        )
        assert value == pytest.approx(1, abs=1e-5)


def test_the_capital_is_that_of_a_plain_recursion():
    p_values = np.random.default_rng(0).random(300) ** 1.3
    weights = np.array([3.0] * 4 + [1.0] * 9) / 21
    stakes, expected = np.zeros(13), []
    for k, p in enumerate(p_values, start=1):
        entering = 1 / (1 + math.log(k)) - 1 / (1 + math.log(k + 1))
        stakes = (stakes + weights * entering) * np.exp(_log_bets(np.array([p]))[0])
        expected.append(math.log(stakes.sum() + 1 / (1 + math.log(k + 1))))
    martingale = Martingale()
    found = np.concatenate([martingale.update(part) for part in np.split(p_values, [1, 5, 5, 200])])
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert martingale.peak == max(0, *found)
    assert martingale.count == 300


def test_impossible_p_values_leave_the_capital_finite():
    assert np.isfinite(Martingale().update(np.array([0.0, 1.0, 0.5] * 1000))).all()


# The promise


def alarms(inputs: int, repeats: int, rate: float, calibration: int) -> int:
    count = 0
    for seed in range(repeats):
        scores, stream = streams(seed, calibration, inputs)
        count += Monitor(scores, false_alarm_rate=rate, seed=seed).update(stream).report().alarm
    return count


def test_the_rate_of_false_alarms_is_kept():
    assert alarms(inputs=500, repeats=60, rate=0.3, calibration=50) <= stats.binom(60, 0.3).ppf(0.99)


@pytest.mark.slow
def test_the_rate_of_false_alarms_is_kept_over_100_000_inputs():
    assert alarms(inputs=100_000, repeats=30, rate=0.1, calibration=200) <= stats.binom(30, 0.1).ppf(0.99)


def test_p_values_against_a_fixed_set_would_break_the_promise():
    broken = 0
    for seed in range(5):
        scores, stream = streams(seed, 100, 10_000)
        ordered, u = np.sort(scores), np.random.default_rng(seed).random(len(stream))
        fixed = (len(scores) - np.searchsorted(ordered, stream) + 1 - u) / (len(scores) + 1)
        broken += Martingale().update(fixed).max() >= math.log(100)
    assert broken >= 4
    assert alarms(inputs=10_000, repeats=5, rate=0.01, calibration=100) == 0


# What is found


def delays(change, start: int, most: int = 1000, repeats: int = 7) -> np.ndarray:
    """After how many changed inputs there is an alarm, for 1,000 calibration inputs, at a rate of 1 %."""
    found = []
    for seed in range(repeats):
        scores, before, after = streams(seed, 1000, start, most)
        monitor = Monitor(scores, seed=seed).update(before)
        assert not monitor.report().alarm
        at = monitor.update(change(after, np.random.default_rng(seed + 1000))).report().alarm_at
        found.append(math.inf if at is None else at - start)
    return np.array(found)


def new_class(share: float):
    """Some inputs are of a class whose scores are 4 deviations larger."""
    return lambda scores, random: scores + 4 * (random.random(len(scores)) < share)


@pytest.mark.parametrize(
    ("change", "start", "median"),
    [
        pytest.param(new_class(0.05), 0, 250, id="a new class at 5 %"),
        pytest.param(new_class(0.05), 3000, 400, id="a new class at 5 %, late"),
        pytest.param(lambda scores, _: scores + 1, 0, 30, id="a shift by one deviation"),
        pytest.param(lambda scores, _: scores + 0.5, 0, 150, id="a shift by half a deviation"),
        pytest.param(lambda scores, _: scores + 0.5, 3000, 300, id="the same, late"),
        pytest.param(lambda scores, _: scores - 0.5, 0, 200, id="inputs that are too well known"),
        pytest.param(lambda scores, _: scores * 0.5, 0, 200, id="inputs that are too alike"),
        pytest.param(lambda scores, _: scores * 2, 0, 60, id="inputs that differ too much"),
    ],
)
def test_a_shift_is_found_soon(change, start, median):
    assert np.median(delays(change, start)) <= median


# The monitor


def test_batches_do_not_matter():
    scores, stream = streams(0, 500, 1500)
    stream[700:] += 0.7
    whole = Monitor(scores).update(stream).report()
    parts = Monitor(scores)
    for one in np.array_split(stream, 400):
        parts.update(one)
    assert whole.alarm_at is not None
    assert whole.alarm_at == parts.report().alarm_at
    assert not Monitor(scores).update(stream[: whole.alarm_at - 1]).report().alarm
    assert Monitor(scores).update(stream[: whole.alarm_at]).report().alarm
    assert whole.log10_evidence == pytest.approx(parts.report().log10_evidence, rel=1e-9)
    assert whole.p_value == pytest.approx(parts.report().p_value, rel=1e-9)


def prediction(epistemic: list[float], verdicts: list[Verdict]) -> Prediction:
    count = len(epistemic)
    probs = torch.full((count, 2), 0.5)
    label = torch.zeros(count, dtype=torch.int64)
    scores = torch.tensor(epistemic)
    return Prediction(probs, label, scores, scores, verdict=np.array(verdicts, dtype=object))


def test_verdicts_are_counted_over_the_window_and_invalid_inputs_are_not_ranked():
    monitor = Monitor(np.arange(100.0), window=4)
    monitor.update(prediction([1.0] * 3, [Verdict.AMBIGUOUS] * 3))
    monitor.update(
        prediction([2.0, math.nan, 3.0], [Verdict.IN_DISTRIBUTION, Verdict.INVALID, Verdict.IN_DISTRIBUTION])
    )
    report = monitor.report()
    assert (report.inputs, report.invalid, report.window) == (5, 1, 4)
    assert report.verdict_shares == {
        "in_distribution": 0.5,
        "ambiguous": 0.25,
        "out_of_distribution": 0.0,
        "invalid": 0.25,
    }
    monitor.update(prediction([4.0], [Verdict.OUT_OF_DISTRIBUTION])[0])  # a single one
    assert monitor.report().verdict_shares["out_of_distribution"] == 0.25


def test_an_alarm_stays_until_a_restart():
    monitor = Monitor(np.arange(100.0)).update(np.full(50, 1000.0))
    found = monitor.report()
    assert found.alarm
    assert found.p_value <= 0.01
    assert found.alarm_at is not None
    assert found.alarm_at <= 20
    assert monitor.update(np.random.default_rng(0).uniform(0, 100, 500)).report().alarm_at == found.alarm_at
    monitor.restart()
    assert monitor.report() == DriftReport(0, 0, 0.01, False, None, 0.0, 1.0, 0, {}, None, None)


def test_a_report_reads_as_a_few_lines():
    monitor = Monitor(np.arange(100.0)).update(prediction([5000.0] * 50, [Verdict.OUT_OF_DISTRIBUTION] * 50))
    first, verdicts, scores = str(monitor.report()).splitlines()
    assert first.startswith("50 inputs: alarm at input ")
    assert first.endswith(", alarm at 0.01); 0 invalid")
    assert verdicts == "the last 50: 100.0% out_of_distribution"
    assert scores.startswith("their scores against calibration: KS 1.000, p-value ")
    assert str(Monitor(np.arange(100.0)).report()) == "0 inputs: no alarm (p-value 1, alarm at 0.01); 0 invalid"
    assert monitor.report().to_dict()["verdict_shares"]["out_of_distribution"] == 1


def test_threads_may_share_a_monitor():
    monitor = Monitor(np.arange(1000.0))
    threads = [threading.Thread(target=lambda: [monitor.update(np.arange(10.0)) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert monitor.report().inputs == 800


def test_a_monitor_is_made_of_a_calibrated_detector():
    batches = [FeatureBatch(torch.randn(200, 4), torch.randn(200, 2), torch.arange(200) % 2) for _ in range(2)]
    detector = ddu.DDU.paper(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)))
    detector.fit(batches[:1], progress=False)
    with pytest.raises(NotFittedError, match="A monitor needs held-out scores: calibrate the detector first"):
        Monitor.of(detector)
    with pytest.warns(ddu.errors.CalibrationWarning):
        detector.calibrate(batches[1:], progress=False)
    scores = detector.evidence(batches[1]).epistemic
    report = Monitor.of(detector, window=50).update(scores).report()
    assert (report.inputs, report.alarm) == (200, False)


@pytest.mark.parametrize("sizes", [(30, 30), (200, 1000), (5000, 40)])
@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_two_sample_test_is_that_of_scipy(sizes, shift):
    first, second = streams(1, *sizes)
    expected = stats.ks_2samp(first, second + shift, method="asymp")
    statistic, p_value = kolmogorov_smirnov(first, second + shift)
    assert statistic == pytest.approx(expected.statistic)
    x = statistic * math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    assert p_value == pytest.approx(stats.kstwobign.sf(x), abs=1e-9)
    assert kolmogorov_smirnov(first, first) == (0, 1)


@pytest.mark.parametrize(
    ("scores", "options", "problem"),
    [
        (
            np.arange(19.0),
            {},
            r"at least 20 finite calibration scores, \(sample,\). Got float64 of shape \(19,\) with 0",
        ),
        (np.array([np.nan] * 30), {}, r"of shape \(30,\) with 30 that are not finite"),
        (np.zeros((30, 2)), {}, r"of shape \(30, 2\)"),
        (np.arange(30.0), {"window": 0}, r"The window of a monitor must have at least 1 input. Got 0 instead."),
        (np.arange(30.0), {"false_alarm_rate": 1}, r"The false-alarm rate must be a float between 0 and 1. Got 1"),
    ],
)
def test_what_cannot_be_monitored_is_named(scores, options, problem):
    with pytest.raises(InputError, match=problem):
        Monitor(scores, **options)
