"""`ddu reproduce` as a user meets it."""

import pytest

from ddu.experiments import REPRODUCTIONS


def test_the_list_has_every_name_and_what_it_shows(command):
    code, printed, _ = command("reproduce", "list")
    assert code == 0
    for name in REPRODUCTIONS:
        assert f" {name} " in printed


def test_a_plan_says_what_would_be_trained_and_runs_nothing(command, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, printed, _ = command(
        "reproduce", "entropy-variance", "--scale", "paper", "--plan", "-o", str(tmp_path / "out")
    )
    assert code == 0
    (line,) = [line.split() for line in printed.splitlines() if "entropy-variance" in line]
    assert line[1:8] == ["wide_resnet28_10+sn", "cifar10", "svhn", "50,000", "350", "30", "1"]
    assert not (tmp_path / "out").exists()


def test_the_plan_of_all_adds_up(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, printed, _ = command("reproduce", "all", "--plan", "--seeds", "2")
    assert code == 0
    lines = [line.split() for line in printed.splitlines()]
    hours = [float(line[-1]) for line in lines if line and line[0] in REPRODUCTIONS]
    (total,) = [float(line[2]) for line in lines if line[:2] == ["In", "all:"]]
    assert total == pytest.approx(sum(hours), abs=0.005 * len(hours) + 0.005)


@pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")  # a network that hardly learns anything
def test_a_run_prints_the_table_and_the_verdict_and_leaves_a_page(command, tmp_path):
    code, printed, _ = command("reproduce", "objective-mismatch", "--scale", "smoke", "-o", str(tmp_path))
    assert code == 0
    folder = tmp_path / "objective-mismatch/smoke"
    assert "It holds in part. The conditional fit has the lowest conditional cross-entropy" in " ".join(printed.split())
    assert "**At the scale `smoke` it holds in part: " in (folder / "page.md").read_text()


def test_an_unknown_name_is_answered_with_the_closest(command):
    code, _, complaint = command("reproduce", "two-mons")
    assert code == 1
    assert complaint.startswith("There is no reproduction 'two-mons'. Did you mean 'two-moons'?")
