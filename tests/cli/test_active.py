"""`ddu active` as a user meets it, and as a kill meets it."""

import io
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from ddu.cli import main
from ddu.detectors import METHODS, Method, Softmax, register
from ddu.results import RowFile

RUN = "import sys; sys.argv[0] = 'ddu'; from ddu.cli import main; main()"
TINY = ("--set", "epochs=2", "samples_per_epoch=64", "--until", "60")
DIGITS = ("active", "--data", "dirty_digits", *TINY, "--acquisition", "density", "ensemble_mi")


def read(folder):
    return RowFile(Path(folder) / "rows.csv").read()


def timeless(rows):
    return [replace(row, value=0 if row.metric == "round_seconds" else row.value, command=None) for row in rows]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of a command that ran to its end, and what it printed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("COLUMNS", "200")
        patch.setattr(sys, "argv", ["ddu", *DIGITS, "--output", str(folder)])
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 0, err.getvalue()
    return folder, out.getvalue(), err.getvalue()


def test_every_acquisition_is_measured_reported_and_drawn(uninterrupted):
    folder, out, err = uninterrupted
    rows = [row for row in read(folder) if row.metric == "accuracy"]
    assert [row.detector for row in rows] == ["density"] * 5 + ["ensemble_mi"] * 5
    assert [row.labels for row in rows[:5]] == [20, 30, 40, 50, 60]
    assert rows[0].command == f"ddu {' '.join(DIGITS)} --output {folder}"
    assert "density, seed 0: 20 of 60 labels, accuracy " in err
    assert "epochs 10 -> 2" in out
    assert "3 x resffn2_64" in out
    assert f"{folder} has rows.csv, curves.png and table.md." in out
    table = (folder / "table.md").read_text()
    assert "| density | resffn2_64+sn | 1 |" in table
    assert "epochs 10 -> 2; samples_per_epoch 640 -> 64" in table
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_command_that_is_killed_in_the_middle_of_a_round_ends_in_the_same_curve(command, uninterrupted, tmp_path):
    whole, *_ = uninterrupted
    arguments = (*DIGITS, "--output", str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", RUN, *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 200
    while len(read(tmp_path)) < 8 and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert 8 <= len(read(tmp_path)) < len(read(whole)), "it was over before it could be killed"
    assert not (tmp_path / "table.md").exists()
    assert command(*arguments)[0] == 0
    assert timeless(read(tmp_path)) == timeless(read(whole))
    assert (tmp_path / "table.md").read_text() == (whole / "table.md").read_text()


def test_finished_curves_are_not_measured_again(command, uninterrupted):
    folder, *_ = uninterrupted
    before = (folder / "rows.csv").read_bytes()
    assert command(*DIGITS, "--output", str(folder))[0] == 0
    assert (folder / "rows.csv").read_bytes() == before


def test_a_registered_detector_is_used_by_its_name_in_the_usual_folder(command, tmp_path, monkeypatch):
    class Mine(Softmax):
        name = "mine"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ddu.detectors.registry.METHODS", dict(METHODS))
    register(Method("mine", Mine))
    code, out, err = command("active", "--data", "digits", *TINY, "--until", "20", "--acquisition", "mine")
    assert code == 0, err
    assert "mine" in out
    assert {row.detector for row in read("results/active_digits")} == {"mine"}
    assert os.listdir("results/active_digits/learners") == ["mine-seed0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "dirty_digit"), "There is no protocol for 'dirty_digit'. Did you mean 'dirty_digits'?"),
        (
            ("--acquisition", "density", "entropi"),
            "There is no acquisition function 'entropi'. Did you mean 'entropy'?",
        ),
        (("--set", "epoch=3"), "A recipe has no field 'epoch'. Did you mean 'epochs'?"),
        (("--set", "validation=0"), "A recipe has no field 'validation'."),
        (
            ("--until", "10"),
            "The protocol for dirty_digits starts with 20 labels, so it cannot stop at 10: stop at 20 or more.",
        ),
        (("--until", "35"), "20 labels and then 10 per round do not add up to 35: stop at 30 or at 40."),
        (("--exclude-above", "99"), "The 'quantile' of ExcludeOutliers must lie between 0 and 1. Got 99.0 instead."),
        (("--data", "mnist", "--data-root", "/nowhere"), "mnist"),
    ],
)
def test_a_mistake_is_one_line(command, tmp_path, arguments, message):
    code, _, err = command(*DIGITS, "--output", str(tmp_path), *arguments)
    assert code == 1
    assert message in err
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == []


def test_help_has_an_example_and_the_acquisitions(command):
    code, out, _ = command("active", "--help")
    assert code == 0
    for words in ("--acquisition", "--seeds", "--scale", "ensemble_mi", "ddu active --data digits"):
        assert words in out
