"""The job: decode ahead, judge batch by batch, and keep every row that is done, so that a kill costs one batch.

While a job runs, its rows are lines of OUTPUT.partial, below a first line that says what they are rows of. When all are
there, OUTPUT is written in one step and the partial file is removed. A line that a kill cut short is judged again.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from ddu._version import __version__
from ddu.errors import ArtifactError, InputError
from ddu.files import FilePath, locked
from ddu.predicting.inputs import Chunk, Inputs
from ddu.predicting.tables import COLUMNS, as_line, check_output, write_rows
from ddu.progress import track
from ddu.sources import Source
from ddu.types import Verdict

Row = dict[str, Any]


def default_workers() -> int:
    """Threads that decode: as many as there are cores, and at most four."""
    return min(4, os.cpu_count() or 1)


def predict_rows(
    source: Source,
    inputs: Inputs,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    probabilities: bool = False,
    skip: int = 0,
    progress: bool | None = False,
) -> Iterator[list[Row]]:
    """Judges inputs in order, a batch at a time; at most two batches are in memory.

    Args:
        source: What judges them.
        inputs: What to judge.
        batch_size: Inputs per forward pass.
        workers: Threads that decode the next batch while this one is judged.
        probabilities: Whether rows have the probability of every class.
        skip: Leave out the first so many.
        progress: `True` shows a bar, `False` none, None if it takes long.

    Yields:
        The rows of a batch; an input that cannot be read is one too, with the verdict `invalid` and a reason.
    """
    pool = ThreadPoolExecutor(workers or default_workers(), "decode")
    try:
        waiting: tuple[Chunk, list[Future[list[Tensor | str]]]] | None = None
        for chunk in track(_Chunks(inputs, batch_size, skip), "predictions", show=progress):
            next_one = chunk, _submit(pool, source, chunk)
            if waiting is not None:
                yield _judged(source, *waiting, probabilities)
            waiting = next_one
        if waiting is not None:
            yield _judged(source, *waiting, probabilities)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Chunks:
    """The chunks of inputs, which know how many they are where the inputs do."""

    def __init__(self, inputs: Inputs, size: int, skip: int):
        self.inputs, self.size, self.skip = inputs, size, skip

    def __iter__(self) -> Iterator[Chunk]:
        return self.inputs.chunks(self.size, skip=self.skip)

    def __length_hint__(self) -> int:
        return -(-max(0, self.inputs.__length_hint__() - self.skip) // self.size)


def _submit(pool: ThreadPoolExecutor, source: Source, chunk: Chunk) -> list[Future[list[Tensor | str]]]:
    """Has a chunk prepared: an array at once, anything else one by one."""
    if isinstance(chunk.raw, np.ndarray):
        return [pool.submit(_prepare_array, source, chunk.raw)]
    return [pool.submit(_prepare, source, chunk.problems.get(place), raw) for place, raw in enumerate(chunk.raw)]


def _prepare(source: Source, problem: str | None, raw: Any) -> list[Tensor | str]:
    """An input as a batch of one, or why it cannot be read."""
    if problem is not None:
        return [problem]
    try:
        return [source.prepare(raw)]
    except InputError as error:
        return [str(error).removeprefix(f"{raw} ")]  # the row has the name already


def _prepare_array(source: Source, rows: np.ndarray) -> list[Tensor | str]:
    """All rows at once; where one of them is wrong, each by itself."""
    try:
        return list(source.prepare(np.array(rows)).split(1))
    except InputError:
        return [_prepare(source, None, np.array(row)[None])[0] for row in rows]


def _judged(source: Source, chunk: Chunk, prepared: list[Future[list[Tensor | str]]], probabilities: bool) -> list[Row]:
    found = [one for future in prepared for one in future.result()]
    good = [one for one in found if isinstance(one, Tensor)]
    judged = iter(_rows_of(source, torch.cat(good), probabilities) if good else [])
    return [
        {"path": _printable(name), **(next(judged) if isinstance(one, Tensor) else _unreadable(one, probabilities))}
        for name, one in zip(chunk.names, found, strict=True)
    ]


def _printable(name: str) -> str:
    """The name of a file as text, whatever bytes it has."""
    return name.encode(errors="backslashreplace").decode()


def _rows_of(source: Source, inputs: Tensor, probabilities: bool) -> list[Row]:
    """What a batch was judged to be, without names."""
    columns = source.judge(inputs).to_dict()
    names = [*COLUMNS[1:], *(["probs"] if probabilities else [])]
    count = len(columns["label"])
    rows = [{name: columns[name][i] if name in columns else None for name in names} for i in range(count)]
    for row in rows:
        row["label"], row["reason"] = row["label"] or None, row["reason"] or None
    return rows


def _unreadable(reason: str, probabilities: bool) -> Row:
    row: Row = dict.fromkeys([*COLUMNS[1:], *(["probs"] if probabilities else [])])
    return row | {"candidates": [], "verdict": str(Verdict.INVALID), "reason": reason}


def predict_to_file(
    source: Source,
    inputs: Inputs,
    output: FilePath,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    probabilities: bool = False,
    progress: bool | None = None,
) -> Counter[str]:
    """Judges inputs into a file; the same call resumes a job that was stopped, however that was.

    Args:
        source: What judges them.
        inputs: What to judge.
        output: A file that ends in .csv, .jsonl or .parquet; one that is there is replaced in one step at the end.
        batch_size: As of `predict_rows`, like the rest.
        workers: The same.
        probabilities: The same.
        progress: The same.

    Returns:
        How many inputs have each verdict.
    """
    path = check_output(output)
    settings = {
        "source": source.fingerprint,
        "false_alarm_rate": source.false_alarm_rate,
        "inputs": inputs.digest(),
        "probabilities": probabilities,
        "ddu": __version__,
    }
    counts = Counter[str]()
    with _journal(path.with_name(f"{path.name}.partial"), path, settings) as (file, done):
        options: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "probabilities": probabilities}
        for rows in predict_rows(source, inputs, skip=done, progress=progress, **options):
            file.write(b"".join(map(as_line, rows)))
            file.flush()
        classes = _classes(source, file) if probabilities else ()
        write_rows(path, _counting(_lines(file), counts), classes)
    return counts


@contextmanager
def _journal(partial: Path, output: Path, settings: dict[str, Any]) -> Iterator[tuple[IO[bytes], int]]:
    """The partial file of a job, open to append to, and how many rows it has; removed if the job ends well."""
    with partial.open("a+b") as file:
        try:
            with locked(file, wait=False):
                done = _resumed(file, partial, settings)
                yield file, done
                partial.unlink(missing_ok=True)
        except BlockingIOError as error:
            raise InputError(f"Another command is writing {output}: wait for it, or choose another file.") from error


def _resumed(file: IO[bytes], partial: Path, settings: dict[str, Any]) -> int:
    """Cuts off what a kill left of a line, and says how many rows are whole; an empty file gets its first line."""
    file.seek(0)
    first, whole, lines = b"", 0, 0
    for line in file:
        if not line.endswith(b"\n"):
            break
        first, whole, lines = first or line, whole + len(line), lines + 1
    file.truncate(whole)
    if not lines:
        file.write(as_line(settings))
        file.flush()
        return 0
    try:
        begun = json.loads(first)
        changed = [name for name in settings if begun.get(name) != settings[name]]
    except (ValueError, AttributeError) as error:
        raise ArtifactError(
            f"{partial} was not written by `ddu predict`: move it away, or name another output."
        ) from error
    if changed:
        raise InputError(
            f"{partial} has {lines - 1:,} rows of a job with other {' and '.join(changed)}: repeat that command to "
            "finish it, or delete the file to begin anew."
        )
    return lines - 1


def _lines(file: IO[bytes]) -> Iterator[Row]:
    """The rows of a partial file."""
    file.seek(0)
    next(file)
    return map(json.loads, file)


def _counting(rows: Iterator[Row], counts: Counter[str]) -> Iterator[Row]:
    for row in rows:
        counts[row["verdict"]] += 1
        yield row


def _classes(source: Source, file: IO[bytes]) -> Sequence[str]:
    """The names of the classes, which rows have where the source does not."""
    if source.class_names is not None:
        return source.class_names
    return next((list(row["probs"]) for row in _lines(file) if row["probs"]), ())
