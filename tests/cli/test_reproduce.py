"""`ddu reproduce` as a user meets it."""

from pathlib import Path

import pytest

from ddu.experiments import REPRODUCTIONS, Reproduction
from ddu.experiments.entropy_variance import EntropyVariance
from ddu.experiments.reproduction import read_rows


def test_the_list_has_every_name_and_what_it_shows(command):
    code, printed, _ = command("reproduce", "list")
    assert code == 0
    for name in REPRODUCTIONS:
        assert f" {name} " in printed


def test_a_plan_says_what_would_be_trained_and_runs_nothing(command, tmp_path):
    code, printed, _ = command(
        "reproduce", "entropy-variance", "--scale", "paper", "--plan", "-o", str(tmp_path / "out")
    )
    assert code == 0
    assert "entropy-variance: 1 seed, 30 new networks, ? hours" in printed
    assert "trained on cifar10 against svhn" in printed
    (line,) = [line.split() for line in printed.splitlines() if "wide_resnet28_10+sn" in line]
    assert line == ["wide_resnet28_10+sn", "50,000", "350", "30", "30", "?"]
    assert "?: the throughput was not measured." in printed
    assert not (tmp_path / "out").exists()


def test_the_plan_of_all_adds_up(command):
    code, printed, _ = command("reproduce", "all", "--plan", "--seeds", "2")
    assert code == 0
    lines = [line.split() for line in printed.splitlines()]
    hours = [float(line[-2]) for line in lines if line and line[0].rstrip(":") in REPRODUCTIONS]
    assert len(hours) == len(REPRODUCTIONS)
    (total,) = [float(line[5]) for line in lines if line[:2] == ["In", "all:"]]
    assert total == pytest.approx(sum(hours), abs=0.005 * len(hours) + 0.005)


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_a_plan_can_be_read_on_eighty_columns(command, monkeypatch, scale):
    monkeypatch.setenv("COLUMNS", "80")
    _, printed, _ = command("reproduce", "all", "--scale", scale, "--plan")
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    labels = {work.key[1] for one in REPRODUCTIONS.values() for work in one.experiment(scale).work()}
    assert all(f" {label} " in printed for label in labels)


@pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")  # a network that hardly learns anything
def test_a_run_that_only_shows_that_the_code_runs_is_not_judged(command, tmp_path):
    code, printed, _ = command("reproduce", "objective-mismatch", "--scale", "smoke", "-o", str(tmp_path))
    assert code == 0
    folder = tmp_path / "objective-mismatch/smoke"
    said = "This scale only shows that the code runs: the claim is not judged."
    assert said in " ".join(printed.split())
    assert f"**{said}**" in (folder / "page.md").read_text()
    assert "holds" not in printed


def test_at_the_scale_cpu_what_is_smaller_and_the_verdict_with_its_parts_are_printed(command, tmp_path, monkeypatch):
    rows = read_rows(Path(__file__).parents[2] / "results/reproduction/entropy-variance/cpu")
    monkeypatch.setattr(EntropyVariance, "measure", lambda *_, **__: rows)
    monkeypatch.setattr(Reproduction, "write_page", lambda *_: [])
    code, printed, _ = command("reproduce", "entropy-variance", "-o", str(tmp_path))
    printed = " ".join(printed.split())
    assert code == 0
    assert "Smaller than the paper's: networks wide_resnet28_10+sn -> lenet; data cifar10 -> mnist;" in printed
    assert "epochs 50 -> 12. The claim: " in printed
    assert "It holds in part. Deviation between networks of the mean entropy: 0.135 nats" in printed


def test_an_unknown_name_is_answered_with_the_closest(command):
    code, _, complaint = command("reproduce", "two-mons")
    assert code == 1
    assert complaint.startswith("There is no reproduction 'two-mons'. Did you mean 'two-moons'?")
