"""Every tensor that an object holds, wherever it is."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def tensors_in(value: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Tensors with their paths, through attributes, slots, lists, tuples, dictionaries and sets."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, type):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(item, f"{path}[{key}]", seen)
    elif isinstance(value, list | tuple | set):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{path}[{index}]", seen)
    elif hasattr(value, "__dict__"):
        for name, item in vars(value).items():
            yield from tensors_in(item, f"{path}.{name}", seen)
