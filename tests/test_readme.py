"""The README does what it shows: its code runs, prints that table, and its numbers are the demo's."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from ddu.experiments.demo import Demo
from ddu.results import RowFile

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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `make demo` leaves the whole demo."""
    folder = tmp_path_factory.mktemp("readme")
    Demo().measure(folder / "demo")
    return folder


@pytest.mark.slow
def test_the_code_prints_the_table_that_is_shown(folder: Path) -> None:
    (code,) = readme.code_blocks(README, "python")
    (shown,) = readme.code_blocks(README, "text")
    printed = readme.run_code(code, folder)
    # Training on another kind of processor rounds otherwise, so numbers differ in their digits there, words do not
    words = [re.sub(r"-?\d+\.?\d*", "#", line).split() for line in printed.splitlines()]
    assert words == [re.sub(r"-?\d+\.?\d*", "#", line).split() for line in shown.splitlines()]


@pytest.mark.slow
def test_the_numbers_are_the_demos(folder: Path) -> None:
    """On one kind of processor they are the same; another rounds otherwise, which changes no more than a seed does."""
    shown = {
        name: tuple(map(float, row)) for name, *row in re.findall(r"\| (.+?) \| (.+?) \| (.+?) to (.+?) \|", README)
    }
    measured = readme.score_rows(RowFile(folder / "demo" / "rows.csv").read())
    assert list(shown) == list(measured)
    for name, (seed_0, lowest, highest) in shown.items():
        assert lowest <= seed_0 <= highest, name
        beyond = (highest - lowest) / 2 + 0.001  # five seeds do not show the whole range, and the table is rounded
        assert lowest - beyond <= round(measured[name], 3) <= highest + beyond, name


def test_links_and_pictures_exist() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_examples_run() -> None:
    for example in sorted((ROOT / "examples").glob("*.py")):
        readme.run_code(example.read_text(), ROOT)
