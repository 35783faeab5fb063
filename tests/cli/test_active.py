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

from ddu.active import CurvePoint
from ddu.cli import main
from ddu.results import RowFile

RUN = "import sys; sys.argv[0] = 'ddu'; from ddu.cli import main; main()"
TINY = ("--set", "epochs=2", "samples_per_epoch=64", "--until", "60")
DIGITS = ("active", "--data", "dirty_digits", *TINY, "--acquisition", "density", "ensemble_mi")


def points(folder):
    return RowFile(Path(folder) / "active_dirty_digits.csv", CurvePoint).read()


def timeless(rows):
    return [replace(row, seconds=0, command=None) for row in rows]


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
    rows = points(folder)
    assert [row.acquisition for row in rows] == ["density"] * 5 + ["ensemble_mi"] * 5
    assert [row.labels for row in rows[:5]] == [20, 30, 40, 50, 60]
    assert rows[0].command == f"ddu {' '.join(DIGITS)} --output {folder}"
    assert "density, seed 0: 20 of 60 labels, accuracy " in err
    assert "epochs 10 -> 2" in out
    assert "3 x resffn2_64" in out
    table = (folder / "active_dirty_digits.md").read_text()
    assert "| density | resffn2_64+sn | 1 |" in table
    assert "epochs 10 -> 2; samples_per_epoch 640 -> 64" in table
    assert (folder / "active_dirty_digits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_command_that_is_killed_in_the_middle_of_a_round_ends_in_the_same_curve(command, uninterrupted, tmp_path):
    whole, *_ = uninterrupted
    arguments = (*DIGITS, "--output", str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", RUN, *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 200
    while len(points(tmp_path)) < 3 and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert 3 <= len(points(tmp_path)) < 10, "it was over before it could be killed"
    assert not (tmp_path / "active_dirty_digits.md").exists()
    assert command(*arguments)[0] == 0
    assert timeless(points(tmp_path)) == timeless(points(whole))
    assert (tmp_path / "active_dirty_digits.md").read_text() == (whole / "active_dirty_digits.md").read_text()


def test_what_is_done_is_not_done_again(command, uninterrupted):
    folder, *_ = uninterrupted
    before = (folder / "active_dirty_digits.csv").read_bytes()
    assert command(*DIGITS, "--output", str(folder))[0] == 0
    assert (folder / "active_dirty_digits.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "dirty_digit"), "There is no protocol for 'dirty_digit'. Did you mean 'dirty_digits'?"),
        (("--acquisition", "density", "entropi"), "There is no acquisition 'entropi'. Did you mean 'entropy'?"),
        (("--set", "epoch=3"), "A recipe has no field 'epoch'. Did you mean 'epochs'?"),
        (("--set", "validation=0"), "A recipe has no field 'validation'."),
        (("--until", "35"), "20 labels and then 10 a round do not come to 35: stop at 30 or at 40."),
        (("--leave-out-above", "99"), "The 'quantile' of LeaveOutFar must lie between 0 and 1. Got 99.0 instead."),
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
