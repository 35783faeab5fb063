"""Sets by name: the decorators that register them, where they are looked for, and what is said when they are not there.

The files in `sources/` register themselves here; `load` is what everybody calls.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

import numpy as np

from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.errors import DataError, DataWarning, InputError
from ddu.files import FilePath

Root = FilePath | None
"""The folder of all sets; None is `DDU_DATA`, or else the user's cache."""

_LISTED_AT_MOST = 100
_NAMED_AT_MOST = 5

Read = TypeVar("Read", bound=Callable[[str, Path], ArrayDataset])
Open = TypeVar("Open", bound=Callable[[str], "Source"])
Make = TypeVar("Make", bound=Callable[[DataInfo, Path], ArrayDataset])


@dataclass(frozen=True)
class Source:
    """A set that can be read by name.

    Attributes:
        info: What it holds; the classes are empty where only its files know them.
        read: `read(split, root)` gives one split.
        files: Of each split, the files and folders below the root that `read` wants; none for what is generated.
        fetch: `fetch(root)` downloads them, whole or not at all; None where that cannot be done.
        remedy: What to do if they are missing, in words.
        summary: What it is, in a line.
        place: The one file or folder that a source was made from.
    """

    info: DataInfo
    read: Callable[[str, Path], ArrayDataset]
    files: Mapping[str, tuple[str, ...]]
    fetch: Callable[[Path], None] | None = None
    remedy: str = ""
    summary: str = ""
    place: Path | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.files)

    @property
    def is_generated(self) -> bool:
        return not any(self.files.values())

    def present(self, root: Path) -> tuple[str, ...]:
        """The splits that are there."""
        return tuple(split for split in self.splits if not self.missing(split, root))

    def missing(self, split: str, root: Path) -> list[str]:
        """The files of a split that are not there, neither as they are nor compressed."""
        return [name for name in self.files[split] if not any((root / n).exists() for n in (name, f"{name}.gz"))]


@dataclass(frozen=True)
class Prefix:
    """A family of sets: `open(argument)` gives the source of "prefix:argument".

    Attributes:
        form: What the names look like, such as "folder:PATH".
        open: Makes a source of the argument.
        summary: What they are, in a line.
    """

    form: str
    open: Callable[[str], Source]
    summary: str


SOURCES: dict[str, Source] = {}
PREFIXES: dict[str, Prefix] = {}
DERIVED: dict[str, Callable[[DataInfo, Path], ArrayDataset]] = {}


def register(
    info: DataInfo,
    files: Mapping[str, tuple[str, ...]],
    *,
    fetch: Callable[[Path], None] | None = None,
    remedy: str | None = None,
) -> Callable[[Read], Read]:
    """Registers a reader, called with a split and the root, under the name in `info`; see `Source`.

    The first line of its docstring is the summary.
    """

    def decorate(read: Read) -> Read:
        advice = f"Get it with `ddu data fetch {info.name}`." if remedy is None else remedy
        SOURCES[info.name] = Source(info, read, files, fetch, advice, _first_line(read))
        return read

    return decorate


def register_prefix(prefix: str, argument: str) -> Callable[[Open], Open]:
    """Registers a function that makes a source of what follows "prefix:" in a name; see `Prefix`."""

    def decorate(open_source: Open) -> Open:
        PREFIXES[prefix] = Prefix(f"{prefix}:{argument}", open_source, _first_line(open_source))
        return open_source

    return decorate


def register_derived(make: Make) -> Make:
    """Registers a set that is made to look like another, for `load_ood` alone: `make(info, root)`, by its own name."""
    DERIVED[make.__name__] = make
    return make


def _first_line(function: Callable[..., object]) -> str:
    return (function.__doc__ or "").split("\n", maxsplit=1)[0]


def load(name: str, split: str = "train", *, root: Root = None, skip_bad: bool = False) -> ArrayDataset:
    """Reads a set by name.

    Images in a folder of your own are checked: those that cannot be read are named all at once, now.

    Args:
        name: One of `list_data()`, or "folder:PATH", "npz:PATH", "cifar10_c:CORRUPTION:SEVERITY".
        split: "train" or "test".
        root: The folder of all sets; by default `DDU_DATA`, else the user's cache.
        skip_bad: Leave out images that cannot be read, with a warning.

    Raises:
        InputError: There is no such set, or no such split of it.
        DataError: It is not there, not whole, or corrupt: the message says where it was looked for, what was wanted
            and how to get it.

    >>> load("two_moons")
    ArrayDataset(two_moons, 2,000 of (2,))
    """
    return load_parts(name, [split], root=root, skip_bad=skip_bad)[0]


def load_parts(
    name: str, splits: Sequence[str] = ("train", "test"), *, root: Root = None, skip_bad: bool = False
) -> list[ArrayDataset]:
    """Reads several splits of a set; images that cannot be read, in whichever split, are one error.

    Args:
        name: As for `load`, like the rest.
        splits: Which ones.
        root: The folder of all sets.
        skip_bad: Leave out images that cannot be read.
    """
    folder = data_root(root)
    return _read_checked(name, find(name, folder), splits, folder, skip_bad)


def load_ood(name: str, info: DataInfo, *, root: Root = None, skip_bad: bool = False) -> ArrayDataset:
    """Reads a set the way a network that was trained on another one has to be shown it.

    It gets the other set's size, channels and normalisation. Of a set with splits it is the test split.

    Args:
        name: As for `load`, or one of `list_derived()`: sets that are made for the other one, such as "noise".
        info: Of the set that the network was trained on.
        root: As for `load`.
        skip_bad: As for `load`.
    """
    folder = data_root(root)
    if name in DERIVED and not (folder / f"{name}.npz").is_file():
        return DERIVED[name](info, folder)
    source = find(name, folder)
    split = "test" if "test" in source.splits else source.splits[0]
    return _read_checked(name, source, [split], folder, skip_bad)[0].like(info)


def info(name: str, *, root: Root = None) -> DataInfo:
    """What a set holds, without reading its inputs."""
    folder = data_root(root)
    source = find(name, folder)
    if source.info.classes:
        return source.info
    return _read(name, source, next(iter(source.present(folder)), source.splits[0]), folder).info


def list_data(*, root: Root = None) -> list[str]:
    """The names that `load` knows, and those of other sets that lie under the root as NAME.npz."""
    return sorted(SOURCES.keys() | {path.stem for path in data_root(root).glob("*.npz") if _is_set(path)})


def list_derived() -> list[str]:
    """The names of the sets that only `load_ood` knows, since they are made to look like another set."""
    return sorted(DERIVED)


def list_splits(name: str, *, root: Root = None) -> tuple[str, ...]:
    """The splits of a set, whether they are there or not."""
    return find(name, data_root(root)).splits


def fetch(name: str, *, root: Root = None) -> bool:
    """Downloads a set and puts it under the root; False if it was there already."""
    folder = data_root(root)
    source = find(name, folder)
    if source.present(folder) == source.splits:
        return False
    if source.fetch is None:
        raise InputError(f"{name} cannot be fetched. {source.remedy}")
    source.fetch(folder)
    return True


def data_root(root: Root = None) -> Path:
    """The folder of all sets: the one given, else `DDU_DATA`, else the user's cache."""
    return Path(root or os.environ.get("DDU_DATA") or Path.home() / ".cache" / "ddu").expanduser()


def find(name: str, root: Path) -> Source:
    """What is behind a name. A NAME.npz under the root goes before everything else that could be read."""
    prefix, colon, argument = name.partition(":")
    if colon and prefix in PREFIXES:
        return PREFIXES[prefix].open(argument)
    known = SOURCES.get(name)
    if (root / f"{name}.npz").is_file():
        return _packed(root / f"{name}.npz", known)
    if known is None:
        raise InputError(f"There is no data set {name!r}. {_hint(name)}")
    return known


def _read(name: str, source: Source, split: str, root: Path) -> ArrayDataset:
    if split not in source.splits:
        here, remedy = (f" ({source.place})", f" {source.remedy}") if source.place else ("", "")
        raise InputError(f"{name}{here} has no split {split!r}, only {', '.join(map(repr, source.splits))}.{remedy}")
    missing = source.missing(split, root)
    if missing:
        raise DataError(
            f"{name} is not in {root}: there is no {', no '.join(missing)}, and no {name.partition(':')[0]}.npz. "
            f"{source.remedy} If it is elsewhere, say where with --data-root or DDU_DATA."
        )
    return source.read(split, root)


def _read_checked(name: str, source: Source, splits: Sequence[str], root: Path, skip_bad: bool) -> list[ArrayDataset]:
    parts = [_read(name, source, split, root) for split in splits]
    # Sets of the library were verified when they were fetched, and may have a million files
    return _readable(parts, skip_bad) if skip_bad or source.place else parts


def _readable(parts: list[ArrayDataset], skip_bad: bool) -> list[ArrayDataset]:
    """The parts of a set without what cannot be read; an error that lists it, unless it is to be left out."""
    bad = [part.unreadable() for part in parts]
    problems = [problem for found in bad for problem in found.values()]
    if not problems:
        return parts
    which = f"{len(problems)} of the {sum(map(len, parts)):,} images of {parts[0].info.name}"
    if not skip_bad:
        shown, more = problems[:_LISTED_AT_MOST], len(problems) - _LISTED_AT_MOST
        raise DataError(
            f"{which} cannot be read. Repair or delete them, or leave them out with --skip-bad (skip_bad=True):\n"
            + "\n".join([*shown, f"... and {more:,} more"] if more > 0 else shown)
        )
    files = [str(part.inputs[row]) for part, found in zip(parts, bad, strict=True) for row in found]
    warnings.warn(f"Left out {which}, which cannot be read: {listed(files)}", DataWarning, stacklevel=5)
    return [_without(part, list(found)) for part, found in zip(parts, bad, strict=True)]


def listed(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(names[:_NAMED_AT_MOST]) + (", ..." if len(names) > _NAMED_AT_MOST else "")


def _without(part: ArrayDataset, rows: list[int]) -> ArrayDataset:
    rest = part.subset(np.delete(np.arange(len(part)), rows))
    for label in np.setdiff1d(part.labels, rest.labels):
        raise DataError(f"Not one image of the class {part.info.classes[label]!r} of {part.info.name} can be read.")
    return rest


def _hint(name: str) -> str:
    if name in DERIVED:
        return f"It is made to look like another set: ddu.data.load_ood({name!r}, info) gives it."
    if Path(name).exists():
        return f"For what is at that path write '{'folder' if Path(name).is_dir() else 'npz'}:{name}'."
    close = get_close_matches(name, SOURCES, n=3)
    nearest = f"The closest names are {', '.join(map(repr, close))}; " if close else ""
    return f"{nearest}`ddu data list` and ddu.data.list_data() give them all."


def _packed(path: Path, known: Source | None = None) -> Source:
    """The set NAME.npz, which may be a known one in another form."""
    from ddu.data.sources.npz import npz_source  # which registers itself here

    return npz_source(path, known.info, known.summary) if known else npz_source(path, DataInfo(path.stem, (), ()))


def _is_set(path: Path) -> bool:
    try:
        _packed(path)
    except InputError:
        return False
    return True
