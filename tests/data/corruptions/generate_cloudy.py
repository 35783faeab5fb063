"""Generates corruptions in a process of its own, for tests that interrupt it: folder and number of workers."""

import sys

import numpy as np

from ddu.data.corruptions import generate

CORRUPTIONS = ("contrast", "glass_blur", "shot_noise")
SEVERITIES = (1, 5)


def cloudy_set() -> tuple[np.ndarray, np.ndarray]:
    """1,100 images, two chunks and a bit, and their labels."""
    random = np.random.default_rng(0)
    return random.integers(0, 256, (1100, 32, 32, 3), dtype=np.uint8), random.integers(0, 10, 1100)


if __name__ == "__main__":
    generate(*cloudy_set(), sys.argv[1], corruptions=CORRUPTIONS, severities=SEVERITIES, workers=int(sys.argv[2]))
