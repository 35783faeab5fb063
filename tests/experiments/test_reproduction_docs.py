"""docs/reproduction.md is what the committed rows say."""

from scripts import reproduction


def test_the_page_is_that_of_the_rows_in_the_repository():
    assert reproduction.PAGE.read_text() == reproduction.page() + "\n", "run `python scripts/reproduction.py`"
