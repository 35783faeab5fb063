"""A sheet of ambiguous images with their two likeliest labels."""

from pathlib import Path

import numpy as np

from ddu.data.dirty_mnist_format import numbers, read_arrays
from ddu.files import FilePath
from ddu.messages import require

_ZOOM = 3
_SIDE = 28 * _ZOOM
_CAPTION = 18
_GAP = 6


def draw_samples(
    folder: FilePath,
    path: FilePath,
    split: str = "test",
    *,
    columns: int = 10,
    rows: int = 5,
    seed: int = 0,
) -> None:
    """Draws images that are picked at random, each over its two likeliest labels and their probabilities."""
    image_module = require("PIL.Image", extra="data", purpose="A sheet of samples")
    draw_module = require("PIL.ImageDraw", extra="data", purpose="A sheet of samples")
    arrays, _ = read_arrays(Path(folder), split)
    picked = numbers(seed, "sheet").permutation(len(arrays["images"]))[: columns * rows]
    sheet = image_module.new("L", (columns * (_SIDE + _GAP) + _GAP, rows * (_SIDE + _CAPTION + _GAP) + _GAP), 255)
    draw = draw_module.Draw(sheet)
    for place, image in enumerate(picked):
        left = _GAP + place % columns * (_SIDE + _GAP)
        top = _GAP + place // columns * (_SIDE + _CAPTION + _GAP)
        digit = image_module.fromarray(arrays["images"][image, ..., 0])
        sheet.paste(digit.resize((_SIDE, _SIDE), image_module.Resampling.NEAREST), (left, top))
        draw.text((left + _SIDE // 2, top + _SIDE + 3), _caption(arrays["soft_labels"][image]), fill=0, anchor="ma")
    sheet.save(path)


def _caption(soft_label: np.ndarray) -> str:
    first, second = soft_label.argsort()[::-1][:2]
    return f"{first}: {soft_label[first]:.0%}   {second}: {soft_label[second]:.0%}"
