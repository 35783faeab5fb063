"""The README does what it shows: its code runs, prints that table, and its numbers are the demo's."""

import csv
import importlib.util
import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddu.cli import main
from ddu.results import RowFile
from ddu.sources import open_source

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "scripts" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


readme = load_script()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the quick start was run, and what that printed."""
    folder = tmp_path_factory.mktemp("own_model")
    return folder, readme.run_quick_start(README, folder)


@pytest.mark.slow
def test_the_quick_start_prints_the_table_that_is_shown(workplace: tuple[Path, str]) -> None:
    (shown,) = readme.code_blocks(README, "text")
    _, printed = workplace
    # Training on another kind of processor rounds otherwise, so numbers differ in their digits there, words do not
    words = [re.sub(r"-?\d+\.?\d*", "#", line).split() for line in printed.splitlines()]
    assert words == [re.sub(r"-?\d+\.?\d*", "#", line).split() for line in shown.splitlines()]


@pytest.mark.slow
def test_the_commands_lead_from_a_network_to_a_server(
    workplace: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = workplace
    monkeypatch.chdir(folder)
    _, commands, requests_to_it, _ = readme.code_blocks(README, "sh")  # after make, and before the installation
    *commands, serve = commands.splitlines()
    for command in commands:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0, (command, capsys.readouterr())
    (shown,) = readme.code_blocks(README, "text")
    expected = [(line.split()[1], line.split()[-1]) for line in shown.splitlines()[1:5]]
    with (folder / "rows.csv").open(newline="") as file:
        assert [(row["label"], row["verdict"]) for row in csv.DictReader(file)] == expected
    source = open_source(folder / "bundle")
    for index, (_, verdict) in enumerate(expected):
        assert source.predict([str(folder / "scans" / f"{index}.png")]).to_dict()["verdict"] == [verdict]
    server = subprocess.Popen(
        [sys.executable, "-c", "from ddu.cli import main; main()", *shlex.split(serve)[1:], "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        address = re.search(r"http://\S+?:\d+", server.stderr.readline())
        assert address
        for line in requests_to_it.splitlines():
            curl = shlex.split(line.replace("http://127.0.0.1:8000", address[0]))
            answer = subprocess.run([*curl, "--silent", "--fail"], capture_output=True, check=True).stdout
            assert "error" not in json.loads(answer)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert server.returncode == 0


@pytest.mark.slow
def test_the_numbers_are_the_demos(whole_demo: Path) -> None:
    """On one kind of processor they are the same; another rounds otherwise, which changes no more than a seed does."""
    shown = {
        name: tuple(map(float, row)) for name, *row in re.findall(r"\| (.+?) \| (.+?) \| (.+?) to (.+?) \|", README)
    }
    measured = readme.score_rows(RowFile(whole_demo / "rows.csv").read())
    assert list(shown) == list(measured)
    for name, (seed_0, lowest, highest) in shown.items():
        assert lowest <= seed_0 <= highest, name
        beyond = (highest - lowest) / 2 + 0.001  # five seeds do not show the whole range, and the table is rounded
        assert lowest - beyond <= round(measured[name], 3) <= highest + beyond, name
