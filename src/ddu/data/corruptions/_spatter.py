"""Spatter: drops of water or blots of mud on the lens."""

import numpy as np

from ddu.data.corruptions._filters import correlate, gaussian, ndimage
from ddu.data.corruptions._image_random import ImageRandom

WATER = np.array([175, 238, 238], np.float32) / 255
MUD = np.array([63, 42, 20], np.float32) / 255

# Gradients, in steps of a byte, above which a pixel may be an edge, and above which it is one
_WEAK_EDGE, _STRONG_EDGE = 50, 150
_FURTHEST = 20.0  # distances to an edge are cut here, in pixels
_THINNEST_MUD = 0.8

_SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], np.float32)
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)
_MEAN = np.full((3, 3), 1 / 9, np.float32)


def spatter(
    x: np.ndarray,
    random: ImageRandom,
    *,
    mean: float,
    std: float,
    sigma: float,
    cutoff: float,
    strength: float,
    mud: int,
) -> np.ndarray:
    """Puts liquid where blurred N(mean, std²) noise exceeds the cut-off.

    Args:
        x: Images in [0, 1], (image, height, width, 3).
        random: Where the noise comes from.
        mean: Mean of the noise.
        std: Its standard deviation.
        sigma: Standard deviation of the blur in pixels.
        cutoff: Where liquid begins.
        strength: Of water: how bright the brightest drop is. Of mud: blur of the blots' edges in pixels.
        mud: 1 for mud, which covers, 0 for water, which shines.
    """
    layer = gaussian(np.float32(mean) + np.float32(std) * random.normal(*x.shape[1:3]), sigma)
    if mud:
        cover = gaussian((layer > cutoff).astype(np.float32), strength)
        cover = np.where(cover < _THINNEST_MUD, 0, cover)[..., None]
        return x * (1 - cover) + MUD * cover
    layer = np.where(layer < cutoff, 0, layer)
    return x + np.float32(strength) * drops(layer)[..., None] * WATER


def drops(layer: np.ndarray) -> np.ndarray:
    """Light on drops of water, at most 1 in each image, from the distance to the drops' edges.

    Args:
        layer: Amount of water, in [0, 1] or a little more, 0 where there is none, (image, height, width).
    """
    layer = np.floor(np.clip(layer, 0, 1) * 255)
    distance = np.floor(correlate(edge_distance(canny(layer, _WEAK_EDGE, _STRONG_EDGE)), _MEAN))
    relief = np.clip(correlate(equalised(distance.astype(np.uint8)).astype(np.float32), _EMBOSS), 0, 255)
    light = layer * correlate(np.rint(relief), _MEAN)
    brightest = light.max(axis=(1, 2), keepdims=True)
    return light / np.where(brightest > 0, brightest, 1)


def canny(x: np.ndarray, weak: float, strong: float) -> np.ndarray:
    """Canny's edges: ridges of the gradient above `weak` that touch, in their own image, a ridge above `strong`.

    Args:
        x: Grey images, (image, height, width).
        weak: Smallest |∂x/∂row| + |∂x/∂column|, by Sobel's kernels, of any pixel of an edge.
        strong: The same for at least one pixel of each edge.

    Returns:
        Which pixels are on an edge, (image, height, width).
    """
    down, right = correlate(x, _SOBEL.T, mode="nearest"), correlate(x, _SOBEL, mode="nearest")
    gradient = np.abs(down) + np.abs(right)

    # A ridge is higher than both neighbours along the gradient, which is rounded to one of four directions
    padded = np.pad(gradient, ((0, 0), (1, 1), (1, 1)))
    neighbour = np.lib.stride_tricks.sliding_window_view(padded, x.shape[1:], axis=(1, 2))
    ahead = [neighbour[:, 1 + row, 1 + column] for row, column in ((0, 1), (1, 1), (1, 0), (1, -1))]
    behind = [neighbour[:, 1 - row, 1 - column] for row, column in ((0, 1), (1, 1), (1, 0), (1, -1))]
    direction = np.rint(np.arctan2(down, right) / (np.pi / 4)).astype(np.int64) % 4
    ridge = (gradient > np.choose(direction, behind)) & (gradient >= np.choose(direction, ahead))

    connected = np.zeros((3, 3, 3), bool)
    connected[1] = True  # within one image, diagonals included
    edges, count = ndimage().label(ridge & (gradient > weak), connected)
    holds_strong = np.zeros(count + 1, bool)
    holds_strong[edges[ridge & (gradient > strong)]] = True
    return holds_strong[edges] & (edges > 0)


def edge_distance(edges: np.ndarray) -> np.ndarray:
    """Distance of every pixel to the nearest edge of its own image, cut at 20 pixels, (image, height, width)."""
    if not edges.any():
        return np.full(edges.shape, _FURTHEST, np.float32)
    # Images lie further apart than the cut, so that no other image's edge counts
    distance = ndimage().distance_transform_edt(~edges, sampling=(2 * _FURTHEST, 1, 1))
    return np.minimum(distance, _FURTHEST).astype(np.float32)


def equalised(images: np.ndarray) -> np.ndarray:
    """Histogram equalisation: each byte becomes its rank among the bytes of its image, spread over 0 to 255.

    A byte v becomes 255 (n(v) - n₀) / (n - n₀), where n(v) pixels are at most v and n₀ have the least byte. An image of
    one byte stays as it is.
    """
    offset = 256 * np.arange(len(images))[:, None]
    flat = images.reshape(len(images), -1)
    histogram = np.bincount((offset + flat).ravel(), minlength=256 * len(images)).reshape(-1, 256)
    ranks = histogram.cumsum(axis=1)
    least = np.take_along_axis(histogram, flat.min(axis=1, keepdims=True).astype(np.int64), axis=1)
    rest = flat.shape[1] - least
    table = np.rint(255 * np.maximum(ranks - least, 0) / np.maximum(rest, 1))
    table = np.where(rest > 0, table, np.arange(256)).astype(np.uint8)
    return np.take_along_axis(table, flat.astype(np.int64), axis=1).reshape(images.shape)
