"""Pixels: another size, other channels, and the scale that networks like."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

if TYPE_CHECKING:
    from PIL import Image

_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # of red, green and blue, by ITU-R BT.601

# Pillow's modes
_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_GREY = ("1", "L", "LA", "F", *_DEEP)

_TURNED = (5, 6, 7, 8)  # values of EXIF's orientation for which height and width change places


def normalised(images: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(x - mean) / std of each channel, with x in [0, 1].

    Args:
        images: (sample, height, width, channel), bytes or floats in [0, 1].
        mean: Of each channel.
        std: Of each channel.

    Returns:
        Floats, (sample, channel, height, width).
    """
    x = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    scale = 255.0 if x.dtype == torch.uint8 else 1.0
    shift, spread = (scale * torch.tensor(values)[:, None, None] for values in (mean, std))
    return x.float().sub_(shift).div_(spread)


def fitted(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Images with other channels and another size; bytes stay bytes.

    Colour becomes grey by its luma, grey becomes colour by repetition. The image is scaled, with antialiasing, until it
    covers the new size, and what then sticks out is cut off evenly: nothing is squashed.

    Args:
        images: (sample, height, width, channel).
        shape: (channel, height, width).
    """
    channels, *size = shape
    if images.shape[3] != channels:
        grey = (images @ _LUMA)[..., None] if images.shape[3] == 3 else images
        images = _as_dtype(np.repeat(grey, channels, axis=3), images.dtype)
    if list(images.shape[1:3]) == size:
        return images
    scaled, (top, left) = covering(images.shape[1:3], size)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    pixels = interpolate(pixels, scaled, mode="bilinear", antialias=True)[
        :, :, top : top + size[0], left : left + size[1]
    ]
    return _as_dtype(pixels.permute(0, 2, 3, 1).contiguous().numpy(), images.dtype)


def decoded(image: "Image.Image", shape: tuple[int, ...], kept: float = 1.0) -> np.ndarray:
    """One image of Pillow's as bytes (height, width, channel), scaled and cut like those of `fitted`.

    Args:
        image: Of any size, and of any mode that `plain` takes.
        shape: (channel, height, width).
        kept: The share of the shorter side that is not cut off.
    """
    from PIL import Image

    channels, *size = shape
    image = plain(image).convert("RGB" if channels == 3 else "L")
    if [image.height, image.width] != size or kept != 1:
        scaled, (top, left) = covering((image.height, image.width), size, kept)
        image = image.resize((scaled[1], scaled[0]), Image.Resampling.BILINEAR)
        image = image.crop((left, top, left + size[1], top + size[0]))
    pixels = np.asarray(image)
    return pixels if channels == 3 else pixels[..., None]


def plain(image: "Image.Image") -> "Image.Image":
    """An image upright, with 8 bits per channel, and on white where it is transparent.

    16 bits are scaled: 0 stays 0, and 65,535 becomes 255.
    """
    from PIL import Image, ImageOps

    image.load()
    if _orientation(image) is not None:
        image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise ValueError("its pixels are floats, whose range is unknown: convert it to 8 or 16 bits")
    if image.mode in _DEEP:
        pixels = np.asarray(image).astype(np.int64)
        if pixels.min() < 0 or pixels.max() > 65_535:
            raise ValueError(
                f"its pixels go from {pixels.min()} to {pixels.max()}, beyond 16 bits: convert it to 8 or 16 bits"
            )
        return Image.fromarray(((pixels + 128) // 257).astype(np.uint8))  # 65535 = 257 · 255
    if image.has_transparency_data:
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image


def header(image: "Image.Image") -> tuple[int, int, bool]:
    """Height and width of an image once it is upright, and whether it is grey; nothing is decoded."""
    size = (image.width, image.height) if _orientation(image) in _TURNED else (image.height, image.width)
    return *size, image.mode in _GREY


def _orientation(image: "Image.Image") -> int | None:
    """How an image has to be turned, by its EXIF; None if that says nothing."""
    from PIL import ExifTags

    if "exif" not in image.info:
        return None
    try:
        return image.getexif().get(ExifTags.Base.Orientation)
    except SyntaxError:  # it is no EXIF
        return None


def covering(
    old: tuple[int, ...], new: list[int] | tuple[int, ...], kept: float = 1.0
) -> tuple[list[int], tuple[int, int]]:
    """The size to which an image is scaled so that it covers another, and the top left corner of the cut.

    >>> covering((300, 400), (30, 30))
    ([30, 40], (0, 5))
    """
    scale = max(n / o for n, o in zip(new, old, strict=True)) / kept
    scaled = [max(round(scale * o), n) for n, o in zip(new, old, strict=True)]
    return scaled, ((scaled[0] - new[0]) // 2, (scaled[1] - new[1]) // 2)


def _as_dtype(pixels: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return pixels.round().astype(dtype) if dtype == np.uint8 else pixels.astype(dtype)
