"""What the corruptions share: pixels as bytes and as numbers in [0, 1], random numbers per image, and filters.

Everything works on a whole batch at once. A result never depends on which other images are in the batch, to the last
bit: every sum runs within one image, and every image has a generator of its own.
"""

import zlib
from math import prod
from types import ModuleType

import numpy as np

from ddu.messages import require


def ndimage() -> ModuleType:
    """scipy's filters."""
    return require("scipy.ndimage", extra="data", purpose="ddu.data.corruptions")


def gaussian(x: np.ndarray, sigma: float, *, mode: str = "nearest", truncate: float = 4.0) -> np.ndarray:
    """Gaussian blur of height and width, (image, height, width, ...)."""
    return ndimage().gaussian_filter(x, sigma, mode=mode, truncate=truncate, axes=(1, 2))


def correlate(x: np.ndarray, kernel: np.ndarray, *, mode: str = "mirror") -> np.ndarray:
    """Each image under a two-dimensional kernel, by default mirrored at the borders, (image, height, width, ...)."""
    kernel = kernel.reshape(1, *kernel.shape, *(1,) * (x.ndim - 3))
    return ndimage().correlate(x, kernel, mode=mode)


def streak(x: np.ndarray, radius: int, sigma: float, degrees: np.ndarray) -> np.ndarray:
    """Motion blur: every pixel becomes a one-sided Gaussian mean of those ahead of it on a line.

    y(p) = Σₖ wₖ x(p + k (sin θ, cos θ)) with wₖ ∝ exp(-k² / 2σ²) for k = 0 … 2 radius, each point rounded to the
    nearest pixel, and the border repeated outwards.

    Args:
        x: Images, (image, height, width, channel).
        radius: Half the length of the line in pixels.
        sigma: Standard deviation along the line in pixels.
        degrees: The line's direction θ of each image, from the right towards the bottom, (image,).
    """
    length = 2 * radius
    steps = np.arange(length + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights = (weights / weights.sum()).astype(np.float32)
    angle = np.radians(degrees.astype(np.float64))[:, None]
    rows = length + np.rint(steps * np.sin(angle)).astype(int)
    columns = length + np.rint(steps * np.cos(angle)).astype(int)

    padded = np.pad(x, ((0, 0), (length, length), (length, length), (0, 0)), mode="edge")
    # All shifted copies of each image, as views: (image, row shift, column shift, channel, height, width)
    shifted = np.lib.stride_tricks.sliding_window_view(padded, x.shape[1:3], axis=(1, 2))
    images = np.arange(len(x))
    blurred = sum(weights[k] * shifted[images, rows[:, k], columns[:, k]] for k in steps)
    return np.moveaxis(np.asarray(blurred), 1, -1)


def zoom_matrix(size: int, factor: float) -> np.ndarray:
    """The linear map that magnifies a line of pixels about its centre, (size, size); every row adds up to 1.

    >>> zoom_matrix(4, 2.0).tolist()
    [[0.25, 0.75, 0.0, 0.0], [0.0, 0.75, 0.25, 0.0], [0.0, 0.25, 0.75, 0.0], [0.0, 0.0, 0.75, 0.25]]
    """
    centre = (size - 1) / 2
    source = (np.arange(size) - centre) / factor + centre
    # Linear interpolation: a pixel's weight falls from 1 to 0 within one pixel of the point that is read
    return np.maximum(0, 1 - np.abs(source[:, None] - np.arange(size))).astype(np.float32)


def zoom(x: np.ndarray, factor: float) -> np.ndarray:
    """Magnifies images about their centre and keeps their size, (..., height, width)."""
    return zoom_matrix(x.shape[-2], factor) @ x @ zoom_matrix(x.shape[-1], factor).T


def sample(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Reads images between their pixels, by bilinear interpolation, mirrored at the borders.

    Args:
        x: Images, (image, height, width, channel).
        rows: Where to read, in pixels, (image, height, width).
        columns: Likewise.
    """
    top, left = np.floor(rows), np.floor(columns)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    upper, lower = _mirrored(top, x.shape[1]), _mirrored(top + 1, x.shape[1])
    first, second = _mirrored(left, x.shape[2]), _mirrored(left + 1, x.shape[2])
    pixels = x.reshape(-1, x.shape[-1])
    image = (x.shape[1] * x.shape[2]) * np.arange(len(x))[:, None, None]

    def at(row: np.ndarray, column: np.ndarray) -> np.ndarray:
        return pixels.take(image + x.shape[2] * row + column, axis=0)

    above = (1 - right) * at(upper, first) + right * at(upper, second)
    below = (1 - right) * at(lower, first) + right * at(lower, second)
    return (1 - down) * above + down * below


def _mirrored(place: np.ndarray, size: int) -> np.ndarray:
    """Indices beyond the border, reflected about the outermost pixel: -1 is 1, and size is size - 2."""
    index = np.abs(place.astype(np.int64)) % (2 * size - 2)
    return np.minimum(index, 2 * size - 2 - index)


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


def to_floats(images: np.ndarray) -> np.ndarray:
    """Bytes to [0, 1]."""
    return images.astype(np.float32) / np.float32(255)


def to_bytes(x: np.ndarray) -> np.ndarray:
    """[0, 1] to the nearest byte; what is outside is cut.

    >>> to_bytes(np.array([-0.1, 0.5, 2.0])).tolist()
    [0, 128, 255]
    """
    return np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
