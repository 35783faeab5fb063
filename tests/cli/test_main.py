"""The command line as a user meets it; what depends on a fresh interpreter runs in one."""

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import ddu
from ddu.cli import note_on_arguments
from ddu.cli._app import COMMANDS
from ddu.errors import InputError, LabelWarning

RUN = "import sys; sys.argv[0] = 'ddu'; from ddu.cli import main; main()"


def fresh_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


def test_the_version_is_printed(command):
    assert command("--version") == (0, f"ddu {ddu.__version__}\n", "")


def test_help_lists_the_commands(command):
    code, printed, _ = command("--help")
    assert code == 0
    for line in (
        "demo       Train, fit, calibrate and judge: the whole method in about a minute.",
        "train      Train a network, fit and calibrate its detector, and test both.",
        "reproduce  The paper's tables and figures, one command each.",
    ):
        assert line in printed


@pytest.mark.parametrize("asked", ["--version", "--help"])
def test_version_and_help_are_quick_since_they_import_no_torch(asked):
    done = fresh_python(f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); {RUN}", asked)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_the_first_line_of_its_help(command, name):
    code, printed, _ = command(name, "--help")
    assert code == 0
    assert COMMANDS[name].split("`")[0] in " ".join(printed.split())


def test_help_of_the_demo_has_its_options_and_an_example(command):
    code, printed, _ = command("demo", "--help")
    assert code == 0
    for words in ("--output", "-o", "--seed", "--epochs", "ddu demo --seed 1 --output runs/demo1"):
        assert words in printed


def test_a_seed_promises_the_same_numbers_on_the_same_machine_alone(command):
    for name, what in (("demo", "numbers"), ("train", "network")):
        _, printed, _ = command(name, "--help")
        promise = f"The same seed gives the same {what} on the same kind of machine with as many threads."
        assert promise in " ".join(printed.replace("│", " ").split())


@pytest.mark.parametrize("name", ["predict", "doctor", "report", "export", "serve"])
def test_the_help_says_which_fitted_detectors_are_a_source_by_themselves(command, name):
    _, printed, _ = command(name, "--help")
    words = " ".join(printed.replace("│", " ").split())
    assert "a detector that ddu fit wrote around a network of timm or torchvision" in words.replace("`", "")


def test_a_known_error_is_one_line_and_no_traceback(command, tmp_path):
    (tmp_path / "demo").touch()
    code, _, complaint = command("demo", "--output", str(tmp_path / "demo"))
    assert code == 1
    assert complaint == f"{tmp_path}/demo is a file, or inside one: choose a folder.\n"


def test_a_warning_of_ours_is_one_line_and_names_no_code():
    after = "warnings.warn('Check the labels.', LabelWarning); warnings.warn('Theirs.')"
    imports = "import warnings; from ddu.cli import main; from ddu.errors import LabelWarning"
    done = fresh_python(f"{imports}\ntry: main()\nfinally: {after}", "--version")
    ours, theirs, *_ = done.stderr.splitlines()
    assert ours == "Warning: Check the labels."
    assert theirs.endswith(" UserWarning: Theirs.")


@pytest.mark.parametrize(
    ("complaint", "named"),
    [
        ("Give each class more samples, or use covariance='shared', 'low_rank' or pca=.", "covariance= or pca="),
        ("Earlier layers see more, features=[...]. calibrate(..., probes=False) does not ask.", "features= or probes="),
        ("Number them as in training, or give the classes, ddu.DDU(model, classes=[...]).", "classes="),
    ],
)
def test_what_only_python_can_set_is_told_to_those_on_the_command_line(command, monkeypatch, complaint, named):
    def fail(arguments):
        raise InputError(complaint)

    monkeypatch.setattr("ddu.cli._app.make_app", fail)
    note = f"No option sets {named}: fit such a detector in Python, save it, and name its folder with --detector."
    assert command("fit") == (1, "", f"{complaint}\n{note}\n")
    said = warnings.formatwarning(complaint, LabelWarning, "file.py", 1)
    assert said == f"Warning: {complaint}\n", "the note was given already"


def test_settings_and_paths_are_not_taken_for_arguments_of_python():
    for message in (
        "--set epochs=x is no number.",
        "There is no folder runs/pca=3.",
        "There must be one of NAME=VALUE.",
    ):
        assert note_on_arguments(message) is None


def test_an_option_that_is_no_number_is_refused(command):
    code, _, complaint = command("demo", "--seed", "seven")
    assert code == 2
    assert "Invalid value for '--seed'" in complaint


def test_importing_the_command_line_loads_no_optional_dependency():
    heavy = ["matplotlib", "sklearn", "jinja2", "PIL", "typer", "rich"]
    done = fresh_python(f"import sys, ddu, ddu.cli; print([name for name in {heavy} if name in sys.modules])")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_missing_command_line_extra_is_named():
    done = fresh_python("import sys; sys.modules['typer'] = None; " + RUN, "demo")
    assert done.returncode == 1
    assert (
        done.stderr
        == "The ddu command needs the 'cli' extra: pip install 'ddu[cli]', or in a clone: pip install '.[cli]'.\n"
    )


def test_a_missing_demo_extra_is_named(command, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    code, _, complaint = command("demo", "-o", str(tmp_path / "demo"))
    assert (code, complaint) == (
        1,
        "ddu demo needs the 'demo' extra: pip install 'ddu[demo]', or in a clone: pip install '.[demo]'.\n",
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_control_c_ends_the_demo_with_a_word_and_leaves_what_can_be_resumed(command, tmp_path: Path):
    output = tmp_path / "demo"
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "demo", "--output", str(output)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
    )
    deadline = time.monotonic() + 100
    while not (output / "run" / "run.json").exists() and time.monotonic() < deadline:  # then the training begins
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert complaint.endswith("Interrupted.\n")
    assert "Traceback" not in complaint
    assert sorted(path.name for path in output.iterdir()) == ["demo.json", "run"]
    assert not list(output.rglob("*.tmp"))
    code, _, complaint = command("demo", "--seed", "1", "--output", str(output))
    assert (code, complaint) == (
        1,
        f"The demo in {output} has seed=0, and this one has seed=1: use the same, or another folder.\n",
    )
