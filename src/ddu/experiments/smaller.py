"""How what was measured is smaller than the paper's, in words, and which networks and data stand in for the paper's."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddu.experiments.reproduction import Work

_CHANGE = re.compile(r"(.+) ([0-9][0-9.,]*) -> ([0-9][0-9.,]*)")
_WIDTH = re.compile(r" x[0-9.]+")


def summarise_reductions(reductions: Iterable[str]) -> list[str]:
    """The reductions of many rows: each quantity once, with its smallest and its largest number.

    >>> summarise_reductions(["samples 9,000 -> 2,000; width 1 -> 0.25", "samples 9,000 -> 1,993; pool all -> 100"])
    ['samples 9,000 -> 1,993 to 2,000', 'width 1 -> 0.25', 'pool all -> 100']
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for part in dict.fromkeys(part for words in reductions for part in words.split("; ")):
        change = _CHANGE.fullmatch(part)
        if change is None:
            found[part] = []
        else:
            quantity, was, now = change.groups()
            found.setdefault(quantity, []).append((was, now))
    return [
        f"{name} {_span(was for was, _ in changes)} -> {_span(now for _, now in changes)}" if changes else name
        for name, changes in found.items()
    ]


def stand_ins(here: Sequence["Work"], paper: Sequence["Work"]) -> list[str]:
    """What stands in for the paper's networks, data and OoD sets; a width is no network of its own.

    Args:
        here: The networks that are trained.
        paper: Those of the paper.
    """
    pairs = {
        "networks": (_networks(paper), _networks(here)),
        "data": ([work.spec.data for work in paper], [work.spec.data for work in here]),
        "OoD sets": (
            [name for work in paper for name in work.against],
            [name for work in here for name in work.against],
        ),
    }
    return [words for name, (theirs, ours) in pairs.items() if (words := _exchange(name, theirs, ours))]


def _networks(works: Sequence["Work"]) -> list[str]:
    """The architectures; one that is there without spectral norm is not named with it as well."""
    labels = [work.spec.label.replace(", ", " with ") for work in works]
    return [label.removesuffix("+sn") if label.removesuffix("+sn") in labels else label for label in labels]


def _exchange(name: str, theirs: Sequence[str], ours: Sequence[str]) -> str:
    bare = {_WIDTH.sub("", one) for one in ours}
    missing, new = ([one for one in theirs if one not in bare], [o for o in ours if _WIDTH.sub("", o) not in theirs])
    if not missing and not new:
        return ""
    return f"{name} {', '.join(dict.fromkeys(missing or theirs))} -> {', '.join(dict.fromkeys(new or ours))}"


def _span(numbers: Iterable[str]) -> str:
    ordered = sorted(set(numbers), key=lambda text: float(text.replace(",", "")))
    return " to ".join(ordered if len(ordered) == 1 else (ordered[0], ordered[-1]))
