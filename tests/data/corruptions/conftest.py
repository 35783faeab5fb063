"""Small colour images to corrupt."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter


def smooth_images(count: int, height: int = 32, width: int = 32, seed: int = 0) -> np.ndarray:
    """Clouds of colour that use the whole range of bytes, with black, grey and white pixels among them."""
    noise = np.random.default_rng(seed).normal(size=(count, height, width, 3))
    x = gaussian_filter(noise, 2, mode="wrap", axes=(1, 2))
    low, high = x.min(axis=(1, 2, 3), keepdims=True), x.max(axis=(1, 2, 3), keepdims=True)
    images = np.rint(255 * (x - low) / (high - low)).astype(np.uint8)
    images[:, 0, :3] = np.array([0, 128, 255])[:, None]
    return images


@pytest.fixture(scope="session")
def images() -> np.ndarray:
    """Seven of them."""
    pixels = smooth_images(7)
    pixels.setflags(write=False)
    return pixels


@pytest.fixture(scope="session")
def x(images: np.ndarray) -> np.ndarray:
    """The same in [0, 1]."""
    pixels = images.astype(np.float32) / np.float32(255)
    pixels.setflags(write=False)
    return pixels
