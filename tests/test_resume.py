"""The same settings resume, other settings are refused, and one command at a time works in a folder."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from ddu.errors import ArtifactError, InputError
from ddu.files import LOCK
from ddu.resume import one_at_a_time, read_settings, refuse_changes

SETTINGS = {"seed": 0, "recipe": {"lr": 0.1, "model": {"width": 1}}, "limit": None}


def test_the_same_settings_are_accepted():
    refuse_changes("The run in runs/a", SETTINGS, json.loads(json.dumps(SETTINGS)))
    refuse_changes("The run in runs/a", {"limit": None}, {})  # None is "not set"


@pytest.mark.parametrize(
    ("here", "difference"),
    [
        (SETTINGS | {"seed": 1}, "seed=0, and this one has seed=1"),
        (SETTINGS | {"limit": 10}, "limit=None, and this one has limit=10"),
        (SETTINGS | {"recipe": {"lr": 0.2, "model": {"width": 1}}}, "lr=0.1, and this one has lr=0.2"),
        (SETTINGS | {"recipe": {"lr": 0.1, "model": {"width": 2}}}, "width=1, and this one has width=2"),
        (SETTINGS | {"recipe": {"lr": 0.1}}, "model={'width': 1}, and this one has model=None"),
        (SETTINGS | {"more": "a"}, "more=None, and this one has more=a"),
        ({"recipe": SETTINGS["recipe"], "limit": 10}, "seed=0, and this one has seed=None"),  # the first of two
    ],
)
def test_a_change_is_refused_with_the_name_and_both_values(here, difference):
    with pytest.raises(InputError) as caught:
        refuse_changes("The run in runs/a", SETTINGS, here)
    assert str(caught.value) == f"The run in runs/a has {difference}: use the same, or another folder."


def test_settings_are_read_where_work_has_begun_and_none_where_it_has_not(tmp_path):
    assert read_settings(tmp_path / "new" / "run.json", "run") is None
    assert read_settings(tmp_path / "run.json", "run") is None
    (tmp_path / LOCK).touch()  # does not belong to anything else
    (tmp_path / ".run.json.0123456789abcdef.tmp").touch()  # of a process that was killed
    assert read_settings(tmp_path / "run.json", "run") is None
    (tmp_path / "run.json").write_text('{"seed": 0}')
    assert read_settings(tmp_path / "run.json", "run") == {"seed": 0}


def test_files_of_somebody_else_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError) as caught:
        read_settings(tmp_path / "run.json", "run")
    assert str(caught.value) == f"{tmp_path} holds files that do not belong to a run: choose another folder."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"seed": ', " is damaged (Expecting value: line 1 column 10 (char 9)): choose another folder for this run."),
        (b"\xff", " is damaged ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte): choose "),
        (b"[]", " does not describe a run: choose another folder."),
    ],
)
def test_a_damaged_file_of_settings_is_named(tmp_path, content, message):
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(ArtifactError) as caught:
        read_settings(path, "run")
    assert str(caught.value).startswith(f"{path}{message}")
    assert path.read_bytes() == content


def test_work_that_wrote_nothing_leaves_no_folder_and_no_lock(tmp_path):
    folder = tmp_path / "new" / "run"

    def fail():
        with one_at_a_time(folder):
            assert folder.is_dir()
            raise InputError("wrong")

    with pytest.raises(InputError, match=r"^wrong$"):
        fail()
    assert not folder.exists()
    with one_at_a_time(folder):
        pass
    assert not folder.exists()


def test_work_that_wrote_something_stays(tmp_path):
    for _ in range(2):
        with one_at_a_time(tmp_path / "run"):
            (tmp_path / "run" / "run.json").write_text("{}")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(InputError) as caught, one_at_a_time(tmp_path / "run"):
        pass
    assert str(caught.value) == f"{tmp_path / 'run'} is a file, or inside one: choose a folder."


def start_python(script: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


WAIT_FOR_A_LINE = """
import sys
from pathlib import Path
from ddu.resume import one_at_a_time

folder = Path(sys.argv[1])
with one_at_a_time(folder):
    print("inside", sorted(path.name for path in folder.iterdir()), flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "write":
        (folder / "work").touch()
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["write", "nothing"])
def test_a_second_command_waits_and_then_finds_what_the_first_one_did(tmp_path, what):
    """Also where the first one wrote nothing, and so removed the folder and the lock that the second waits for."""
    folder = tmp_path / "run"

    start = partial(start_python, WAIT_FOR_A_LINE, str(folder), what)
    first = start()
    assert first.stdout is not None
    assert first.stdout.readline() == f"inside ['{LOCK}']\n"
    second = start()
    assert second.stderr is not None
    assert second.stderr.readline() == f"Another command is working in {folder}. Waiting for it to finish.\n"
    assert first.communicate("go\n") == ("", "")
    found, complaint = second.communicate("go\n")
    assert found == ("inside ['.lock', 'work']\n" if what == "write" else "inside ['.lock']\n")
    assert complaint == ""
    assert folder.exists() == (what == "write")


TRAIN = """
import sys
import ddu.runs.run as train
from ddu.runs import RunSpec, train_run
from ddu.training import RECIPES

fit = train.fit

def waiting(*arguments, **options):
    print("training", flush=True)
    sys.stdin.readline()
    return fit(*arguments, **options)

train.fit = waiting
run = train_run(RunSpec("resffn2_16", "two_moons", RECIPES["two_moons"].with_changes(epochs=1)), sys.argv[1])
print(run.metrics["seconds"], flush=True)
"""


@pytest.mark.slow
def test_two_commands_on_one_folder_train_once(tmp_path: Path):
    folder = tmp_path / "run"

    start = partial(start_python, TRAIN, str(folder))
    first = start()
    assert first.stdout is not None
    assert first.stdout.readline() == "training\n"
    second = start()
    assert second.stderr is not None
    assert second.stderr.readline() == f"Another command is working in {folder}. Waiting for it to finish.\n"
    seconds, _ = first.communicate("go\n")
    assert first.returncode == 0
    again, _ = second.communicate("go\n")
    assert second.returncode == 0
    assert again == seconds  # and not "training" before it
    assert json.loads((folder / "metrics.json").read_text())["seconds"] == float(seconds)
    assert len((folder / "history.csv").read_text().splitlines()) == 2
