"""docs/data.md names every data set; tests/docs runs it."""

from pathlib import Path

from ddu.data import list_data

DOCUMENT = Path(__file__).parents[2] / "docs" / "data.md"


def test_every_name_is_in_the_table():
    text = DOCUMENT.read_text()
    for name in list_data(root="nowhere"):
        assert f"`{name}`" in text or f"`{name}:" in text, name
