"""docs/data.md does what it shows."""

import doctest
from pathlib import Path

from ddu.data import list_data

DOCUMENT = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_examples_print_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DDU_DATA", str(tmp_path))
    result = doctest.testfile(str(DOCUMENT), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0


def test_every_name_is_in_the_table():
    text = DOCUMENT.read_text()
    for name in list_data(root="nowhere"):
        assert f"`{name}`" in text or f"`{name}:" in text, name
