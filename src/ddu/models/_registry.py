"""Networks by name: the decorator that registers them, and the look-up that answers a misspelt name."""

import difflib
import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ddu.errors import InputError
from ddu.models._base import Classifier

Build = TypeVar("Build", bound=Callable[..., Classifier])


@dataclass(frozen=True)
class Entry:
    """One entry point: the names it answers to, the class it builds, and the function that builds it."""

    template: str  # "resnet18", or "wide_resnet{depth}_{widen}" with a number in each pair of braces
    listed: tuple[str, ...]
    network: type[Classifier]
    build: Callable[..., Classifier]

    def match(self, name: str) -> dict[str, int] | None:
        """The numbers in a name of this entry's form, or None if it has another form."""
        found = re.fullmatch(re.sub(r"{(\w+)}", r"(?P<\1>[1-9]\\d*)", self.template), name)
        return None if found is None else {key: int(number) for key, number in found.groupdict().items()}


_ENTRIES: list[Entry] = []


def register_model(
    network: type[Classifier], template: str | None = None, *, listed: tuple[str, ...] = ()
) -> Callable[[Build], Build]:
    """Registers an entry point under its own name, or under a template such as "wide_resnet{depth}_{widen}".

    The numbers of a template are handed to the entry point by name; `listed` are the members that `list_models` shows.
    """

    def register(build: Build) -> Build:
        name = template or build.__name__
        _ENTRIES.append(Entry(name, listed or (name,), network, build))
        return build

    return register


def find_model(name: str) -> tuple[Entry, dict[str, int]]:
    """The entry point of a name, and the numbers in it."""
    for entry in _ENTRIES:
        numbers = entry.match(name)
        if numbers is not None:
            return entry, numbers
    closest = _closest(name)
    hint = f" The closest names are {', '.join(map(repr, closest))};" if closest else ""
    raise InputError(f"There is no model {name!r}.{hint} list_models() gives them all.")


def list_models(pattern: str = "*") -> list[str]:
    """The names that `create_model` knows, sorted; `pattern` filters them with the wildcards of a shell.

    Wide ResNets, ResFFNs and FC-Nets also come in every other size: `wide_resnet16_4` is as good as the listed
    `wide_resnet28_10`.

    >>> list_models("resnet*")
    ['resnet110', 'resnet18', 'resnet50']
    """
    return sorted(name for entry in _ENTRIES for name in entry.listed if fnmatch.fnmatchcase(name, pattern))


def _closest(name: str) -> list[str]:
    """At most three known names, closest first, compared without case and punctuation."""
    known = {_letters(candidate): candidate for candidate in list_models()}
    return [known[match] for match in difflib.get_close_matches(_letters(name), known, n=3, cutoff=0.5)]


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
