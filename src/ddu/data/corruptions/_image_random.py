"""Randomness of a batch, in which every image has a generator of its own."""

import zlib
from math import prod

import numpy as np


class ImageRandom:
    """Draws for a batch of images; each image's draws depend on its own index and on nothing else in the batch.

    Args:
        seed: Seed of the whole set.
        name: Corruption that draws.
        severity: Its severity.
        start: Index of the first image in the whole set.
        count: How many images there are.
    """

    def __init__(self, seed: int, name: str, severity: int, start: int, count: int):
        key = (seed, zlib.crc32(name.encode()), severity)
        self._generators = [np.random.default_rng((*key, index)) for index in range(start, start + count)]

    def normal(self, *shape: int) -> np.ndarray:
        """Standard normal, (image, *shape)."""
        draws = np.empty((len(self._generators), prod(shape)), np.float32)
        for generator, row in zip(self._generators, draws, strict=True):
            generator.standard_normal(out=row, dtype=np.float32)
        return draws.reshape(-1, *shape)

    def uniform(self, low: float, high: float, *shape: int) -> np.ndarray:
        """Uniform on [low, high), (image, *shape)."""
        draws = np.empty((len(self._generators), prod(shape)), np.float32)
        for generator, row in zip(self._generators, draws, strict=True):
            generator.random(out=row, dtype=np.float32)
        return low + np.float32(high - low) * draws.reshape(-1, *shape)

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        """Whole numbers of [low, high), (image, *shape)."""
        draws = [generator.integers(low, high, size=shape) for generator in self._generators]
        return np.asarray(draws, dtype=np.int64).reshape(-1, *shape)

    def poisson(self, rate: np.ndarray) -> np.ndarray:
        """Poisson counts of a rate for every pixel, (image, height, width, channel)."""
        counts = np.empty_like(rate)
        for generator, row, mean in zip(self._generators, counts, rate, strict=True):
            row[:] = generator.poisson(mean)
        return counts
