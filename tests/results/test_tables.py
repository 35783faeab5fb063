"""Tables of results: what they aggregate, what they mark, and how they are written."""

import csv
import io
import re
from dataclasses import replace
from typing import Any

import pytest
from scipy import stats

from ddu.errors import InputError
from ddu.results import METRICS, Column, Metric, Row, Table, tabulate
from ddu.runs import RunSpec
from ddu.training import RECIPES


def row(detector: str, seed: int, metric: str, value: float, **facts) -> Row:
    given = {"network": "wide_resnet28_10+sn", "data": "cifar10", "run": "12ab"} | facts
    return Row(detector=detector, seed=seed, metric=metric, value=value, **given)


def failure(detector: str, seed: int, **facts) -> Row:
    given = {"network": "wide_resnet28_10+sn", "data": "cifar10", "run": "12ab"} | facts
    return Row.failed("RuntimeError: out of\nmemory", detector=detector, seed=seed, **given)


ROWS = [
    *(row("ddu_paper", seed, "auroc", value, ood="svhn") for seed, value in enumerate([0.97, 0.98, 0.985])),
    *(row("ddu_paper", seed, "accuracy", value) for seed, value in enumerate([0.95, 0.96, 0.955])),
    *(row("softmax", seed, "auroc", value, ood="svhn") for seed, value in enumerate([0.93, 0.94, 0.95])),
    *(row("softmax", seed, "accuracy", value) for seed, value in enumerate([0.95, 0.96, 0.955])),
    *(
        row("ensemble_mi", seed, "auroc", value, ood="svhn", network="wide_resnet28_10", members=5)
        for seed, value in enumerate([0.96, 0.97, 0.975])
    ),
    *(
        row("ensemble_mi", seed, "accuracy", value, network="wide_resnet28_10", members=5)
        for seed, value in enumerate([0.96, 0.97, 0.965])
    ),
]


def only(rows: list[Row], **options) -> Table:
    (table,) = tabulate(rows, **options)
    return table


def cell_of(table: Table, detector: str, metric: str, ood: str | None = None) -> Any:
    line = next(i for i, line in enumerate(table.lines) if line.detector == detector)
    column = table.columns.index(Column(metric, ood))
    return table.cells[line][column]


def test_cells_are_mean_and_standard_error_over_seeds():
    value = cell_of(only(ROWS), "ddu_paper", "auroc", "svhn").value
    assert value.mean == pytest.approx((0.97 + 0.98 + 0.985) / 3)
    assert value.standard_error == pytest.approx(stats.sem([0.97, 0.98, 0.985]))
    assert value.count == 3
    assert only(ROWS).seeds == 3


def test_metrics_stand_in_their_usual_order_and_single_networks_before_ensembles():
    table = only(ROWS)
    assert [column.heading for column in table.columns] == ["accuracy (%) ↑", "AUROC svhn (%) ↑"]
    assert [line.detector for line in table.lines] == ["ddu_paper", "softmax", "ensemble_mi"]
    assert [line.detector for line in only(ROWS[::-1]).lines] == ["softmax", "ddu_paper", "ensemble_mi"]


def test_metrics_can_be_chosen_with_their_order():
    table = only(ROWS, metrics=["auroc", "accuracy"])
    assert [column.metric for column in table.columns] == ["auroc", "accuracy"]
    assert [column.metric for column in only(ROWS, metrics=["accuracy"]).columns] == ["accuracy"]
    with pytest.raises(InputError) as caught:
        tabulate(ROWS, metrics=["auroc", "recall"])
    assert str(caught.value) == "No row has the metric 'recall'. There are: auroc, accuracy."


def test_every_training_set_has_its_table():
    rows = [*ROWS, row("ddu_paper", 0, "auroc", 0.8, data="cifar100", ood="svhn")]
    assert [table.data for table in tabulate(rows)] == ["cifar10", "cifar100"]
    assert tabulate([]) == []


def test_the_best_and_the_best_single_network_are_marked():
    table = only(ROWS)
    marks = {
        (line.detector, column.metric): (cell.best, cell.best_deterministic)
        for line, cells in zip(table.lines, table.cells, strict=True)
        for column, cell in zip(table.columns, cells, strict=True)
    }
    assert marks == {
        ("ddu_paper", "accuracy"): (False, True),
        ("softmax", "accuracy"): (False, True),  # as good as the other, to the last digit
        ("ensemble_mi", "accuracy"): (True, False),
        ("ddu_paper", "auroc"): (True, True),
        ("softmax", "auroc"): (False, False),
        ("ensemble_mi", "auroc"): (True, False),  # 1.0 behind, with a standard error of the difference of 0.6
    }


def test_smaller_is_better_where_it_is_and_what_is_neither_is_not_marked():
    rows = [
        row(detector, 0, metric, value)
        for detector, value in (("a", 0.01), ("b", 0.02))
        for metric in ("ece", "false_alarm_rate", "my_own")
    ]
    table = only(rows)
    assert cell_of(table, "a", "ece").best
    assert not cell_of(table, "b", "ece").best
    for metric in ("false_alarm_rate", "my_own"):
        assert not any(cell_of(table, detector, metric).best for detector in "ab")
    assert [column.heading for column in table.columns] == ["ECE (%) ↓", "false alarms (%)", "my_own"]


def test_values_that_are_written_alike_share_the_mark():
    table = only([row("a", 0, "auroc", 0.97861, ood="svhn"), row("b", 0, "auroc", 0.97859, ood="svhn")])
    assert cell_of(table, "a", "auroc", "svhn").best
    assert cell_of(table, "b", "auroc", "svhn").best


@pytest.mark.parametrize(("behind", "shared"), [(0.007, True), (0.009, False)])
def test_values_within_two_standard_errors_of_the_difference_share_the_mark(behind, shared):
    # Standard errors of 0.29 % each, so that twice that of the difference is 0.82 %
    spread = (-0.005, 0.0, 0.005)
    better = [row("a", seed, "accuracy", 0.95 + delta) for seed, delta in enumerate(spread)]
    worse = [row("b", seed, "accuracy", 0.95 - behind + delta) for seed, delta in enumerate(spread)]
    table = only(better + worse)
    assert cell_of(table, "a", "accuracy").best
    assert cell_of(table, "b", "accuracy").best == cell_of(table, "b", "accuracy").best_deterministic == shared


@pytest.mark.parametrize(
    "metric",
    ["training_seconds", "training_ratio", "seconds_per_thousand", "inference_ratio", "megabytes_per_thousand"],
)
def test_costs_have_no_winner_unless_their_spread_is_known(metric):
    rows = [row(detector, 0, metric, value) for detector, value in (("a", 1.0), ("b", 1.1))]
    one_seed = only(rows)
    assert not any(cell.best or cell.best_deterministic for line in one_seed.cells for cell in line)
    assert one_seed.notes[-1] == "Times and memory of one seed are not ranked, since their noise is unknown."
    half_known = only([*rows, row("a", 1, metric, 1.01)])
    assert not any(cell.best for line in half_known.cells for cell in line)
    two_seeds = only([*rows, row("a", 1, metric, 1.01), row("b", 1, metric, 1.11)])
    assert [line[0].best for line in two_seeds.cells] == [True, False]
    noisy = only([*rows, row("a", 1, metric, 1.2), row("b", 1, metric, 1.0)])
    assert [line[0].best for line in noisy.cells] == [True, True]


def test_the_papers_figure_stands_beside_ours_only_where_it_has_one():
    table = only(ROWS)
    paper = cell_of(table, "ddu_paper", "auroc", "svhn").paper
    assert (paper.mean, paper.standard_error, paper.table) == (0.9786, 0.0019, "table:ood_wrn")
    rows = [
        row("ddu_paper", 0, "auroc", 0.97, ood="kmnist"),
        row("ddu_paper", 0, "aupr_in", 0.97, ood="svhn"),
        row("ddu_paper", 0, "auroc", 0.6, ood="svhn", severity=3),
        row("ensemble_mi", 0, "auroc", 0.97, ood="svhn", network="wide_resnet28_10", members=3),
    ]
    assert {cell.paper for cells in only(rows).cells for cell in cells} == {None}


REDUCED = [replace(one, reductions="samples 50,000 -> 1,000") for one in ROWS]


def test_the_papers_figure_for_a_reduced_run_stands_apart_and_says_other_scale():
    text = only(REDUCED).to_markdown()
    assert text == (
        "Trained on cifar10\n"
        "\n"
        "| detector | network | accuracy (%) ↑ | AUROC svhn (%) ↑ |\n"
        "| --- | --- | ---: | ---: |\n"
        "| ddu_paper | wide_resnet28_10+sn | <ins>95.50 ± 0.29</ins> | **<ins>97.83 ± 0.44</ins>** |\n"
        "| softmax | wide_resnet28_10+sn | <ins>95.50 ± 0.29</ins> | 94.00 ± 0.58 |\n"
        "| ensemble_mi | wide_resnet28_10 | **96.50 ± 0.29** | **96.83 ± 0.44** |\n"
        "\n"
        "- Mean ± standard error of the mean over 3 seeds.\n"
        "- Bold: the best, and what is within two standard errors of the difference. "
        "Underlined: the same among single networks.\n"
        "\n"
        "The paper's figures, at its own scale, bold as printed in the paper:\n"
        "\n"
        "| detector | network | accuracy (%) ↑ | AUROC svhn (%) ↑ |\n"
        "| --- | --- | ---: | ---: |\n"
        "| ddu_paper | wide_resnet28_10+sn | 95.97 ± 0.03 | **97.86 ± 0.19** |\n"
        "| softmax | wide_resnet28_10+sn | 95.97 ± 0.03 | 94.05 ± 0.26 |\n"
        "| ensemble_mi | 5 x wide_resnet28_10 | **96.59 ± 0.02** | 97.18 ± 0.19 |\n"
    )
    assert "The paper's ensemble_mi on 5 x wide_resnet28_10 (other scale): accuracy 96.59 ± 0.02, " in " ".join(
        only(REDUCED).notes
    )
    assert {line["paper_scale"] for line in as_dicts(only(REDUCED))} == {"other"}
    assert "[" not in only(REDUCED).to_latex().split("\\bottomrule")[0]
    assert "In brackets" not in text


def test_a_detector_that_the_paper_does_not_have_does_not_repeat_the_networks_accuracy():
    ours = [replace(one, detector="ddu") for one in REDUCED if one.detector == "ddu_paper"]
    papers = only([*REDUCED, *ours]).to_markdown().partition("The paper's figures")[2]
    assert "| ddu |" in only([*REDUCED, *ours]).to_markdown()
    assert papers == only(REDUCED).to_markdown().partition("The paper's figures")[2]
    alone = only(ours).to_markdown().partition("The paper's figures")[2]
    assert "| ddu | wide_resnet28_10+sn | 95.97 ± 0.03 |" in alone


def test_a_narrower_network_is_measured_against_the_papers_full_one():
    narrow = row("ddu_paper", 0, "auroc", 0.9, ood="svhn", network="wide_resnet28_10 x0.25+sn")
    assert cell_of(only([narrow]), "ddu_paper", "auroc", "svhn").paper is None
    cell = cell_of(only([replace(narrow, reductions="width 1 -> 0.25")]), "ddu_paper", "auroc", "svhn")
    assert (cell.paper.mean, cell.same_scale) == (0.9786, False)


def test_a_smaller_ensemble_is_measured_against_the_papers_larger_one_where_it_is_reduced():
    small = row("ensemble_pe", 0, "auroc", 0.9, ood="svhn", network="wide_resnet28_10", members=3)
    assert cell_of(only([small]), "ensemble_pe", "auroc", "svhn").paper is None
    cell = cell_of(only([replace(small, reductions="epochs 350 -> 12")]), "ensemble_pe", "auroc", "svhn")
    assert (cell.paper.mean, cell.paper.members) == (0.9773, 5)


def test_the_paper_stands_beside_another_network_of_ours_where_that_is_reduced():
    ours = row("ddu_paper", 0, "auroc", 0.9, ood="svhn", network="resnet18 x0.25+sn", reductions="width 1 -> 0.25")
    beside = only([ours]).beside({"resnet18": "wide_resnet28_10"})
    assert cell_of(only([ours]), "ddu_paper", "auroc", "svhn").paper is None
    assert cell_of(beside, "ddu_paper", "auroc", "svhn").paper.network == "wide_resnet28_10+sn"
    assert "| ddu_paper | wide_resnet28_10+sn | **97.86 ± 0.19** |" in beside.to_markdown()
    whole = only([replace(ours, reductions=None)]).beside({"resnet18": "wide_resnet28_10"})
    assert cell_of(whole, "ddu_paper", "auroc", "svhn").paper is None


def test_only_the_cells_of_reduced_runs_have_their_paper_apart():
    reduced = [one for one in REDUCED if one.detector == "softmax"]
    table = only([*(one for one in ROWS if one.detector == "ddu_paper"), *reduced])
    assert cell_of(table, "ddu_paper", "auroc", "svhn").same_scale
    assert not cell_of(table, "softmax", "auroc", "svhn").same_scale
    assert "- In brackets: the paper's figure, mean ± standard error.\n" in table.to_markdown()
    assert {line["detector"]: line["paper_scale"] for line in as_dicts(table)} == {
        "ddu_paper": "same",
        "softmax": "other",
    }


def test_one_epoch_on_a_thousand_samples_of_cifar10_never_has_the_papers_number_in_brackets():
    spec = RunSpec("wide_resnet28_10", "cifar10", RECIPES["cifar"].with_changes(epochs=1), limit=1000)
    facts = {"network": spec.label, "run": spec.fingerprint("digest"), "reductions": spec.reductions(1000)}
    table = only([row("ddu_paper", 0, "auroc", 0.7, ood="svhn", **facts)])
    assert "[97.86 ± 0.19]" not in table.to_markdown() + table.to_latex()
    assert table.notes[-1] == ("The paper's ddu_paper on wide_resnet28_10+sn (other scale): AUROC svhn 97.86 ± 0.19.")
    full = RunSpec("wide_resnet28_10", "cifar10", RECIPES["cifar"])
    table = only(
        [row("ddu_paper", 0, "auroc", 0.7, ood="svhn", reductions=full.reductions(50_000), network=full.label)]
    )
    assert "| 70.00 [97.86 ± 0.19] |" in table.to_markdown()


def test_rows_of_two_runs_with_the_same_names_stand_apart():
    table = only([*ROWS, *(replace(one, run="34cd", value=0.5) for one in ROWS if one.detector == "ddu_paper")])
    assert [(line.detector, line.run) for line in table.lines[:3]] == [
        ("ddu_paper", "12ab"),
        ("softmax", "12ab"),
        ("ddu_paper", "34cd"),
    ]
    first, second = (line for line in table.to_markdown().splitlines() if line.startswith("| ddu_paper |"))
    assert first.startswith("| ddu_paper | wide_resnet28_10+sn (run 12ab) | <ins>95.50 ± 0.29</ins> ")
    assert second.startswith("| ddu_paper | wide_resnet28_10+sn (run 34cd) | 50.00 ± 0.00 ")
    assert "| softmax | wide_resnet28_10+sn | " in table.to_markdown()  # which has one run
    runs = [line["run"] for line in as_dicts(table) if line["detector"] == "ddu_paper"]
    assert runs == ["12ab", "12ab", "34cd", "34cd"]


def test_ensembles_of_two_sizes_stand_apart_without_the_names_of_their_runs():
    small = [replace(one, members=2, value=0.5) for one in ROWS if one.members == 5]
    table = only([*ROWS, *small])
    assert [line.members for line in table.lines] == [1, 1, 5, 2]
    assert "(run " not in table.to_markdown()


def test_a_failed_seed_is_counted_told_of_and_takes_the_mark_away():
    rows = [r for r in ROWS if (r.detector, r.seed) != ("ddu_paper", 2)] + [failure("ddu_paper", 2)]
    table = only(rows)
    cell = cell_of(table, "ddu_paper", "auroc", "svhn")
    assert (cell.value.count, cell.failed, cell.best, cell.best_deterministic) == (2, 1, False, False)
    assert cell_of(table, "softmax", "auroc", "svhn").best_deterministic
    assert table.failures == (failure("ddu_paper", 2),)
    text = table.to_markdown()
    assert "| ddu_paper | wide_resnet28_10+sn | 95.50 ± 0.50 (n = 2, 1 failed) [95.97 ± 0.03] |" in text
    assert "- Failed: ddu_paper on wide_resnet28_10+sn, seed 2: RuntimeError: out of memory\n" in text
    assert "- Mean ± standard error of the mean over 3 seeds, where n does not say otherwise.\n" in text


def test_a_failure_on_one_set_is_counted_there_only_and_a_retry_makes_it_good():
    rows = [*ROWS, row("ddu_paper", 0, "auroc", 0.9, ood="cifar100"), failure("softmax", 0, ood="cifar100")]
    table = only(rows)
    assert cell_of(table, "softmax", "auroc", "cifar100").failed == 1
    assert cell_of(table, "softmax", "auroc", "svhn").failed == 0
    assert cell_of(table, "softmax", "accuracy").failed == 0
    retried = only([*rows, row("softmax", 0, "auroc", 0.8, ood="cifar100")])
    assert cell_of(retried, "softmax", "auroc", "cifar100").failed == 0
    assert retried.failures == ()


def test_a_detector_that_only_failed_still_has_its_line_everywhere():
    table = only([*ROWS, failure("duq", 0), failure("duq", 1)])
    assert [cell.failed for cell in table.cells[2]] == [2, 2]
    assert "| duq | wide_resnet28_10+sn | – (2 failed) | – (2 failed) |\n" in table.to_markdown()
    assert [r["failed"] for r in as_dicts(table) if r["detector"] == "duq"] == ["2", "2"]
    nothing = only([failure("duq", 0)])
    assert "| duq | wide_resnet28_10+sn | – (1 failed) |\n" in nothing.to_markdown()
    assert [(r["detector"], r["metric"], r["failed"]) for r in as_dicts(nothing)] == [("duq", "", "1")]
    on_one_set = only([failure("duq", 0, ood="svhn")])
    assert "| duq | wide_resnet28_10+sn | – (1 failed) |\n" in on_one_set.to_markdown()
    assert "- Failed: duq on wide_resnet28_10+sn against svhn, seed 0: " in on_one_set.to_markdown()


def test_markdown():
    assert only(ROWS).to_markdown() == (
        "Trained on cifar10\n"
        "\n"
        "| detector | network | accuracy (%) ↑ | AUROC svhn (%) ↑ |\n"
        "| --- | --- | ---: | ---: |\n"
        "| ddu_paper | wide_resnet28_10+sn | <ins>95.50 ± 0.29</ins> [95.97 ± 0.03] "
        "| **<ins>97.83 ± 0.44</ins>** [97.86 ± 0.19] |\n"
        "| softmax | wide_resnet28_10+sn | <ins>95.50 ± 0.29</ins> [95.97 ± 0.03] | 94.00 ± 0.58 [94.05 ± 0.26] |\n"
        "| ensemble_mi | wide_resnet28_10 | **96.50 ± 0.29** [96.59 ± 0.02] | **96.83 ± 0.44** [97.18 ± 0.19] |\n"
        "\n"
        "- Mean ± standard error of the mean over 3 seeds.\n"
        "- Bold: the best, and what is within two standard errors of the difference. "
        "Underlined: the same among single networks.\n"
        "- In brackets: the paper's figure, mean ± standard error.\n"
    )


def test_one_seed_has_no_standard_error_and_says_so():
    text = only([row("a|b", 0, "accuracy", 0.5, network="mine")]).to_markdown()
    assert text == (
        "Trained on cifar10\n\n"
        "| detector | network | accuracy (%) ↑ |\n"
        "| --- | --- | ---: |\n"
        "| a\\|b | mine | 50.00 |\n\n"
        "- One seed, so there is no standard error.\n"
    )


def as_dicts(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.to_csv())))


def test_csv_has_every_cell_with_all_its_digits():
    table = only(ROWS)
    rows = as_dicts(table)
    assert len(rows) == 6
    found = next(r for r in rows if r["detector"] == "ddu_paper" and r["metric"] == "auroc")
    value = cell_of(table, "ddu_paper", "auroc", "svhn").value
    assert float(found["mean"]) == value.mean
    assert float(found["standard_error"]) == value.standard_error
    assert {name: text for name, text in found.items() if name not in ("mean", "standard_error")} == {
        "detector": "ddu_paper",
        "network": "wide_resnet28_10+sn",
        "members": "1",
        "data": "cifar10",
        "run": "12ab",
        "ood": "svhn",
        "severity": "",
        "metric": "auroc",
        "seeds": "3",
        "failed": "0",
        "best": "True",
        "best_deterministic": "True",
        "paper_mean": "0.9786",
        "paper_standard_error": "0.0019",
        "paper_table": "table:ood_wrn",
        "paper_scale": "same",
    }


def test_latex():
    assert only(ROWS).to_latex() == (
        "\\begin{tabular}{llrr}\n"
        "\\toprule\n"
        "detector & network & accuracy (\\%) $\\uparrow$ & AUROC svhn (\\%) $\\uparrow$ \\\\\n"
        "\\midrule\n"
        "ddu\\_paper & wide\\_resnet28\\_10+sn & \\underline{95.50 $\\pm$ 0.29} [95.97 $\\pm$ 0.03]"
        " & \\textbf{\\underline{97.83 $\\pm$ 0.44}} [97.86 $\\pm$ 0.19] \\\\\n"
        "softmax & wide\\_resnet28\\_10+sn & \\underline{95.50 $\\pm$ 0.29} [95.97 $\\pm$ 0.03]"
        " & 94.00 $\\pm$ 0.58 [94.05 $\\pm$ 0.26] \\\\\n"
        "\\midrule\n"
        "ensemble\\_mi & wide\\_resnet28\\_10 & \\textbf{96.50 $\\pm$ 0.29} [96.59 $\\pm$ 0.02]"
        " & \\textbf{96.83 $\\pm$ 0.44} [97.18 $\\pm$ 0.19] \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "% Trained on cifar10\n"
        "% Mean ± standard error of the mean over 3 seeds.\n"
        "% Bold: the best, and what is within two standard errors of the difference. "
        "Underlined: the same among single networks.\n"
        "% In brackets: the paper's figure, mean ± standard error.\n"
    )


def test_names_that_mean_something_to_latex_are_escaped():
    text = only([row(r"a_b & 100% {x} #1 ~^\ $", 0, "nll", 0.5)]).to_latex()
    escaped = r"a\_b \& 100\% \{x\} \#1 \textasciitilde{}\textasciicircum{}\textbackslash{} \$"
    assert f"\n{escaped} & wide\\_resnet28\\_10+sn & 0.5000 \\\\\n" in text


def test_the_terminal_shows_the_same_cells_with_their_marks():
    from rich.console import Console

    table = only([*ROWS, failure("duq [x]", 0)])
    console = Console(width=150, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(table.to_rich())
    styled = console.export_text(styles=True, clear=False)
    plain = console.export_text()
    assert "Trained on cifar10" in plain
    for words in ("97.83 ± 0.44", "[97.86 ± 0.19]", "95.50 ± 0.29", "(1 failed)", "duq [x]"):
        assert words in plain
    assert re.search(r"\x1b\[1;4m97\.83 ± 0\.44", styled)  # bold and underlined
    assert re.search(r"\x1b\[4m95\.50 ± 0\.29", styled)  # underlined
    assert re.search(r"\x1b\[1m96\.50 ± 0\.29", styled)  # bold


def test_corruptions_have_their_severity_in_the_heading():
    assert Column("auroc", "cifar10_c/fog", 3).heading == "AUROC cifar10_c/fog severity 3 (%) ↑"


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (0.17, 0.00121, "0.1700 ± 0.0012"),
        (12.346, 0.5, "12.35 ± 0.50"),
        (1234.4, None, "1234"),
        (-0.00012344, 1e-6, "-0.0001234 ± 0.0000010"),
        (-2.7268e14, 1e12, "-2.727e+14 ± 1.000e+12"),
        (0.0, 0.01, "0.000 ± 0.010"),
    ],
)
def test_numbers_that_are_no_shares_have_four_digits_and_their_error_as_many_decimals(value, error, words):
    assert Metric("NLL").write(value, error) == words


def test_shares_are_written_in_per_cent():
    assert METRICS["auroc"].write(0.97861, 0.0019) == "97.86 ± 0.19"
    assert METRICS["auroc"].write(1.0) == "100.00"
