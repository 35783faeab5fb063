"""Blur, of a lens, of movement, or through glass. Each function maps images in [0, 1], (image, height, width, 3)."""

import numpy as np

from ddu.data.corruptions.images import ImageRandom, correlate, gaussian, streak, zoom


def gaussian_blur(x: np.ndarray, random: ImageRandom, *, sigma: float) -> np.ndarray:
    """A Gaussian mean of the neighbourhood."""
    return gaussian(x, sigma)


def glass_blur(x: np.ndarray, random: ImageRandom, *, sigma: float, reach: int, rounds: int) -> np.ndarray:
    """Frosted glass: pixels trade places with neighbours, between two Gaussian blurs."""
    x = gaussian(x, sigma)
    for _ in range(rounds):
        x = swapped(x, random, reach)
    return gaussian(x, sigma)


def swapped(x: np.ndarray, random: ImageRandom, reach: int) -> np.ndarray:
    """Swaps pixels with random ones at most `reach` rows and columns away.

    Each pixel has one turn, from the last to the first, and is in one swap at most: so none moves further than `reach`.
    """
    x = x.copy()
    image = np.arange(len(x))
    rows, columns = (range(size - 1 - reach, reach - 1, -1) for size in x.shape[1:3])
    # (row, column, direction, image): the draws of one pixel lie side by side
    shifts = np.moveaxis(random.integers(-reach, reach + 1, len(rows), len(columns), 2), 0, -1).copy()
    free = np.ones(x.shape[:3], bool)
    for row, shifts_of_row in zip(rows, shifts, strict=True):
        for column, (down, right) in zip(columns, shifts_of_row, strict=True):
            allowed = free[:, row, column] & free[image, row + down, column + right]
            other = image, row + down * allowed, column + right * allowed
            x[:, row, column], x[other] = x[other], x[:, row, column].copy()
            free[:, row, column] &= ~allowed
            free[other] &= ~allowed
    return x


def disk(radius: float, edge_sigma: float) -> np.ndarray:
    """A disk on the grid of pixels, smoothed with a Gaussian of 3 × 3 pixels; adds up to 1."""
    reach = int(radius) + 1  # leaves room for the smoothing
    offset = np.arange(-reach, reach + 1)
    inside = (offset[:, None] ** 2 + offset**2 <= radius**2).astype(np.float64)
    taps = np.exp(-np.array([1, 0, 1]) / (2 * edge_sigma**2))
    smooth = correlate(inside[None], np.outer(taps, taps), mode="constant")[0]
    return smooth / smooth.sum()


def defocus_blur(x: np.ndarray, random: ImageRandom, *, radius: float, edge_sigma: float) -> np.ndarray:
    """A lens out of focus: the mean over a disk with a smoothed edge."""
    return correlate(x, disk(radius, edge_sigma))


def motion_blur(x: np.ndarray, random: ImageRandom, *, radius: int, sigma: float) -> np.ndarray:
    """A camera that moves while it exposes: a streak along a line, at most 45° off the horizontal."""
    return streak(x, radius, sigma, random.uniform(-45, 45))


def zoom_blur(x: np.ndarray, random: ImageRandom, *, limit: float) -> np.ndarray:
    """A camera that rushes forward: the mean of x and of its zooms 1, 1.01, … below the limit."""
    planes = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    factors = [percent / 100 for percent in range(100, round(100 * limit))]
    total = planes + sum(zoom(planes, factor) for factor in factors)
    return np.moveaxis(total / np.float32(len(factors) + 1), 1, -1)
