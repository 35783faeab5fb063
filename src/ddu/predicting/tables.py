"""Rows of predictions as a CSV, JSON lines or Parquet file, written whole or not at all."""

import csv
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ddu.errors import InputError
from ddu.files import FilePath, check_writable, whole_file
from ddu.messages import require

COLUMNS = ("path", "label", "confidence", "aleatoric", "epistemic", "p_value", "candidates", "verdict", "reason")
"""What every row has; with probabilities, `probs` follows, by class."""

NUMBERS = ("confidence", "aleatoric", "epistemic", "p_value")

_ROWS = 10_000  # of a Parquet file that are in memory at a time


def check_output(file: FilePath) -> Path:
    """A file that rows can be written to, by its name; refused in words before anything is judged."""
    path = Path(file)
    if path.suffix.lower() not in _WRITERS:
        raise InputError(f"Predictions are written to files that end in {', '.join(_WRITERS)}. Got {file} instead.")
    if path.suffix.lower() == ".parquet":
        _arrow()
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file.")
    check_writable(path.parent)
    return path


def write_rows(path: Path, rows: Iterable[dict[str, Any]], classes: Sequence[str] = ()) -> None:
    """Writes rows in one step, in the format of the suffix; memory does not grow with their number.

    Args:
        path: As `check_output` gave it.
        rows: With `COLUMNS`, and `probs` where there are classes.
        classes: Whose probabilities are written: a column `prob_CLASS` for each, in JSON a mapping `probs`.
    """
    with whole_file(path) as file:
        _WRITERS[path.suffix.lower()](file, iter(rows), classes)


def _write_csv(file: BinaryIO, rows: Iterator[dict[str, Any]], classes: Sequence[str]) -> None:
    """Candidates are joined by "|", and what a row does not have is empty."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow([*COLUMNS, *(f"prob_{name}" for name in classes)])
    for row in rows:
        flat = row | {"candidates": "|".join(row["candidates"] or ())}
        probs = row.get("probs") or {}
        writer.writerow([*(flat[name] for name in COLUMNS), *(probs.get(name) for name in classes)])
    text.flush()
    text.detach()


def _write_jsonl(file: BinaryIO, rows: Iterator[dict[str, Any]], classes: Sequence[str]) -> None:
    for row in rows:
        file.write(as_line(row))


def as_line(row: Any) -> bytes:
    """A row as a line of JSON."""
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _write_parquet(file: BinaryIO, rows: Iterator[dict[str, Any]], classes: Sequence[str]) -> None:
    arrow, parquet = _arrow()
    kinds = dict.fromkeys(COLUMNS, arrow.string()) | dict.fromkeys(NUMBERS, arrow.float64())
    kinds |= {"candidates": arrow.list_(arrow.string())} | {f"prob_{name}": arrow.float64() for name in classes}
    schema = arrow.schema(list(kinds.items()))
    with parquet.ParquetWriter(file, schema) as writer:
        while some := list(itertools.islice(rows, _ROWS)):
            flat = [row | {f"prob_{name}": (row.get("probs") or {}).get(name) for name in classes} for row in some]
            writer.write_table(arrow.Table.from_pylist(flat, schema=schema))


def _arrow() -> tuple[Any, Any]:
    needed = {"extra": "parquet", "purpose": "A Parquet file"}
    return require("pyarrow", **needed), require("pyarrow.parquet", **needed)


_WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}
