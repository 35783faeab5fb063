"""Raw inputs as people name them: image files, folders, globs, arrays and tables; read in order, a chunk at a time."""

import csv
import glob
import hashlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from ddu.data import Preprocessing
from ddu.data.registry import listed
from ddu.data.sources.folder import EXTENSIONS
from ddu.data.sources.npz import read_array, read_members
from ddu.errors import DataError, InputError
from ddu.messages import check_name, require

ARRAYS, TABLES = (".npy", ".npz"), (".csv", ".parquet")

_PATH_COLUMNS = ("path", "file", "filename", "image")


class Chunk(NamedTuple):
    """Some raw inputs, one after the other."""

    names: list[str]
    """What a row calls each of them."""
    raw: Sequence[Any] | np.ndarray
    """What `Source.prepare` takes: a list of single inputs, or an array of several."""
    problems: Mapping[int, str] = MappingProxyType({})
    """Why some of them cannot be read, by their places."""

    def since(self, start: int) -> "Chunk":
        """Those from a place on."""
        later = {place - start: reason for place, reason in self.problems.items() if place >= start}
        return Chunk(self.names[start:], self.raw[start:], later)


class Part(Protocol):
    """What one argument names."""

    def chunks(self, size: int) -> Iterator[Chunk]:
        """At most so many inputs at a time."""
        ...

    def signature(self) -> Iterable[str]:
        """Text that changes where the inputs or their order do."""
        ...

    def shards(self, rows: int) -> Iterable["Part"]:
        """The same inputs in order, in pieces of about so many rows where they can be divided without reading them."""
        return [self]


@dataclass(frozen=True)
class Inputs:
    """Everything that arguments name, in their order; a file that is named twice comes once.

    Attributes:
        parts: What they name.
        strangers: How many files of folders are no images, and are left out.
    """

    parts: tuple[Part, ...]
    strangers: int = 0

    @classmethod
    def find(cls, names: Sequence[str], preprocessing: Preprocessing, columns: Sequence[str] = ()) -> "Inputs":
        """Finds what arguments name; nothing but the headers of tables is read.

        Args:
            names: Image files; folders, whose images are found however deep they are; globs; `.npy` and `.npz` arrays
                of images or vectors; `.csv` and `.parquet` tables of paths or, for a network of vectors, of numbers.
            preprocessing: What the network takes.
            columns: Of tables: the column of paths, or those of the numbers, in their order.

        Raises:
            InputError: None of them exists; one that does not is a bad row among others.
        """
        files, strangers = list[str](), 0
        for name in names:
            for path in _expanded(name):
                found = [path]
                if os.path.isdir(path):
                    found, others = _images(path)
                    strangers += others
                files += found
        if files and not any(map(os.path.lexists, files)):
            none = f"is no file {files[0]}" if len(files) == 1 else f"is none of the files {listed(files)}"
            raise InputError(f"There {none}: check the working folder.")
        parts = list[Part]()
        for path in dict.fromkeys(files):
            suffix = Path(path).suffix.lower()
            if suffix in ARRAYS:
                parts.append(ArrayFile(path, preprocessing.is_image))
            elif suffix in TABLES:
                parts.append(open_table(path, preprocessing, columns))
            elif not preprocessing.is_image:
                raise InputError(
                    f"{path} is no table or array, and the network takes vectors of {preprocessing.shape[0]} numbers: "
                    f"give files that end in {', '.join(ARRAYS + TABLES)}."
                )
            elif parts and isinstance(last := parts[-1], ImageFiles):
                last.files.append(path)
            else:
                parts.append(ImageFiles([path]))
        return cls(tuple(parts), strangers)

    def chunks(self, size: int, *, skip: int = 0) -> Iterator[Chunk]:
        """All inputs in order, at most so many at a time, without the first so many."""
        for chunk in itertools.chain.from_iterable(part.chunks(size) for part in self.parts):
            passed = min(skip, len(chunk.names))
            skip -= passed
            if passed < len(chunk.names):
                yield chunk.since(passed)

    def shards(self, rows: int) -> list["Inputs"]:
        """All inputs in order, in pieces of about so many rows: image files and `.npy` arrays are divided."""
        return [Inputs((shard,)) for part in self.parts for shard in part.shards(rows)]

    def digest(self) -> str:
        """SHA-256 of the names and order of the inputs, and of the state of arrays and tables."""
        content = hashlib.sha256()
        for part in self.parts:
            for text in part.signature():
                content.update(f"{text}\0".encode(errors="surrogateescape"))
        return content.hexdigest()

    def __length_hint__(self) -> int:
        """How many there are, where that is known without reading."""
        known = [len(part.files) if isinstance(part, ImageFiles) else 0 for part in self.parts]
        return sum(known) if all(known) else 0


@dataclass(frozen=True)
class ImageFiles(Part):
    """Image files."""

    files: list[str] = field(default_factory=list)

    def chunks(self, size: int) -> Iterator[Chunk]:
        """The names of the files; they are decoded by `Source.prepare`."""
        for start in range(0, len(self.files), size):
            names = self.files[start : start + size]
            yield Chunk(names, names)

    def signature(self) -> Iterable[str]:
        """The names."""
        return self.files

    def shards(self, rows: int) -> Iterable[Part]:
        """So many files each."""
        return [ImageFiles(self.files[start : start + rows]) for start in range(0, len(self.files), rows)]


@dataclass(frozen=True)
class ArrayFile(Part):
    """Arrays of images or vectors in one file, of which no more than a chunk is read where it can be mapped.

    Attributes:
        file: The file.
        images: Whether it has images, or vectors.
        first: The first row that is read.
        last: The row before which it ends.
    """

    file: str
    images: bool
    first: int = 0
    last: int = sys.maxsize

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Rows of each array that has inputs; a file that cannot be read is one row."""
        try:
            for name, array in self._arrays():
                last = min(self.last, len(array))
                for start in range(self.first, last, size):
                    rows = array[start : min(start + size, last)]
                    yield Chunk([f"{name}[{start + row}]" for row in range(len(rows))], rows)
        except DataError as error:
            yield Chunk([self.file], [None], {0: str(error)})

    def signature(self) -> Iterable[str]:
        """Name, size and time of the file."""
        return [_version(self.file)]

    def shards(self, rows: int) -> Iterable[Part]:
        """So many rows of a `.npy` array each; an archive must be unpacked to be read, and stays whole."""
        if not self.file.lower().endswith(".npy"):
            return [self]
        try:
            count = sum(len(array) for _, array in self._arrays())
        except DataError:  # which is a row
            return [self]
        return [ArrayFile(self.file, self.images, start, start + rows) for start in range(0, max(count, 1), rows)]

    def _arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        path, found, there = Path(self.file), 0, list[str]()
        if path.suffix.lower() == ".npy":
            try:
                arrays = iter([(self.file, np.load(path, mmap_mode="r", allow_pickle=False))])
            except (OSError, ValueError, EOFError) as error:
                raise DataError(f"{path} cannot be read as an array: {str(error).rstrip('.')}.") from error
        else:
            arrays = ((name, read_array(path, name, member)) for name, member in read_members(path).items())
        for name, array in arrays:
            rows = _as_rows(array, self.images)
            if rows is None:
                there.append(f"{name} ({array.dtype}, {array.shape})")
                continue
            found += 1
            yield (self.file if name == self.file else f"{self.file}:{name}"), rows
        if not found:
            kind = "images (sample, height, width, channel)" if self.images else "vectors (sample, feature)"
            raise DataError(f"{path} has no array of {kind}, only {', '.join(there) or 'nothing'}.")


def _as_rows(array: np.ndarray, images: bool) -> np.ndarray | None:
    """An array as (sample, height, width, channel) or (sample, feature); None if it has no inputs, such as labels."""
    if array.dtype.kind not in "uif":
        return None
    match array.shape:
        case (_, _) if images:
            return array[None, ..., None]
        case (_, _, 1 | 3) if images:
            return array[None]
        case (_, _, _) if images:
            return array[..., None]
        case (_, _, _, _) if images:
            return array
        case (_, _) if not images:
            return array
        case (_,) if not images and array.dtype.kind == "f":
            return array[None]
    return None


@dataclass(frozen=True)
class CsvTable:
    """A CSV file with a header."""

    file: str

    def names(self) -> list[str]:
        """The header."""
        _, names = next(self._lines(), (0, []))
        return [name.strip() for name in names]

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, Sequence[Any]]]:
        """Lines after the header, with the number of the line; empty ones are left out."""
        for number, line in itertools.islice(self._lines(), 1, None):
            if line:
                yield number, [line[column] if column < len(line) else "" for column in columns]

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        with _named(self.file), open(self.file, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            for line in reader:
                yield reader.line_num, line


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file."""

    file: str

    def names(self) -> list[str]:
        """The columns of the schema."""
        with _named(self.file), self._open() as file:
            return list(file.schema_arrow.names)

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, Sequence[Any]]]:
        """Rows, counted from 1; a few thousand are in memory at a time."""
        names = self.names()
        with _named(self.file), self._open() as file:
            wanted, number = [names[column] for column in columns], 0
            for batch in file.iter_batches(batch_size=4096, columns=wanted):
                values = [batch.column(name).to_pylist() for name in wanted]
                for row in zip(*values, strict=True):
                    number += 1
                    yield number, row

    def _open(self) -> Any:
        parquet = require("pyarrow.parquet", extra="parquet", purpose=f"Reading {self.file}")
        return parquet.ParquetFile(self.file)


@dataclass(frozen=True)
class TableFile(Part):
    """A table of paths, relative to its own folder, or of the numbers of vectors."""

    table: CsvTable | ParquetTable
    columns: tuple[int, ...]
    images: bool

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Rows of the table; where it cannot be read on, one row says so."""
        rows, end = self.table.rows(self.columns), False
        while not end:
            names, raw, problems = list[str](), list[Any](), dict[int, str]()
            try:
                for number, values in itertools.islice(rows, size):
                    place = f"{self.table.file}:{number}"
                    if self.images:
                        value, problem = self._path(values[0])
                        place = str(values[0]) if value else place
                    else:
                        value, problem = _vector(values)
                    if problem:
                        problems[len(names)] = problem
                    names.append(place)
                    raw.append(value)
            except DataError as error:
                problems[len(names)] = str(error)
                names.append(self.table.file)
                raw.append(None)
                end = True
            end = end or len(names) < size
            if names:
                yield Chunk(names, raw, problems)

    def signature(self) -> Iterable[str]:
        """Name, size and time of the file, and the columns."""
        return [_version(self.table.file), str(self.columns)]

    def _path(self, text: Any) -> tuple[str | None, str]:
        if not isinstance(text, str) or not text.strip():
            return None, "there is no path in this row"
        return os.path.join(os.path.dirname(self.table.file), text), ""


def open_table(file: str, preprocessing: Preprocessing, columns: Sequence[str] = ()) -> Part:
    """A table, with the columns that have the inputs; a file without a header that can be read is one bad row."""
    table = ParquetTable(file) if file.lower().endswith(".parquet") else CsvTable(file)
    try:
        names = table.names()
    except DataError as error:
        return Unreadable(file, str(error))
    if not names:
        return Unreadable(file, f"{file} has no header: the table is empty.")
    for column in columns:
        check_name(column, names, f"{file} has no column {{name!r}}")
    if preprocessing.is_image:
        chosen = list(columns) or [name for name in names if name.lower() in _PATH_COLUMNS] or names
        if len(chosen) != 1:
            raise InputError(
                f"{file} has the columns {', '.join(names)}: say which one has the paths of the images, with --columns."
            )
    else:
        chosen, wanted = list(columns) or names, preprocessing.shape[0]
        if len(chosen) != wanted:
            raise InputError(
                f"{file} has {len(chosen)} columns, {listed(chosen)}, and the network takes {wanted} numbers: choose "
                "them with --columns."
            )
    return TableFile(table, tuple(names.index(name) for name in chosen), preprocessing.is_image)


@dataclass(frozen=True)
class Unreadable(Part):
    """A file that cannot be read, as one row."""

    file: str
    reason: str

    def chunks(self, size: int) -> Iterator[Chunk]:
        """The row."""
        yield Chunk([self.file], [None], {0: self.reason})

    def signature(self) -> Iterable[str]:
        """Name, size and time of the file."""
        return [_version(self.file)]


def _vector(values: Sequence[Any]) -> tuple[np.ndarray | None, str]:
    """Numbers of a table, or why they are none; nothing is NaN."""
    numbers = list[float]()
    for value in values:
        try:
            numbers.append(float("nan") if value is None or value == "" else float(value))
        except (TypeError, ValueError):
            return None, f"it has {value!r} in the place of a number"
    return np.array(numbers, dtype=np.float32), ""


def _expanded(name: str) -> list[str]:
    """A path as it is, or what a glob matches, in order."""
    if os.path.lexists(name) or not glob.has_magic(name):
        return [name]
    matches = sorted(glob.glob(name, recursive=True))
    if not matches:
        raise InputError(f"No file matches {name!r}: check the working folder, and quotes.")
    return matches


def _images(folder: str) -> tuple[list[str], int]:
    """The images of a folder and of those below it, in order, and how many other files there are."""
    found, others = list[str](), 0
    for path, subfolders, entries in os.walk(folder):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        visible = sorted(entry for entry in entries if not entry.startswith("."))
        images = [entry for entry in visible if entry.lower().endswith(EXTENSIONS)]
        found += [os.path.join(path, entry) for entry in images]
        others += len(visible) - len(images)
    if not found:
        raise InputError(f"There is no image in the folder {folder}, nor below it: {', '.join(EXTENSIONS)} are.")
    return found, others


def _version(file: str) -> str:
    try:
        there = os.stat(file)
    except OSError:
        return file
    return f"{file}|{there.st_size}|{there.st_mtime_ns}"


@contextmanager
def _named(file: str) -> Iterator[None]:
    """Errors of a damaged table that say which file it is."""
    try:
        yield
    # pyarrow's errors are ValueErrors and OSErrors too
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as a table: {error}.") from error
