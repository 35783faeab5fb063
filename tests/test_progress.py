"""Progress bars: on standard error, only when wanted, and never in the way."""

import sys

import pytest

from ddu.progress import track


@pytest.mark.parametrize("show", [None, False, True])
def test_items_come_through_unchanged_and_lazily(show, capsys):
    drawn = []

    def source():
        for item in range(5):
            drawn.append(item)
            yield item

    items = iter(track(source(), "counting", show=show))
    assert next(items) == 0
    assert drawn == [0]
    assert list(items) == [1, 2, 3, 4]
    assert capsys.readouterr().out == ""


def test_a_bar_shows_words_and_numbers_on_standard_error(capsys):
    assert list(track([1, 2, 3], "counting", show=True)) == [1, 2, 3]
    shown = capsys.readouterr().err
    assert "counting: " in shown
    assert "3/3" in shown


@pytest.mark.parametrize("show", [None, False])
def test_without_a_terminal_there_is_no_bar_unless_asked_for(show, capsys):
    list(track([1, 2, 3], "counting", show=show))
    assert capsys.readouterr().err == ""


def test_without_tqdm_there_is_no_bar(monkeypatch, capsys):
    for module in ("tqdm", "tqdm.auto"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    assert list(track([1, 2], "counting", show=True)) == [1, 2]
    assert capsys.readouterr().err == ""
