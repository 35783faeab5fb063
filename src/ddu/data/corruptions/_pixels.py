"""Pixels as bytes, as they are stored, and as numbers in [0, 1], as they are corrupted."""

import numpy as np


def to_floats(images: np.ndarray) -> np.ndarray:
    """Bytes to [0, 1]."""
    return images.astype(np.float32) / np.float32(255)


def to_bytes(x: np.ndarray) -> np.ndarray:
    """[0, 1] to the nearest byte; what is outside is cut.

    >>> to_bytes(np.array([-0.1, 0.5, 2.0])).tolist()
    [0, 128, 255]
    """
    return np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
