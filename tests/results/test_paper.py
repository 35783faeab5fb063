"""The paper's tables: every number of the LaTeX is in the file, and nothing else."""

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

import ddu
from ddu.results import METRICS, PaperFigure, paper_figure, paper_tables

FILE = Path(ddu.__file__).parent / "results" / "paper_tables.json"
PAPER = Path(__file__).parents[3] / "shared" / "paper"

# One standard error of the paper lacks its "0."
MISPRINTS = {("table:ood_3", "78.66", "06"): ("78.66", "0.06")}


@pytest.fixture(scope="module")
def latex() -> str:
    sources = [path.read_text() for path in sorted(PAPER.glob("*.txt"))] if PAPER.is_dir() else []
    sources = [text for text in sources if r"\label{table:ood_wrn}" in text]
    if not sources:
        pytest.skip(f"the paper's LaTeX is not at {PAPER}")
    return sources[0]


def tables_of(latex: str) -> dict[str, str]:
    environments = re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", latex, flags=re.DOTALL)
    return {re.findall(r"\\label\{(.*?)\}", text)[0]: text for text in environments}


def printed_numbers(label: str, table: str) -> list[tuple[float, float | None, bool]]:
    """Mean, error and boldness of every cell that is a number, in reading order."""
    body = table[table.index(r"\begin{tabular}") : table.index(r"\end{tabular}")]
    body = re.sub(r"\\(multirow\{\d+\}\{\*\}|multicolumn\{\d+\}\{c\}|cmidrule\{.*?\}|\w+rule\b)", "", body)
    numbers = []
    for cell in re.split(r"&|\\\\", body):
        bare = re.sub(r"[${}\s]|\\mathbf", "", cell)
        if match := re.fullmatch(r"(-?[\d.]+(?:e\+\d+)?)(?:\\pm([\d.]+))?", bare):
            mean, error = MISPRINTS.get((label, match[1], match[2]), (match[1], match[2]))
            numbers.append((float(mean), None if error is None else float(error), "mathbf" in cell))
    return numbers


def test_every_number_of_every_table_is_in_the_file_at_its_place_and_no_other(latex):
    content = {table["label"]: table["figures"] for table in json.loads(FILE.read_text())["tables"]}
    sources = tables_of(latex)
    assert list(content) == list(sources)
    total = 0
    for label, figures in content.items():
        kept = [(figure["mean"], figure["standard_error"], figure.get("bold", False)) for figure in figures]
        assert kept == printed_numbers(label, sources[label]), label
        total += len(kept)
    assert total == 397


def test_the_shares_of_training_data_are_those_of_the_latex(latex):
    rows = re.findall(r"(\d+)\\% of (D-MNIST|CIFAR-10) &", tables_of(latex)["table:kendall_viz"])
    expected = [(int(share) / 100, {"D-MNIST": "dirty_mnist", "CIFAR-10": "cifar10"}[data]) for share, data in rows]
    (table,) = (table for table in paper_tables() if table.label == "table:kendall_viz")
    kept = dict.fromkeys((figure.subset, figure.data) for figure in table.figures if figure.subset is not None)
    assert list(kept) == expected


def test_the_number_of_runs_is_what_the_captions_say(latex):
    sources = tables_of(latex)
    for table in paper_tables():
        said = re.search(r"veraged over (\d+) runs", sources[table.label])
        assert table.runs == (int(said[1]) if said else None), table.label


@pytest.mark.parametrize(
    ("question", "mean", "error", "table"),
    [
        (("ddu_paper", "wide_resnet28_10+sn", "cifar10", "auroc", "svhn"), 0.9786, 0.0019, "table:ood_wrn"),
        (("ensemble_pe", "wide_resnet28_10", "cifar10", "auroc", "cifar100"), 0.9213, 0.0002, "table:ood_wrn"),
        (("energy", "wide_resnet28_10", "cifar10", "accuracy", None), 0.9598, 0.0002, "table:ood_wrn"),
        (("sngp", "wide_resnet28_10+sn", "cifar100", "auroc", "tiny_imagenet"), 0.7885, 0.0043, "table:ood_wrn"),
        (("duq", "resnet50", "cifar10", "ece", None), 0.0171, 0.0007, "table:ood_resnet50"),
        (("ensemble_mi", "resnet110", "cifar100", "auroc", "svhn"), 0.8511, 0.0057, "table:ood_resnet110"),
        (("ddu_paper", "densenet121+sn", "cifar100", "auroc", "svhn"), 0.8844, 0.0055, "table:ood_densenet121"),
        (("ensemble_mi", "vgg16", "imagenet", "auroc", "imagenet_o"), 0.5656, None, "table:ood_imagenet"),
        (("ddu_paper", "wide_resnet50_2", "imagenet", "ece", None), 0.0118, 0.0007, "table:ood_imagenet"),
        (("ddu_paper", "wide_resnet28_10", "cifar10", "auroc", "svhn"), 0.9608, 0.0025, "table:ood_2"),
        (("energy", "vgg16+sn", "cifar10", "auroc", "tiny_imagenet"), 0.8307, 0.0010, "table:ood_2"),
        (("ddu_paper", "wide_resnet28_10", "cifar100", "auroc", "tiny_imagenet"), 0.7813, 0.0008, "table:ood_3"),
        (("ensemble_pe", "vgg16", "cifar100", "auroc", "tiny_imagenet"), 0.7866, 0.0006, "table:ood_3"),
        (("ddu_paper", "resnet18+sn", "dirty_mnist", "auroc", "fashion_mnist"), 0.9991, None, "table:auroc_tab1"),
        (("softmax", "wide_resnet28_10+sn", "cifar10", "ece_uncalibrated", None), 0.0223, 0.0003,
         "table:objective_mismatch_real"),
        (("minimise_joint_cross_entropy", "gaussian_mixture", "three_gaussians", "marginal_cross_entropy", None), 4.758,
         None, "table:objective_mismatch"),
    ],
)  # fmt: skip
def test_figures_read_off_the_paper_by_eye(question, mean, error, table):
    *rest, ood = question
    figure = paper_figure(*rest, ood=ood)
    assert figure is not None
    assert (figure.mean, figure.standard_error, figure.table) == (mean, error, table)


def test_a_part_of_the_training_data_is_another_question():
    whole = paper_figure("ddu_paper", "resnet18+sn", "dirty_mnist", "mean_log_density")
    tenth = paper_figure("ddu_paper", "resnet18+sn", "dirty_mnist", "mean_log_density", subset=0.1)
    assert whole is None
    assert tenth is not None
    assert tenth.mean == -1279.1753


def test_an_ensemble_of_another_size_is_another_question():
    arguments = ("ensemble_mi", "wide_resnet28_10", "cifar10", "auroc")
    five = paper_figure(*arguments, ood="svhn", members=5)
    assert five is not None
    assert paper_figure(*arguments, ood="svhn") == five
    assert paper_figure(*arguments, ood="svhn", members=3) is None


def test_what_the_paper_did_not_measure_has_no_figure():
    assert paper_figure("ddu_paper", "resnet18+sn", "mnist", "auroc", ood="kmnist") is None
    assert paper_figure("ddu_paper", "wide_resnet28_10+sn", "cifar10", "aupr_in", ood="svhn") is None


def test_where_two_tables_answer_the_same_question_they_agree():
    answers: dict[tuple, set[tuple]] = defaultdict(set)
    tables: dict[tuple, set[str]] = defaultdict(set)
    for table in paper_tables():
        for figure in table.figures:
            for detector in figure.detectors:
                question = (
                    detector,
                    *(getattr(figure, name) for name in ("network", "data", "ood", "metric", "subset")),
                )
                answers[question].add((figure.mean, figure.standard_error, figure.members))
                tables[question].add(table.label)
    assert {question: found for question, found in answers.items() if len(found) > 1} == {}
    assert sum(len(labels) > 1 for labels in tables.values()) > 40


def test_shares_are_shares_and_bold_figures_are_the_best_of_their_kind():
    figures: list[PaperFigure] = [figure for table in paper_tables() for figure in table.figures]
    shares = [figure for figure in figures if figure.metric in METRICS and METRICS[figure.metric].share]
    assert all(0 < figure.mean < 1 for figure in shares)
    main = next(table for table in paper_tables() if table.label == "table:ood_wrn")
    for data, ood in {(figure.data, figure.ood) for figure in main.figures if figure.ood}:
        column = [figure for figure in main.figures if (figure.data, figure.ood) == (data, ood)]
        best = max(figure.mean for figure in column)
        best_single = max(figure.mean for figure in column if figure.members == 1)
        assert {figure.mean for figure in column if figure.bold} == {best, best_single}


def test_every_table_says_what_it_shows():
    for table in paper_tables():
        assert table.part in ("main text", "appendix")
        assert table.caption.endswith(".")
