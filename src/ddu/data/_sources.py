"""Sets by name: where they are looked for, and what is said when they are not there."""

import os
from difflib import get_close_matches
from pathlib import Path

import ddu.data.sources  # noqa: F401  (registers them)
from ddu.data._dataset import ArrayDataset, DataInfo
from ddu.data._registry import PREFIXES, SOURCES, Source
from ddu.data.sources.npz import npz_source
from ddu.errors import DataError, InputError

Root = str | os.PathLike[str] | None


def load(name: str, split: str = "train", *, root: Root = None) -> ArrayDataset:
    """Reads a set by name.

    Args:
        name: One of `list_data()`, or "folder:PATH", "npz:PATH", "cifar10_c:CORRUPTION:SEVERITY".
        split: "train" or "test".
        root: The folder of all sets; by default `DDU_DATA`, else the user's cache.

    Raises:
        InputError: There is no such set, or no such split of it.
        DataError: It is not there, not whole, or corrupt: the message says where it was looked for, what was wanted
            and how to get it.

    >>> load("two_moons")
    ArrayDataset(two_moons, 2,000 of (2,))
    """
    folder = data_root(root)
    return _read(name, find(name, folder), split, folder)


def load_ood(name: str, info: DataInfo, *, root: Root = None) -> ArrayDataset:
    """Reads a set the way a network that was trained on another one has to be shown it.

    It gets the other set's size, channels and normalisation. Of a set with splits it is the test split.

    Args:
        name: As for `load`.
        info: Of the set that the network was trained on.
        root: As for `load`.
    """
    folder = data_root(root)
    source = find(name, folder)
    return _read(name, source, "test" if "test" in source.splits else source.splits[0], folder).like(info)


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


def list_splits(name: str, *, root: Root = None) -> tuple[str, ...]:
    """The splits of a set, whether they are there or not."""
    return find(name, data_root(root)).splits


def fetch(name: str, *, root: Root = None) -> bool:
    """Gets a set from its home and puts it under the root; False if it was there already."""
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
    packed = root / f"{name}.npz"
    if packed.is_file():
        return npz_source(packed, known.info, known.summary) if known else npz_source(packed, DataInfo(name, (), ()))
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


def _hint(name: str) -> str:
    if Path(name).exists():
        return f"For what is at that path write '{'folder' if Path(name).is_dir() else 'npz'}:{name}'."
    close = get_close_matches(name, SOURCES, n=3)
    nearest = f"The closest names are {', '.join(map(repr, close))}; " if close else ""
    return f"{nearest}`ddu data list` and ddu.data.list_data() give them all."


def _is_set(path: Path) -> bool:
    try:
        npz_source(path, DataInfo(path.stem, (), ()))
    except InputError:
        return False
    return True
