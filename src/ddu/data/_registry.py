"""Sets by name: what is known of each, and the decorators that register them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ddu.data.dataset import ArrayDataset, DataInfo

Read = TypeVar("Read", bound=Callable[[str, Path], ArrayDataset])
Open = TypeVar("Open", bound=Callable[[str], "Source"])


@dataclass(frozen=True)
class Source:
    """A set that can be read by name.

    Attributes:
        info: What it holds; the classes are empty where only its files know them.
        read: `read(split, root)` gives one split.
        files: Of each split, the files and folders below the root that `read` wants; none for what is generated.
        fetch: `fetch(root)` gets them from their home, whole or not at all; None where that cannot be done.
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


def _first_line(function: Callable[..., object]) -> str:
    return (function.__doc__ or "").split("\n", maxsplit=1)[0]
