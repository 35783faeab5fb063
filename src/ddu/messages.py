"""Checks of names, entries and optional packages, the words for values in error messages, and whom a warning names."""

import importlib
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from ddu.errors import InputError, MissingExtraError

_PACKAGE = str(Path(__file__).parent)


def check_name(name: object, known: Iterable[str], complaint: str) -> None:
    """Refuses a name that is not known, with the closest one, or all of them where none is close.

    >>> check_name("sede", ["seeds", "data"], "A comparison has no {name!r}")
    Traceback (most recent call last):
    ddu.errors.InputError: A comparison has no 'sede'. Did you mean 'seeds'?
    """
    known = list(known)
    if name in known:
        return
    close = get_close_matches(str(name), known, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(known) or 'none'}."
    raise InputError(f"{complaint.format(name=name)}. {hint}")


def check_entries(what: str, found: object, names: Iterable[str]) -> None:
    """Refuses anything but a dictionary with an entry for each of the names, and with no others.

    >>> check_entries("the model", {"class": "LeNet"}, ["class", "fingerprint"])
    Traceback (most recent call last):
    ddu.errors.InputError: There must be an entry 'fingerprint' in the model. Got 'class' instead.
    """
    names = list(names)
    if not isinstance(found, dict):
        raise InputError(f"There must be a dictionary for {what}. Got {found!r} instead.")
    for name in found:
        check_name(name, names, f"There must be no entry {{name!r}} in {what}")
    for name in names:
        if name not in found:
            there = ", ".join(map(repr, found)) or "nothing"
            raise InputError(f"There must be an entry {name!r} in {what}. Got {there} instead.")


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Imports an optional module, or says which extra brings it.

    >>> require("json", extra="cli", purpose="the command line").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing_extra(extra, purpose) from error


def missing_extra(extra: str, purpose: str) -> MissingExtraError:
    """The error that says how to install an extra, from an index or from a clone."""
    return MissingExtraError(
        f"{purpose} needs the '{extra}' extra: pip install 'ddu[{extra}]', or in a clone: pip install '.[{extra}]'."
    )


def shown(value: object) -> str:
    """What a value is, for a message.

    >>> shown([[1.0], None])
    'list of [list, NoneType]'
    """
    import numpy as np  # `ddu --help` does without
    from torch import Tensor

    name = type(value).__name__
    if isinstance(value, Tensor | np.ndarray):
        return f"{name} of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"{name} with keys {list(value)}"
    if isinstance(value, tuple | list):
        return f"{name} of [{', '.join(type(item).__name__ for item in value[:4])}{', ...' * (len(value) > 4)}]"
    return "None" if value is None else name


def frames_to_the_caller() -> int:
    """The stacklevel at which `warnings.warn`, in the function that asks, names the code that called this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
