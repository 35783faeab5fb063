"""Fog, frost and snow. Each function maps images in [0, 1], (image, height, width, 3)."""

import numpy as np

from ddu.data.corruptions._filters import streak, zoom
from ddu.data.corruptions._frost import frost_textures
from ddu.data.corruptions._image_random import ImageRandom

# Brightness from red, green and blue, by ITU-R BT.601
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def plasma(random: ImageRandom, size: int, decay: float) -> np.ndarray:
    """Cloud-like fields in [0, 1] by diamond-square, with opposite borders that meet, (image, size, size).

    Each halving of the grid fills in the mean of four neighbours plus a uniform displacement, whose amplitude falls by
    decay² from one halving to the next: a larger decay is a smoother field.

    Args:
        random: Where the displacements come from.
        size: A power of two.
        decay: Square root of the ratio of successive amplitudes.
    """
    displacement = random.uniform(-1, 1, size, size)
    field = np.zeros_like(displacement)
    step, amplitude = size, np.float32(1)
    while step > 1:
        half = step // 2
        on, between = slice(0, None, step), slice(half, None, step)
        corners = field[:, on, on]
        vertical = corners + np.roll(corners, -1, axis=1)
        horizontal = corners + np.roll(corners, -1, axis=2)
        centres = (vertical + np.roll(vertical, -1, axis=2)) / 4 + amplitude * displacement[:, between, between]
        field[:, between, between] = centres
        field[:, between, on] = (vertical + centres + np.roll(centres, 1, axis=2)) / 4
        field[:, on, between] = (horizontal + centres + np.roll(centres, 1, axis=1)) / 4
        field[:, between, on] += amplitude * displacement[:, between, on]
        field[:, on, between] += amplitude * displacement[:, on, between]
        step, amplitude = half, amplitude / np.float32(decay**2)
    field -= field.min(axis=(1, 2), keepdims=True)
    return field / field.max(axis=(1, 2), keepdims=True)


def fog(x: np.ndarray, random: ImageRandom, *, amount: float, decay: float) -> np.ndarray:
    """(x + a f) m / (m + a) with a plasma field f and the image's largest value m."""
    height, width = x.shape[1:3]
    size = 1 << (max(height, width) - 1).bit_length()
    field = plasma(random, size, decay)[:, :height, :width, None]
    largest = x.max(axis=(1, 2, 3), keepdims=True)
    return (x + np.float32(amount) * field) * largest / (largest + np.float32(amount))


def frost(x: np.ndarray, random: ImageRandom, *, image_weight: float, frost_weight: float) -> np.ndarray:
    """A weighted sum of the image and of a random crop of a frost texture."""
    textures = frost_textures()
    count, size = textures.shape[:2]
    which = random.integers(0, count)
    rows, columns = random.integers(0, size, 2).T
    # The textures tile, so that a crop may run over their border
    row = (rows[:, None] + np.arange(x.shape[1])) % size
    column = (columns[:, None] + np.arange(x.shape[2])) % size
    crop = textures[which[:, None, None], row[:, :, None], column[:, None, :]]
    return np.float32(image_weight) * x + np.float32(frost_weight) * crop


def snow(
    x: np.ndarray,
    random: ImageRandom,
    *,
    mean: float,
    std: float,
    zoom_factor: float,
    cutoff: float,
    radius: int,
    sigma: float,
    image_weight: float,
) -> np.ndarray:
    """Streaks of falling snow, and a scene that whitens.

    What exceeds the cut-off in zoomed N(mean, std²) noise is drawn out steeply, at most 45° off the vertical; the layer
    is added twice, the second time turned by half. The scene is w x + (1 - w) max(x, 1.5 grey + 0.5).
    """
    flakes = zoom(np.float32(mean) + np.float32(std) * random.normal(*x.shape[1:3]), zoom_factor)
    flakes = np.clip(np.where(flakes < cutoff, 0, flakes), 0, 1)[..., None]
    flakes = streak(flakes, radius, sigma, random.uniform(-135, -45))
    grey = (x * LUMA).sum(axis=-1, keepdims=True)
    whitened = np.maximum(x, np.float32(1.5) * grey + np.float32(0.5))
    scene = np.float32(image_weight) * x + np.float32(1 - image_weight) * whitened
    return scene + flakes + flakes[:, ::-1, ::-1]
