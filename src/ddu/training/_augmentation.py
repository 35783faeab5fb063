"""Random changes to whole batches of training images, on whatever device they are; torch's random state decides."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ddu.training._recipes import Augmentation

_PADDING = 4
_AREA, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def crop_flip(images: Tensor, black: Tensor) -> Tensor:
    """Pads by 4 black pixels, crops to the old size at a random place, and mirrors every other image.

    Args:
        images: (sample, channel, height, width).
        black: What black is after normalisation, for each channel or for all.
    """
    batch, channels, height, width = images.shape
    size = batch, channels, height + 2 * _PADDING, width + 2 * _PADDING
    padded = black.to(images)[:, None, None].expand(size).clone()
    padded[..., _PADDING:-_PADDING, _PADDING:-_PADDING] = images
    top, left = torch.randint(2 * _PADDING + 1, (2, batch, 1), device=images.device)
    rows = top + torch.arange(height, device=images.device)
    columns = left + torch.arange(width, device=images.device)
    columns = torch.where(_coins(batch, images.device)[:, None], columns.flip(1), columns)
    sample = torch.arange(batch, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[:, None, None]
    return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]


def resized_crop_flip(images: Tensor, black: Tensor) -> Tensor:
    """A crop of 8 to 100 % of the area, of a ratio from 3:4 to 4:3, brought to the old size; mirrored half the time.

    Nothing is padded, so `black` is not used.
    """
    batch, device = len(images), images.device
    area = torch.empty(batch, device=device).uniform_(*_AREA)
    ratio = torch.empty(batch, device=device).uniform_(*map(math.log, _RATIO)).exp()
    # Half-extents of the crop, in units where the image is [-1, 1]²
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    x, y = (torch.empty(batch, device=device).uniform_(-1, 1) * (1 - extent) for extent in (width, height))
    mirror = torch.where(_coins(batch, device), -1.0, 1.0)
    zero = torch.zeros_like(x)
    maps = torch.stack([torch.stack([mirror * width, zero, x], 1), torch.stack([zero, height, y], 1)], 1)
    grid = affine_grid(maps.to(images.dtype), list(images.shape), align_corners=False)
    return grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def _coins(count: int, device: torch.device) -> Tensor:
    return torch.rand(count, device=device) < 0.5


AUGMENTATIONS: dict[Augmentation, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda images, black: images,
    "crop_flip": crop_flip,
    "resized_crop_flip": resized_crop_flip,
}
