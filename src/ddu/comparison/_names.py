"""Names that people write: the closest one is the answer to a misspelt one."""

from collections.abc import Iterable
from difflib import get_close_matches

from ddu.errors import InputError


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
    hint = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(known)}."
    raise InputError(f"{complaint.format(name=name)}. {hint}")
