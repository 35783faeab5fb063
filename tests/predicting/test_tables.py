"""Rows come back from each format as they were written."""

import csv
import json
import sys

import pyarrow.parquet
import pytest

from ddu.errors import InputError, MissingExtraError
from ddu.predicting.tables import COLUMNS, check_output, write_rows

GOOD = {
    "path": 'a, "b"/ü.png',
    "label": "left",
    "confidence": 0.75,
    "aleatoric": 0.5,
    "epistemic": -1.25,
    "p_value": 0.125,
    "candidates": ["left", "right"],
    "verdict": "ambiguous",
    "reason": None,
    "probs": {"left": 0.75, "right": 0.25},
}
BAD = dict.fromkeys([*COLUMNS, "probs"]) | {"path": "b", "candidates": [], "verdict": "invalid", "reason": "broken"}
ROWS = [GOOD, BAD] * 3
CLASSES = ("left", "right")


def test_csv_has_a_column_per_class_and_empty_cells_for_what_is_missing(tmp_path):
    write_rows(tmp_path / "rows.csv", ROWS, CLASSES)
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        good, bad, *rest = csv.DictReader(file)
    assert list(good) == [*COLUMNS, "prob_left", "prob_right"]
    assert good["candidates"] == "left|right"
    assert {name: float(good[name]) for name in ("epistemic", "prob_right")} == {"epistemic": -1.25, "prob_right": 0.25}
    assert (good["path"], good["reason"]) == (GOOD["path"], "")
    assert bad == dict.fromkeys(good, "") | {"path": "b", "verdict": "invalid", "reason": "broken"}
    assert len(rest) == 4


def test_json_lines_are_the_rows(tmp_path):
    write_rows(tmp_path / "rows.jsonl", ROWS, CLASSES)
    lines = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == ROWS


@pytest.mark.parametrize("at_a_time", [1, 4, 10_000])
def test_parquet_has_typed_columns(tmp_path, at_a_time, monkeypatch):
    monkeypatch.setattr("ddu.predicting.tables._ROWS", at_a_time)
    write_rows(tmp_path / "rows.parquet", ROWS, CLASSES)
    table = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    expected = {"prob_left": 0.75, "prob_right": 0.25}
    assert table.to_pylist()[0] == {name: GOOD[name] for name in COLUMNS} | expected
    assert table.to_pylist()[1] == {name: BAD[name] for name in COLUMNS} | dict.fromkeys(expected)
    assert table.num_rows == 6
    assert str(table.schema.field("candidates").type).startswith("list<")
    assert str(table.schema.field("epistemic").type) == "double"


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_an_error_midway_leaves_the_file_that_was_there(tmp_path, suffix):
    def rows():
        yield GOOD
        raise KeyboardInterrupt

    path = tmp_path / f"rows.{suffix}"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt):
        write_rows(path, rows(), CLASSES)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_no_rows_are_a_file_without_rows(tmp_path):
    for suffix in ("csv", "jsonl", "parquet"):
        write_rows(tmp_path / f"rows.{suffix}", [])
    assert (tmp_path / "rows.csv").read_text() == ",".join(COLUMNS) + "\n"
    assert (tmp_path / "rows.jsonl").read_text() == ""
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").column_names == [*COLUMNS]


def test_a_file_that_cannot_be_written_is_refused_beforehand(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"written to files that end in .csv, .jsonl, .parquet. Got rows.xlsx instead"):
        check_output("rows.xlsx")
    (tmp_path / "rows.csv").mkdir()
    with pytest.raises(InputError, match="is a folder: give the name of a file"):
        check_output(tmp_path / "rows.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="A Parquet file needs the 'parquet' extra"):
        check_output(tmp_path / "rows.parquet")
