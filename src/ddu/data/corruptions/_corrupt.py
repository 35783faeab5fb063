"""Corrupts images."""

import numpy as np

from ddu.data.corruptions._image_random import ImageRandom
from ddu.data.corruptions._pixels import to_bytes, to_floats
from ddu.data.corruptions._registry import find_corruption
from ddu.errors import InputError

_SMALLEST = 8  # pixels a side
_BLOCK = 250  # images worked on at once: their numbers in [0, 1] stay in a few megabytes


def check_images(images: np.ndarray) -> None:
    """Refuses what is not colour images of bytes."""
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        got = (
            f"{images.dtype} of shape {images.shape}"
            if isinstance(images, np.ndarray)
            else f"a {type(images).__name__}"
        )
        raise InputError(f"Images to corrupt must be a uint8 array of shape (image, height, width, 3). Got {got}.")
    if min(images.shape[1:3]) < _SMALLEST:
        height, width = images.shape[1:3]
        raise InputError(f"Images to corrupt must be at least {_SMALLEST} pixels a side. Got {height} × {width}.")


def check_set(images: np.ndarray) -> None:
    """Refuses what is not a set of at least one image."""
    check_images(images)
    if len(images) == 0:
        raise InputError("There are no images to corrupt.")


def check_seed(seed: int) -> None:
    """Refuses a seed that NumPy would refuse later."""
    if seed < 0:
        raise InputError(f"The seed must not be negative. Got {seed}.")


def corrupt(images: np.ndarray, name: str, severity: int, *, seed: int = 0, start: int = 0) -> np.ndarray:
    """Corrupts images as CIFAR-10-C does.

    An image's randomness is decided by the seed, the corruption, the severity and its index in the whole set, so that a
    set may be corrupted in parts and in any order.

    Args:
        images: Bytes, (image, height, width, 3). The severities are meant for 32 × 32 pixels.
        name: One of `CORRUPTIONS`.
        severity: 1 to 5.
        seed: Decides all randomness.
        start: Index of the first of these images in the whole set.

    Returns:
        Bytes of the same shape.

    >>> import numpy as np
    >>> corrupt(np.full((1, 32, 32, 3), 100, np.uint8), "brightness", 2)[0, 0, 0].tolist()
    [126, 126, 126]
    """
    check_images(images)
    check_seed(seed)
    corruption = find_corruption(name)
    constants = corruption.at(severity)
    if start < 0:
        raise InputError(f"The index of the first image must not be negative. Got {start}.")
    corrupted = np.empty(images.shape, np.uint8)
    for first in range(0, len(images), _BLOCK):
        block = slice(first, first + _BLOCK)
        x = to_floats(images[block])
        random = ImageRandom(seed, name, severity, start + first, len(x))
        corrupted[block] = to_bytes(corruption.function(x, random, **constants))
    return corrupted
