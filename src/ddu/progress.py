"""Progress bars for long loops."""

from collections.abc import Iterable
from operator import length_hint
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], description: str, *, show: bool | None = None, total: int | None = None) -> Iterable[T]:
    """Iterates over `items` behind a progress bar on standard error.

    Args:
        items: What to iterate over.
        description: The words in front of the bar.
        show: `True` draws at once, `False` never; by default the bar appears after two seconds, and only on a terminal.
        total: How many there are, from which the time left follows; by default the length of `items`, if it has one.

    The bar is tqdm's. It comes with every extra that has a command line; without tqdm there is simply no bar.
    """
    if show is False:
        return items
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        return items
    total = total or length_hint(items) or None
    # disable=None: tqdm draws only on a terminal
    return tqdm(items, desc=description, total=total, delay=0 if show else 2, disable=None if show is None else False)
