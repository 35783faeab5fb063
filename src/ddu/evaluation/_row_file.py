"""The file that rows are appended to.

It is append-only: a row that is on disk stays, and of two rows with the same key the later one counts. Every row is one
line, so whatever a killed process leaves behind is an unfinished last line, which is found and cut off.
"""

import csv
import io
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import IO, Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints, overload

from ddu.errors import ArtifactError, DDUWarning, InputError
from ddu.evaluation._rows import Row, RowKey
from ddu.files import locked

RowT = TypeVar("RowT")


class RowFile(Generic[RowT]):
    """A file of rows: CSV, or JSON lines if it is called `.jsonl`.

    Rows are `Row`s, or instances of another data class whose fields are words and numbers, each of which may be None.

    Appending is safe: rows are flushed to disk before `append` returns, an exception while writing leaves the file as
    it was, and an unfinished line from a process that was killed is cut off with a warning. Processes that share the
    file take turns by a lock on it (Windows and some shared disks have no such lock: append from one process there).

    >>> from tempfile import TemporaryDirectory
    >>> row = Row(detector="ddu", network="lenet", data="mnist", seed=0, metric="accuracy", value=0.99)
    >>> with TemporaryDirectory() as folder:
    ...     file = RowFile(Path(folder) / "rows.csv")
    ...     file.append([row])
    ...     file.read() == [row]
    True
    """

    @overload
    def __init__(self: "RowFile[Row]", path: str | os.PathLike[str]) -> None: ...

    @overload
    def __init__(self, path: str | os.PathLike[str], row_type: type[RowT]) -> None: ...

    def __init__(self, path: str | os.PathLike[str], row_type: type[Any] = Row) -> None:
        self.path = Path(path)
        if self.path.suffix not in _FORMATS:
            raise InputError(
                f"Rows are kept in {' and '.join(_FORMATS)} files. Got {self.path.name!r}: give it such a name."
            )
        self._format = _FORMATS[self.path.suffix](row_type)

    def __repr__(self) -> str:
        return f"RowFile({str(self.path)!r})"

    def append(self, rows: Iterable[RowT]) -> None:
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

    def read(self) -> list[RowT]:
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

    def done(self: "RowFile[Row]", keys: Iterable[RowKey]) -> set[RowKey]:
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

    def _parse(self, number: int, line: bytes) -> RowT:
        try:
            return self._format.decode(line.decode())
        except (ValueError, TypeError, csv.Error) as error:
            raise ArtifactError(
                f"Line {number} of {self.path} is not a row: {error}. Mend it, or start a new file."
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
    encode: Callable[[Any], str]
    decode: Callable[[str], Any]


def _csv(row_type: type[Any]) -> _Format:
    types = _column_types(row_type)

    def encode(row: Any) -> str:
        line = io.StringIO()
        cells = ["" if value is None else _escape(str(value)) for value in _typed(asdict(row), types).values()]
        csv.writer(line, lineterminator="").writerow(cells)
        return line.getvalue()

    def decode(line: str) -> Any:
        (cells,) = csv.reader([line], strict=True)
        if len(cells) != len(types):
            raise ValueError(f"it has {len(cells)} cells, and there are {len(types)} columns")
        return row_type(
            **_typed({name: _unescape(cell) or None for name, cell in zip(types, cells, strict=True)}, types)
        )

    header = ",".join(types) + "\n"
    return _Format(header, header, encode, decode)


def _json_lines(row_type: type[Any]) -> _Format:
    types = _column_types(row_type)

    def encode(row: Any) -> str:
        return json.dumps(_typed(asdict(row), types))

    def decode(line: str) -> Any:
        content = json.loads(line)
        if not isinstance(content, dict) or set(content) != set(types):
            raise ValueError(f"it does not have the names {', '.join(types)}")
        return row_type(**_typed(content, types))

    return _Format("", f'{{"{next(iter(types))}": ', encode, decode)


_FORMATS: dict[str, Callable[[type[Any]], _Format]] = {".csv": _csv, ".jsonl": _json_lines}


def _column_types(row_type: type[Any]) -> dict[str, type]:
    return {name: _cell_type(hint) for name, hint in get_type_hints(row_type).items()}


def _cell_type(hint: Any) -> type:
    """What a cell is if it is not empty; words to choose from are words."""
    if get_origin(hint) is Literal:
        return str
    return next(kind for kind in get_args(hint) or (hint,) if kind is not NoneType)


def _typed(content: dict[str, Any], types: dict[str, type]) -> dict[str, Any]:
    return {name: None if value is None else types[name](value) for name, value in content.items()}


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
