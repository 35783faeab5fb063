"""Patches of the two photographs that scikit-learn carries: what no network of digits has ever seen."""

from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.data.preprocessing import LUMA
from ddu.data.registry import register
from ddu.data.sources.mnist import SCALE
from ddu.messages import require

_PHOTO_PATCHES = DataInfo("photo_patches", (1, 28, 28), ("china", "flower"), **SCALE)
_COUNT = 1000


def cut_patches(count: int, size: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Grey patches of scikit-learn's two sample photographs, a temple in China and a flower, in [0, 1].

    Photograph, row and column are drawn uniformly, so a patch may be a roof, a petal, or empty sky: none is left out.

    Args:
        count: How many.
        size: Pixels per side.
        generator: Where the randomness comes from.

    Returns:
        Patches, (count, size, size), and which of the two photographs each is from, (count,).
    """
    datasets = require("sklearn.datasets", extra="data", purpose="photo_patches")
    require("PIL", extra="data", purpose="photo_patches")
    photos = [torch.as_tensor(photo / 255, dtype=torch.float32) for photo in datasets.load_sample_images().images]
    grey = torch.stack([photo @ torch.from_numpy(LUMA) for photo in photos])
    photo, row, column = (
        torch.randint(last, (count, 1, 1), generator=generator)
        for last in (len(grey), grey.shape[1] - size + 1, grey.shape[2] - size + 1)
    )
    offset = torch.arange(size)
    return grey[photo, row + offset[:, None], column + offset], photo.flatten()


@register(_PHOTO_PATCHES, {"test": ()})
def photo_patches(split: str, root: Path) -> ArrayDataset:
    """1,000 grey patches of two photographs, in the size of MNIST's digits: nothing that a digit looks like."""
    patches, photo = cut_patches(_COUNT, 28, Generator().manual_seed(0))
    return ArrayDataset(
        (255 * patches).round().byte().numpy()[..., None], photo.numpy().astype(np.int64), _PHOTO_PATCHES
    )
