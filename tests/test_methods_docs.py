"""The tables of names in the docs are those of the registry."""

from scripts.methods import PAGE, methods_table, with_table


def test_the_page_on_comparing_has_the_table_of_the_registry():
    page = PAGE.read_text()
    assert methods_table() in page, "run `python scripts/methods.py`"
    assert with_table(page) == page
