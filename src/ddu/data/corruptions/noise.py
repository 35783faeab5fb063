"""Noise, independent from value to value. Each function maps images in [0, 1], (image, height, width, 3)."""

import numpy as np

from ddu.data.corruptions.images import ImageRandom


def gaussian_noise(x: np.ndarray, random: ImageRandom, *, std: float) -> np.ndarray:
    """x + N(0, std²)."""
    return x + np.float32(std) * random.normal(*x.shape[1:])


def shot_noise(x: np.ndarray, random: ImageRandom, *, photons: float) -> np.ndarray:
    """Poisson(photons x) / photons: what a sensor counts when white is so many photons."""
    return random.poisson(x * np.float32(photons)) / np.float32(photons)


def impulse_noise(x: np.ndarray, random: ImageRandom, *, share: float) -> np.ndarray:
    """Salt and pepper: a share of all values becomes 0 or 1, with equal odds."""
    draw = random.uniform(0, 1, *x.shape[1:])
    return np.where(draw < share / 2, 0, np.where(draw < share, 1, x))


def speckle_noise(x: np.ndarray, random: ImageRandom, *, std: float) -> np.ndarray:
    """x + x N(0, std²)."""
    return x + x * np.float32(std) * random.normal(*x.shape[1:])
