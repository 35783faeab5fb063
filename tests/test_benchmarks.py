"""The statistics of the benchmarks, on simulated timings, and how results are kept."""

import contextlib
import importlib
import json
import math
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from scipy import stats

from benchmarks import __main__ as command
from benchmarks import _ratio, _results, growth
from benchmarks._ratio import Amount, Ratio, compare, median_interval
from benchmarks.growth import exponents


class Machine:
    """A clock, and functions that take time on it with heavy-tailed noise: now and then several times as long."""

    def __init__(self, seed: int, noise: float = 0.1) -> None:
        self.now, self.random, self.noise = 0.0, random.Random(seed), noise

    def clock(self) -> float:
        return self.now

    def job(self, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds * (1 + self.noise * (self.random.paretovariate(1.5) - 1))

        return run


def values_of(ratio: float, seed: int, budget: float = 200.0) -> list[float]:
    machine = Machine(seed)
    (values,) = compare(machine.job(1.0), machine.job(ratio), budget=budget, clock=machine.clock)
    return values


def test_the_interval_is_that_of_the_binomial_distribution():
    for count in (6, 7, 20, 101, 3000):
        low, high = median_interval(range(1, count + 1))
        miss = 2 * stats.binom.cdf(low - 1, count, 0.5)
        assert miss <= 0.05 < 2 * stats.binom.cdf(low, count, 0.5)
        assert low + high == count + 1
    assert median_interval([1.0] * 5) == (0.0, math.inf)
    assert median_interval([]) == (0.0, math.inf)


def test_a_known_ratio_is_found_under_heavy_tailed_noise():
    intervals = [median_interval(values_of(1.2, seed)) for seed in range(100)]
    assert sum(low <= 1.2 <= high for low, high in intervals) >= 90
    assert all(high < 1.4 for _, high in intervals)


def test_equal_sides_have_no_difference_most_of_the_time():
    lines = [str(Ratio("a / b", values_of(1.0, seed), under=1.1)) for seed in range(100)]
    assert sum(line.endswith("no difference") for line in lines) >= 90


def test_rounds_end_when_the_interval_is_narrow():
    values = values_of(1.2, seed=0, budget=5000.0)
    low, high = median_interval(values)
    assert high - low <= 0.04 * low
    exact = Machine(0, noise=0.0)
    assert compare(exact.job(1.0), exact.job(2.0), exact.job(0.5), clock=exact.clock) == [[2.0] * 6, [0.5] * 6]


def test_no_round_begins_when_the_budget_is_used_up():
    machine = Machine(0, noise=0.0)
    (values,) = compare(machine.job(10.0), machine.job(10.0), budget=50.0, clock=machine.clock)
    assert len(values) == 3
    assert machine.now == 20.0 + 60.0  # the warm-up does not count
    assert Ratio("a / b", values, under=1.1).verdict == "undecided"


def test_both_sides_are_first_equally_often():
    order = []
    ticks = iter(range(1000))
    compare(lambda: order.append("a"), lambda: order.append("b"), clock=lambda: float(next(ticks)))
    assert "".join(order[:10]) == "ab" + "ba" + "ab" + "ba" + "ab"


@pytest.mark.parametrize(
    ("values", "limits", "verdict"),
    [
        ([1.0, 1.01, 1.02, 1.03, 1.04, 1.05], {"under": 1.1}, "met"),
        ([1.0, 1.01, 1.02, 1.03, 1.04, 1.2], {"under": 1.1}, "undecided"),
        ([1.1, 1.11, 1.12, 1.13, 1.14, 1.15], {"under": 1.1}, "not met"),
        ([9.0] * 6, {"over": 8}, "met"),
        ([8.0] * 6, {"over": 8}, "not met"),
        ([7.0, 9.0, 9.0, 9.0, 9.0, 9.0], {"over": 8}, "undecided"),
        ([1.0] * 5, {"under": 1.1}, "undecided"),
    ],
)
def test_a_target_is_met_missed_or_undecided_by_the_whole_interval(values, limits, verdict):
    assert Ratio("a / b", values, **limits).verdict == verdict


def test_a_line_shows_the_spread_and_what_it_means():
    met = Ratio("a / b", [1.02, 1.03, 1.04, 1.05, 1.06, 1.07], under=1.1, note="error 1e-6")
    assert " ".join(str(met).split()) == "a / b 1.04 1.02 to 1.07 6 rounds under 1.1 met error 1e-6"
    same = Ratio("a / b", [0.9, 0.95, 1.0, 1.0, 1.05, 1.2], under=1.1, note="error 1e-6")
    assert " ".join(str(same).split()) == (
        "a / b 1.00 0.90 to 1.20 6 rounds under 1.1 undecided no difference; error 1e-6"
    )


def test_no_comparison_goes_on_for_longer_than_the_profile_allows(monkeypatch):
    monkeypatch.setattr(_ratio, "longest", 50.0)
    machine = Machine(0, noise=0.0)
    (values,) = compare(machine.job(10.0), machine.job(10.0), budget=5000.0, clock=machine.clock)
    assert len(values) == 3


def test_a_ratio_without_a_target_has_no_verdict():
    values = [2.0] * 6
    assert [Ratio("a / b", values, **limit).verdict for limit in ({}, {"over": 1.0}, {"under": 1.0})] == [
        "",
        "met",
        "not met",
    ]


def test_an_exponent_is_the_slope_on_log_axes():
    sizes = (10, 100, 1000)
    assert exponents(sizes, [[1.0], [10**1.5, 10.0], [10**3, 100.0]]) == pytest.approx([1.5, 1.0])


@pytest.mark.parametrize("name", command.BENCHMARKS)
def test_every_benchmark_of_the_command_can_run(name):
    assert callable(importlib.import_module(f"benchmarks.{name}").run)


@pytest.mark.parametrize("arguments", [[], ["--quick"]])
def test_a_quick_run_draws_no_figure(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "GROWTHS", growth.GROWTHS[4:5])
    monkeypatch.setattr(growth.Growth, "measure", lambda self: [[1.0], [2.0] * 6, [4.0] * 6])
    monkeypatch.setattr(growth, "IMAGE", tmp_path / "growth.png")
    monkeypatch.setattr(_results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(_results, "keeps", True)
    monkeypatch.setattr(_ratio, "longest", math.inf)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "growth", *arguments])
    command.main()
    assert sorted(path.name for path in tmp_path.iterdir()) == ([] if arguments else ["growth.png", "results"])


@pytest.mark.parametrize(("arguments", "status"), [(["fitting"], 1), ([], None)])
def test_a_benchmark_without_its_data_is_one_line_and_the_others_go_on(
    arguments, status, tmp_path, monkeypatch, capsys
):
    others: Any = types.SimpleNamespace(run=lambda: iter([Ratio("a / b", [1.0] * 6)]))
    monkeypatch.setitem(sys.modules, "benchmarks.density", others)
    monkeypatch.setattr(command, "BENCHMARKS", ("fitting", "density"))
    monkeypatch.setattr(_results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(_results, "keeps", True)
    monkeypatch.setenv("DDU_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) if status else contextlib.nullcontext() as caught:
        command.main()
    told = capsys.readouterr()
    assert told.err.startswith(f"fitting is skipped: cifar10 is not in {tmp_path}: there is no ")
    assert told.err.count("\n") == 1
    assert caught is None or caught.value.code == status
    kept = [path.name for path in tmp_path.glob("results/*")]
    assert kept == ([] if arguments else ["density.json"])


def test_results_are_kept_with_their_machine_and_shown_on_the_page(tmp_path, monkeypatch):
    page = tmp_path / "speed.md"
    page.write_text("# Speed\n\n<!-- made_up -->\nold\n<!-- end -->\nthe rest\n")
    monkeypatch.setattr(_results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(_results, "PAGE", page)
    ratio = Ratio("a / b", [1.0, 1.01, 1.02, 1.03, 1.04, 1.05], under=1.1)
    _results.keep("made_up", [ratio, Amount("file, GB", 2.0, under=1.0, note="too large")])
    content = json.loads((tmp_path / "results" / "made_up.json").read_text())
    assert content["machine"]["cores"] >= 1
    assert {"cpu", "threads", "versions"} <= set(content["machine"])
    assert [row["verdict"] for row in content["rows"]] == ["met", "not met"]
    _results.renew_page()
    text = page.read_text()
    assert "| a / b | 1.02 | 1 to 1.05 | under 1.1 | met |\n| file, GB | 2 |  | under 1 | not met; too large |" in text
    assert "old" not in text
    assert text.endswith("<!-- end -->\nthe rest\n")


def test_every_table_of_the_page_is_that_of_its_results():
    page = _results.PAGE.read_text()
    for path in sorted(_results.FOLDER.glob("*.json")):
        if f"<!-- {path.stem} -->" in page:
            assert _results._table(json.loads(path.read_text())) in page
