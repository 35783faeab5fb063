"""A random stream of its own for every purpose, so that the parts of the pipeline can be run in any order, or again."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Generator


def numbers(seed: int, *purpose: str | int) -> np.random.Generator:
    """numpy's generator for one purpose.

    >>> [int(numbers(0, *purpose).integers(100)) for purpose in (("mix", 1), ("mix", 2), ("mix", 1))]
    [60, 72, 60]
    """
    return np.random.default_rng(_seed(seed, *purpose))


def torch_numbers(seed: int, *purpose: str | int) -> Generator:
    """torch's generator for one purpose."""
    return Generator().manual_seed(_seed(seed, *purpose))


@contextmanager
def initial_weights(seed: int, *purpose: str | int) -> Iterator[None]:
    """Networks created here get weights for one purpose; torch's own random state stays as it was."""
    with torch.random.fork_rng([]):
        torch.manual_seed(_seed(seed, *purpose))
        yield


def _seed(seed: int, *purpose: str | int) -> int:
    words = "|".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little") >> 1
