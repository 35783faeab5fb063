"""Contrast, colour, compression and geometry. Each function maps images in [0, 1], (image, height, width, 3)."""

import io
from collections.abc import Callable

import numpy as np

from ddu.data.corruptions.images import ImageRandom, gaussian, sample, to_bytes, to_floats
from ddu.messages import require


def contrast(x: np.ndarray, random: ImageRandom, *, factor: float) -> np.ndarray:
    """(x - channel mean) factor + channel mean."""
    mean = x.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
    return (x - mean) * np.float32(factor) + mean


def brightness(x: np.ndarray, random: ImageRandom, *, added: float) -> np.ndarray:
    """Adds to the value of hue, saturation and value.

    At fixed hue and saturation a colour is proportional to its value, which is its largest channel; black becomes grey.
    """
    value = x.max(axis=-1, keepdims=True)
    brighter = np.minimum(value + np.float32(added), 1)
    return np.where(value > 0, x * (brighter / np.where(value > 0, value, 1)), brighter)


def saturate(x: np.ndarray, random: ImageRandom, *, factor: float, added: float) -> np.ndarray:
    """Maps the saturation s of hue, saturation and value to s factor + added, cut to [0, 1].

    At fixed hue and value v a channel's distance v - x from the largest is proportional to s = (v - min x) / v. Grey
    has no hue; by convention it counts as red, so that added saturation tints it.
    """
    value, least = x.max(axis=-1, keepdims=True), x.min(axis=-1, keepdims=True)
    saturation = (value - least) / np.where(value > 0, value, 1)
    wanted = np.clip(saturation * np.float32(factor) + np.float32(added), 0, 1)
    coloured = value - (value - x) * (wanted / np.where(saturation > 0, saturation, 1))
    reddish = value * (1 - wanted * np.array([0, 1, 1], np.float32))
    return np.where(saturation > 0, coloured, reddish)


def jpeg_compression(x: np.ndarray, random: ImageRandom, *, quality: int) -> np.ndarray:
    """Saved as JPEG and read again."""
    pillow = require("PIL.Image", extra="data", purpose="The corruption jpeg_compression")

    def compressed(image: np.ndarray) -> np.ndarray:
        file = io.BytesIO()
        pillow.fromarray(image).save(file, "JPEG", quality=quality)
        return np.asarray(pillow.open(file))

    return _each(compressed, x)


def pixelate(x: np.ndarray, random: ImageRandom, *, scale: float) -> np.ndarray:
    """Shrunk to a share of the size, and enlarged again, both by the mean over boxes."""
    pillow = require("PIL.Image", extra="data", purpose="The corruption pixelate")
    height, width = x.shape[1:3]
    small = int(width * scale), int(height * scale)

    def resized(image: np.ndarray) -> np.ndarray:
        shrunk = pillow.fromarray(image).resize(small, pillow.Resampling.BOX)
        return np.asarray(shrunk.resize((width, height), pillow.Resampling.BOX))

    return _each(resized, x)


def elastic_transform(
    x: np.ndarray, random: ImageRandom, *, displacement: float, smoothing: float, affine: float
) -> np.ndarray:
    """A random affine map, then a smooth random displacement of every pixel. Lengths are in units of the image's side.

    Args:
        x: Images.
        random: Where the map and the displacement come from.
        displacement: Scale of the displacement.
        smoothing: Standard deviation of the Gaussian that smooths it.
        affine: By how much, at most, three points move in either direction; they fix the affine map.
    """
    height, width = x.shape[1:3]
    side = min(height, width)
    grid = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), axis=-1).astype(np.float32)

    # Corners of a square about the centre, and where they move to; the image is read where they came from
    centre, third = np.array([height // 2, width // 2]), side // 3
    points = centre + third * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = points + random.uniform(-affine * side, affine * side, 3, 2).astype(np.float64)
    ones = np.ones((len(x), 3, 1))
    backwards = np.linalg.solve(np.concatenate([moved, ones], axis=-1), np.broadcast_to(points, moved.shape))
    source = (grid @ backwards[:, None, :2] + backwards[:, None, 2:]).astype(np.float32)
    x = sample(x, source[..., 0], source[..., 1])

    shift = random.uniform(-1, 1, height, width, 2)
    if smoothing > 0:
        shift = gaussian(shift, smoothing * side, mode="reflect", truncate=3.0)
    source = grid + np.float32(displacement * side) * shift
    return sample(x, source[..., 0], source[..., 1])


def _each(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """A function of one image of bytes, over a batch."""
    images = to_bytes(x)
    for image in images:
        image[:] = function(image)
    return to_floats(images)
