"""docs/reproduction.md is what the committed rows say."""

from dataclasses import replace

import pytest

from ddu.experiments import REPRODUCTIONS
from ddu.results import RowFile
from scripts import reproduction

from .rows import row


def test_the_page_is_that_of_the_rows_in_the_repository():
    assert reproduction.PAGE.read_text() == reproduction.page() + "\n", "run `python scripts/reproduction.py`"


def test_every_answer_has_what_was_measured_before_what_is_asked():
    """Whatever the answer is, the words before it are true."""
    answers = [
        line for line in reproduction.PAGE.read_text().splitlines() if line.startswith(("- yes: ", "- **no**: "))
    ]
    assert answers
    assert [line for line in answers if line.count("; asked: ") != 1] == []


def test_the_introduction_explains_the_names_in_the_tables_and_the_run_that_was_replaced():
    text = reproduction.PAGE.read_text()
    introduction = text.partition("The paper's claims, by name")[0]
    for name in ("ddu_paper", "density", "ddu", "ensemble_pe", "ensemble_mi", "+sn", "x0.25", "noisy:"):
        assert f"`{name}`" in introduction
    replaced = [name for name, one in REPRODUCTIONS.items() if "was replaced" in one.seen]
    assert replaced == ["entropy-variance"]
    assert "One run was replaced, that of\n`entropy-variance`: its section says why." in introduction


def test_every_file_of_rows_that_a_section_names_exists():
    page = reproduction.PAGE
    named = [file for line in page.read_text().splitlines() if line[:6] == "Rows: " for file in line.split("`")]
    files = [file for file in named if file.endswith("rows.csv")]
    assert {(page.parent / file).resolve() for file in files} == set(reproduction.RESULTS.rglob("cpu/**/rows.csv"))


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Where the page looks for rows: there are none."""
    monkeypatch.setattr(reproduction, "ROOT", tmp_path)
    monkeypatch.setattr(reproduction, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def cells(name):
    """What the table at the top says of a name: its scale, seeds and verdict, and what waits for a GPU."""
    (line,) = [one for one in reproduction.page().splitlines() if one.startswith((f"| {name} |", f"| [{name}]("))]
    return [cell.strip() for cell in line.split("|")[3:-1]]


def test_what_was_not_run_says_what_the_paper_trains(results):
    assert cells("entropy-variance") == ["not run yet", "", "", "30 networks of 350 epochs (1 seed)"]
    assert cells("ood-cifar100")[3] == "700 networks of 250 to 350 epochs (25 seeds)"
    assert cells("two-moons") == ["not run yet", "", "", "nothing"]
    assert f"The paper's claims, by name: {len(REPRODUCTIONS)} × not run yet." in reproduction.page()


def test_rows_that_only_show_that_the_code_runs_are_not_published(results):
    RowFile(results / "two-moons/smoke/rows.csv").append([row("feature density", 0.8, data="two_moons")])
    assert cells("two-moons")[0] == "not run yet"


def test_the_table_counts_seeds_parts_of_the_claim_and_parts_that_are_missing(results):
    found = [
        replace(one, seed=seed)
        for seed in (0, 1)
        for one in RowFile(reproduction.PAGE.parents[1] / "results/reproduction/objective-mismatch/cpu/rows.csv").read()
        if one.seed == 0
    ]
    RowFile(results / "objective-mismatch/cpu/rows.csv").append(found)
    scale, seeds, verdict, waits = cells("objective-mismatch")
    assert scale == "`cpu`, without cifar10 yet"
    assert seeds == "2 of 3"
    assert verdict.startswith("holds in part: ")
    assert waits == "50 networks of 350 epochs (25 seeds)"
    RowFile(results / "objective-mismatch/cpu/cifar10/rows.csv").append([row("softmax", 0.8, "accuracy")])
    assert cells("objective-mismatch")[:2] == ["`cpu`", "2 of 3; cifar10 1 of 3"]


def test_the_table_names_detectors_that_have_no_rows_yet(results):
    measured = ("ddu_paper", "softmax", "energy", "duq", "density", "ensemble_pe", "ensemble_mi")
    rows = [row(name, 0.8, data="cifar10", ood="svhn", network="resnet18 x0.25+sn") for name in measured]
    RowFile(results / "ood-cifar10/cpu/rows.csv").append(rows)
    asked = [one.name for one in REPRODUCTIONS["ood-cifar10"].experiment("cpu").detectors]
    absent = [name for name in asked if name not in measured]
    assert "sngp" in absent
    assert cells("ood-cifar10")[0] == f"`cpu`, without {' and '.join(absent)} yet"


def test_rows_of_a_run_that_goes_on_do_not_keep_the_page_from_being_written(results):
    rows = [row("entropy", 0.8, "accuracy", data="mnist", labels=20)]
    RowFile(results / "active-mnist/cpu/rows.csv").append(rows)
    assert cells("active-mnist")[2] == "cannot be judged yet"
    assert "No row has mean_accuracy of detector=density." in reproduction.page()
