"""Rows, and the file that they are appended to.

A row is a measured value, or a failure, and the run that it came from. The file is append-only: a row that is on disk
stays, and of two rows with the same key the later one counts. Every row is one line, so a killed process leaves at most
an unfinished last line, which is found and cut off.
"""

import csv
import io
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import IO, Any, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints

from ddu import provenance
from ddu.errors import ArtifactError, DDUWarning, InputError
from ddu.files import FilePath, locked

Status = Literal["ok", "failed"]


@dataclass(frozen=True)
class RowKey:
    """The question that a row answers: rows with the same key answer the same one.

    Attributes:
        detector: The detector by its name in the experiment; in active learning the acquisition function.
        network: The network, such as "wide_resnet28_10 x0.25+sn": width 1/4, with spectral norm.
        data: The training data, which is in distribution.
        seed: The seed of the run.
        run: The fingerprint of everything else that decides the value: two rows have the same one only if their runs
            have the same settings, samples and labels.
        members: The number of networks that the detector runs; more than one is an ensemble.
        ood: The out-of-distribution data; None for what is measured in distribution.
        severity: How strongly `ood` is corrupted, 1 to 5, where it is a corruption of the data.
        labels: The number of labels that an active learner had; None outside of active learning.
        metric: What was measured, one of `METRICS`; None where a run failed before it measured anything.
    """

    detector: str
    network: str
    data: str
    seed: int
    run: str
    members: int = 1
    ood: str | None = None
    severity: int | None = None
    labels: int | None = None
    metric: str | None = None


@dataclass(frozen=True, kw_only=True)
class Row(RowKey):
    """One measured value, or one failure. The key comes first: see `RowKey`.

    Attributes:
        value: The value, finite; shares are between 0 and 1. None for a failure.
        status: "ok" or "failed".
        error: What went wrong; None if nothing did.
        reductions: How the run is smaller than the paper's; None if it is not, or the paper has no such run.
        command: The command that gives this row again.
        versions: The software that it was measured with.
        commit: The commit of the checkout that it was measured with; None for an installed package.
        seconds: How long it took.
    """

    value: float | None = None
    status: Status = "ok"
    error: str | None = None
    reductions: str | None = None
    command: str | None = None
    versions: str | None = None
    commit: str | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.status == "ok" and (self.metric is None or self.value is None or not isfinite(self.value)):
            raise InputError(
                f"A row with status 'ok' needs a metric and a finite value. Got {self.metric!r} and {self.value!r}: "
                "record the run with Row.failed and say why."
            )
        if self.status == "failed" and (self.value is not None or not self.error):
            raise InputError(
                f"A row with status 'failed' needs an error and no value. Got {self.error!r} and {self.value!r}."
            )
        if self.status not in ("ok", "failed"):
            raise InputError(f"The status of a row is 'ok' or 'failed'. Got {self.status!r}.")

    @classmethod
    def failed(cls, error: BaseException | str, **facts: Any) -> Self:
        """The row of a run that did not get as far as a value; `facts` are the other attributes.

        >>> Row.failed(ValueError("no data"), detector="ddu", network="lenet", data="mnist", seed=0, run="12ab").error
        'ValueError: no data'
        """
        words = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
        return cls(status="failed", error=words, **facts)

    @property
    def key(self) -> RowKey:
        """The question without the answer."""
        return RowKey(*(getattr(self, one.name) for one in fields(RowKey)))

    @property
    def subject(self) -> str:
        """What was measured, in words.

        >>> Row.failed("no data", detector="ddu", network="lenet", data="mnist", seed=0, run="12ab", ood="svhn").subject
        'ddu on lenet against svhn, seed 0'
        """
        against = f" against {self.ood}" if self.ood else ""
        severity = f" severity {self.severity}" if self.severity is not None else ""
        labels = f" with {self.labels:,} labels" if self.labels is not None else ""
        return f"{self.detector} on {self.network}{against}{severity}{labels}, seed {self.seed}"


def source(command: str | None) -> dict[str, str | None]:
    """The columns that say what a row was measured with: `command`, `versions` and `commit`."""
    versions = ", ".join(f"{name} {version}" for name, version in provenance.versions().items())
    return {"command": command or None, "versions": versions, "commit": provenance.commit()}


def latest(rows: Iterable[Row]) -> list[Row]:
    """Keeps the last row per key, in the order of their first appearance, and drops failures that were made good.

    A failure without a metric or OoD set is that of a whole run, and any later value of that run makes it good.
    """
    newest: dict[RowKey, Row] = {}
    for row in rows:
        if row.status == "ok":
            for key in _failures_made_good(row.key):
                newest.pop(key, None)
        newest[row.key] = row
    return list(newest.values())


def _failures_made_good(key: RowKey) -> Iterator[RowKey]:
    without_metric = replace(key, metric=None)
    yield without_metric
    yield replace(without_metric, ood=None, severity=None)


class RowFile:
    """A file of rows: CSV, or JSON lines if it is called `.jsonl`.

    Appending is safe: rows are flushed to disk before `append` returns, an exception while writing leaves the file as
    it was, and an unfinished line from a process that was killed is cut off with a warning. Processes that share the
    file take turns by a lock on it (Windows and some shared disks have no such lock: append from one process there).

    >>> from tempfile import TemporaryDirectory
    >>> row = Row(detector="ddu", network="lenet", data="mnist", seed=0, run="12ab", metric="accuracy", value=0.99)
    >>> with TemporaryDirectory() as folder:
    ...     file = RowFile(Path(folder) / "rows.csv")
    ...     file.append([row])
    ...     file.read() == [row]
    True
    """

    def __init__(self, path: FilePath) -> None:
        self.path = Path(path)
        if self.path.suffix not in _FORMATS:
            raise InputError(
                f"Rows are kept in {' and '.join(_FORMATS)} files. Got {self.path.name!r}: give it such a name."
            )
        self._format = _FORMATS[self.path.suffix]

    def __repr__(self) -> str:
        return f"RowFile({str(self.path)!r})"

    def append(self, rows: Iterable[Row]) -> None:
        """Adds rows at the end, all of them or none; only a killed process may leave the first few of them.

        A folder that is missing is made.
        """
        lines = "".join(f"{self._format.encode(row)}\n" for row in rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: nothing is left to be written when it is closed
        with self.path.open("a+b", buffering=0) as file, locked(file):
            whole, torn = self._content(file)
            file.truncate(len(whole))
            try:
                _write(file, ((self._format.header if not whole else "") + lines).encode(errors="backslashreplace"))
            except BaseException:
                file.truncate(len(whole))
                raise
        if torn:
            self._warn_of_torn_line(torn, "it was cut off")

    def read(self) -> list[Row]:
        """All rows, in the order they were appended; none if there is no file yet."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file, locked(file, exclusive=False):
            whole, torn = self._content(file)
        if torn:
            self._warn_of_torn_line(torn, "it is left out")
        first = self._format.header.count("\n")
        lines = whole.split(b"\n")[first:-1]
        return [self._parse(number, line) for number, line in enumerate(lines, start=first + 1)]

    def done(self, keys: Iterable[RowKey]) -> set[RowKey]:
        """Those of the keys that have a value already. What failed is not done: it is tried again.

        Ask for every key that a run gives: a process killed while it appended may have left only the first few.
        """
        measured = {row.key for row in self.read() if row.status == "ok"}
        return measured.intersection(keys)

    def _content(self, file: IO[bytes]) -> tuple[bytes, bytes]:
        """The whole lines, and what there is of an unfinished one."""
        file.seek(0)
        content = file.read()
        opening = self._format.opening.encode()
        if not opening.startswith(content[: len(opening)]):
            raise ArtifactError(
                f"{self.path} does not begin with {self._format.opening!r}, so it was not written by this ddu: "
                "give another name."
            )
        end = content.rfind(b"\n") + 1
        return content[:end], content[end:]

    def _parse(self, number: int, line: bytes) -> Row:
        try:
            return self._format.decode(line.decode())
        except (ValueError, TypeError, csv.Error) as error:
            raise ArtifactError(
                f"Line {number} of {self.path} is not a row: {error}. Fix the line, or start a new file."
            ) from error

    def _warn_of_torn_line(self, torn: bytes, consequence: str) -> None:
        warnings.warn(
            f"{self.path} ends in an unfinished line of {len(torn)} bytes, left by a process that was killed: "
            f"{consequence}.",
            DDUWarning,
            stacklevel=3,
        )


class _Format(NamedTuple):
    header: str  # written once, before the first row
    opening: str  # what every file begins with
    encode: Callable[[Row], str]
    decode: Callable[[str], Row]


def _cell_type(hint: Any) -> type:
    """The type of a cell that is not empty; a literal is text."""
    if get_origin(hint) is Literal:
        return str
    return next(kind for kind in get_args(hint) or (hint,) if kind is not NoneType)


_TYPES = {name: _cell_type(hint) for name, hint in get_type_hints(Row).items()}


def _typed(content: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value is None else _TYPES[name](value) for name, value in content.items()}


def _encode_csv(row: Row) -> str:
    line = io.StringIO()
    cells = ["" if value is None else _escape(str(value)) for value in _typed(asdict(row)).values()]
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()


def _decode_csv(line: str) -> Row:
    (cells,) = csv.reader([line], strict=True)
    if len(cells) != len(_TYPES):
        raise ValueError(f"it has {len(cells)} cells, and there are {len(_TYPES)} columns")
    return Row(**_typed({name: _unescape(cell) or None for name, cell in zip(_TYPES, cells, strict=True)}))


def _encode_json(row: Row) -> str:
    return json.dumps(_typed(asdict(row)))


def _decode_json(line: str) -> Row:
    content = json.loads(line)
    if not isinstance(content, dict) or set(content) != set(_TYPES):
        raise ValueError(f"it does not have the names {', '.join(_TYPES)}")
    return Row(**_typed(content))


_HEADER = ",".join(_TYPES) + "\n"
_FORMATS = {
    ".csv": _Format(_HEADER, _HEADER, _encode_csv, _decode_csv),
    ".jsonl": _Format("", f'{{"{next(iter(_TYPES))}": ', _encode_json, _decode_json),
}


# A line of the file is a row of the table, so what would break a line is written as \n, \r and \\
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_UNESCAPES = {escaped: plain for plain, escaped in _ESCAPES.items()}


def _escape(text: str) -> str:
    return re.sub(r"[\\\n\r]", lambda match: _ESCAPES[match[0]], text)


def _unescape(text: str) -> str:
    return re.sub(r"\\[\\nr]", lambda match: _UNESCAPES[match[0]], text)


def _write(file: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())
