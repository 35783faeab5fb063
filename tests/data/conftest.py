"""Tiny files of the official layouts, written afresh by the tests."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def write_images() -> Callable[..., list[Path]]:
    """Writes images of one colour each, 0, 1, 2, ..., into a folder."""

    def write(folder: Path, count: int, *, size: tuple[int, int] = (6, 6), mode: str = "RGB", end: str = ".png"):
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"image_{index}{end}" for index in range(count)]
        for index, path in enumerate(paths):
            Image.new(mode, size[::-1], index if mode == "L" else (index, 10, 20)).save(path)
        return paths

    return write
