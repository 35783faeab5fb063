"""How a raw image becomes a network's input: upright, in 8 bits, scaled, cut, and normalised."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from numbers import Number
from typing import TYPE_CHECKING, Any, Self, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ddu.errors import DataError, InputError
from ddu.files import FilePath
from ddu.messages import require

if TYPE_CHECKING:
    from PIL import Image

LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # brightness of red, green and blue, by ITU-R BT.601

# Pillow's modes
_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_GREY = ("1", "L", "LA", "F", *_DEEP)

_TURNED = (5, 6, 7, 8)  # values of EXIF's orientation for which height and width change places


class Scale(TypedDict):
    """Mean and standard deviation of each channel, with pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


IMAGENET_SCALE = Scale(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
# ImageNet in grey: the luma of its mean, and about its deviation
GREY_SCALE = Scale(mean=(0.459,), std=(0.226,))


def default_scale(shape: tuple[int, ...]) -> Scale:
    """The normalisation of inputs of which nothing but the shape is known: vectors are taken as they are."""
    if len(shape) != 3:
        return Scale(mean=(), std=())
    return IMAGENET_SCALE if shape[0] == 3 else GREY_SCALE


@dataclass(frozen=True)
class Preprocessing:
    """What is done to raw inputs before a network sees them.

    An image is scaled, with antialiasing, until it covers the size, and what then sticks out is cut off evenly. Colour
    becomes grey by its luma, grey becomes colour by repetition. Then (x - mean) / std per channel, with x in [0, 1].
    Vectors are taken as they are.

    Attributes:
        shape: Of one input: (channels, height, width), or (features,).
        mean: Of each channel, with images in [0, 1]; empty for vectors.
        std: The standard deviation of each channel, likewise.
        kept: The share of the shorter side that is not cut off; 0.875 for ImageNet.
        resizing: "bilinear" or "bicubic".

    >>> to_input = Preprocessing((1, 28, 28), mean=(0.5,), std=(0.5,))
    >>> x = to_input(np.full((32, 40, 3), 255, np.uint8))  # a white photograph
    >>> x.shape, x.unique()
    (torch.Size([1, 1, 28, 28]), tensor([1.]))
    >>> Preprocessing.from_json(to_input.to_json()) == to_input
    True
    """

    shape: tuple[int, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    kept: float = 1.0
    resizing: str = "bilinear"

    def __post_init__(self) -> None:
        channels = self.shape[0] if len(self.shape) == 3 else 0
        if len(self.shape) not in (1, 3) or min(self.shape) < 1 or channels not in (0, 1, 3):
            raise InputError(
                "The shape of a preprocessing must be (channels, height, width) with 1 or 3 channels, or (features,). "
                f"Got {self.shape} instead."
            )
        if not len(self.mean) == len(self.std) == channels or not all(value > 0 for value in self.std):
            raise InputError(
                f"Inputs of the shape {self.shape} need {channels} means and as many positive deviations. Got "
                f"mean={self.mean} and std={self.std} instead."
            )
        if not 0 < self.kept <= 1:
            raise InputError(f"The share of an image that is kept must be in (0, 1]. Got {self.kept!r} instead.")
        if self.resizing not in ("bilinear", "bicubic"):
            raise InputError(f"The resizing must be 'bilinear' or 'bicubic'. Got {self.resizing!r} instead.")

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON can hold them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        known = [field.name for field in fields(cls)]
        if "shape" not in content or not content.keys() <= set(known):
            raise InputError(f"A preprocessing has the fields {', '.join(known)}. Got {', '.join(content)} instead.")
        restored: dict[str, Any] = {
            n: tuple(value) if isinstance(value, list) else value for n, value in content.items()
        }
        return cls(**restored)

    def __call__(self, inputs: Any) -> Tensor:
        """Raw inputs as a network wants them, (sample, channel, height, width) or (sample, feature).

        A file or an image of Pillow's gives what a `FolderDataset` gives, to the last bit, and an array gives what an
        `ArrayDataset` gives. Between the two a pixel may differ by one grey level where the image is scaled.

        Args:
            inputs: The name of an image file; an image of Pillow's; an array or tensor of pixels, which are bytes or
                floats in [0, 1]; or a list or tuple of those. An array may be (height, width),
                (height, width, channel), (sample, height, width) or (sample, height, width, channel). Of those with
                three axes, one whose last axis has the length 1 or 3 is an image with channels, any other is a batch of
                grey images. For vectors, (feature,) or (sample, feature).

        Raises:
            InputError: The type, the shape, the dtype or the range is wrong.
            DataError: A file cannot be read.
        """
        if isinstance(inputs, (list, tuple)) and not (inputs and isinstance(inputs[0], Number)):
            if not inputs:
                raise InputError("There are no inputs: the list is empty.")
            return torch.cat([self(each) for each in inputs])
        if not self.is_image:
            return self._checked_vectors(inputs)
        return normalised(self._pixels(inputs), self.mean, self.std)

    def to_bytes(self, inputs: Any) -> np.ndarray:
        """Raw images as an exported graph takes them: bytes (sample, height, width, channel), scaled and cut.

        Args:
            inputs: As of a call; floats in [0, 1] are rounded to 255ths.
        """
        if isinstance(inputs, (list, tuple)) and inputs:
            return np.concatenate([self.to_bytes(each) for each in inputs])
        pixels = self._pixels(inputs)
        return pixels if pixels.dtype == np.uint8 else (255 * pixels.astype(np.float32)).round().astype(np.uint8)

    def to_pixels(self, inputs: Tensor) -> np.ndarray:
        """What a network sees, as people do: bytes (sample, height, width, channel); vectors stay as they are.

        Args:
            inputs: What a call returned.
        """
        if not self.is_image:
            return inputs.cpu().numpy()
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        pixels = (inputs.cpu().float() * std + mean).mul(255).round().clamp(0, 255)
        return pixels.byte().permute(0, 2, 3, 1).contiguous().numpy()

    def _pixels(self, inputs: Any) -> np.ndarray:
        """Pixels with the size and the channels of the network: bytes, or floats in [0, 1] where those were given."""
        if isinstance(inputs, (str, os.PathLike)):
            with open_image(inputs) as image:
                return decoded(image, self.shape, self.kept, self.resizing)[None]
        if hasattr(inputs, "getexif"):  # only Pillow's images have it
            image: Any = inputs
            with _named(getattr(image, "filename", "") or "The given object"):
                return decoded(image, self.shape, self.kept, self.resizing)[None]
        return fitted(_checked_images(inputs), self.shape, self.kept, self.resizing)

    def of_arrays(self, inputs: np.ndarray) -> Tensor:
        """The same for arrays that need no check: images (sample, height, width, channel), or vectors."""
        if not self.is_image:
            return torch.from_numpy(inputs).float()
        return normalised(fitted(inputs, self.shape, self.kept, self.resizing), self.mean, self.std)

    def _checked_vectors(self, inputs: Any) -> Tensor:
        vectors = _as_array(inputs)
        if vectors.dtype.kind not in "fiub" or vectors.ndim not in (1, 2) or vectors.shape[-1] != self.shape[0]:
            raise InputError(
                f"Inputs must be vectors of {self.shape[0]} numbers, ({self.shape[0]},) or (sample, {self.shape[0]}). "
                f"Got {vectors.dtype} of shape {vectors.shape} instead."
            )
        return self.of_arrays(np.atleast_2d(vectors).astype(np.float32))


def _as_array(inputs: Any) -> np.ndarray:
    if isinstance(inputs, Tensor):
        inputs = inputs.detach().cpu()
        return (inputs.float() if inputs.dtype == torch.bfloat16 else inputs).numpy()
    if isinstance(inputs, (list, tuple)):
        return np.asarray(inputs)
    if not isinstance(inputs, np.ndarray):
        raise InputError(
            "An input must be the name of an image file, an image of Pillow's, an array, a tensor, or a list of those. "
            f"Got {type(inputs).__name__} instead."
        )
    return inputs


def _checked_images(inputs: Any) -> np.ndarray:
    """An array of pixels as images (sample, height, width, channel)."""
    images = _as_array(inputs)
    got = f"Got {images.dtype} of shape {images.shape} instead."
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise InputError(f"Pixels must be bytes (uint8), or floats in [0, 1]. {got}")
    match images.shape:
        case (_, _):
            images = images[None, ..., None]
        case (_, _, 1 | 3):
            images = images[None]
        case (_, _, _):
            images = images[..., None]
        case (_, _, _, 1 | 3):
            pass
        case (_, 1 | 3, _, _):
            raise InputError(f"The channels of images must be the last axis: transpose them to 0, 2, 3, 1. {got}")
        case _:
            raise InputError(
                "Images must be (height, width), (height, width, channel), (sample, height, width) or "
                f"(sample, height, width, channel), with 1 or 3 channels. {got}"
            )
    if images.size == 0:
        raise InputError(f"There are no pixels. {got}")
    if images.dtype != np.uint8:
        least, most = images.min(), images.max()
        if not (np.isfinite(least) and np.isfinite(most)):
            raise InputError("Pixels must be finite, and some are NaN or infinite.")
        if least < 0 or most > 1:
            raise InputError(
                f"Floats must be in [0, 1]. Got {least:g} to {most:g} instead: divide by the largest value possible, "
                "or give bytes (uint8)."
            )
    # What torch takes: native floats, in memory that may be written to
    known = images.dtype in (np.uint8, np.float16, np.float32, np.float64)
    return np.require(images, None if known else np.float32, ["C_CONTIGUOUS", "WRITEABLE"])


@contextmanager
def open_image(file: FilePath) -> "Iterator[Image.Image]":
    """An image file, open; every error says which file it is."""
    pillow = require("PIL.Image", extra="data", purpose="Reading images")
    with _named(os.fspath(file)), pillow.open(file) as image:
        yield image


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    # What a damaged file raises depends on its format, and on where the damage is
    except Exception as error:
        raise DataError(f"{name} cannot be read as an image: {_reason(error, name)}.") from error


def _reason(error: Exception, name: str) -> str:
    """Why a file cannot be read, without its name, which Pillow and the system repeat."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if "cannot identify image file" in str(error):
        is_empty = os.path.isfile(name) and not os.path.getsize(name)
        return "the file is empty" if is_empty else "it has no known image format"
    return str(error)


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
    return x.to(torch.float32, copy=True).sub_(shift).div_(spread)  # a copy, since x may be the caller's own memory


def fitted(images: np.ndarray, shape: tuple[int, ...], kept: float = 1.0, resizing: str = "bilinear") -> np.ndarray:
    """Images with other channels and another size, as `Preprocessing` says; bytes stay bytes.

    Args:
        images: (sample, height, width, channel).
        shape: (channel, height, width).
        kept: The share of the shorter side that is not cut off.
        resizing: As of `Preprocessing`.
    """
    channels, *size = shape
    if images.shape[3] != channels:
        grey = (images @ LUMA)[..., None] if images.shape[3] == 3 else images
        images = _as_dtype(np.repeat(grey, channels, axis=3), images.dtype)
    if list(images.shape[1:3]) == size and kept == 1:
        return images
    scaled, (top, left) = covering(images.shape[1:3], size, kept)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    if resizing == "bicubic":  # overshoots at edges, and Pillow bounds it after each of both axes
        largest = 255 if images.dtype == np.uint8 else 1
        pixels = interpolate(pixels, (images.shape[1], scaled[1]), mode=resizing, antialias=True).clamp(0, largest)
        pixels = interpolate(pixels, scaled, mode=resizing, antialias=True).clamp(0, largest)
    else:
        pixels = interpolate(pixels, scaled, mode=resizing, antialias=True)
    pixels = pixels[..., top : top + size[0], left : left + size[1]]
    return _as_dtype(pixels.permute(0, 2, 3, 1).contiguous().numpy(), images.dtype)


def decoded(image: "Image.Image", shape: tuple[int, ...], kept: float = 1.0, resizing: str = "bilinear") -> np.ndarray:
    """One image of Pillow's as bytes (height, width, channel), scaled and cut like those of `fitted`.

    Args:
        image: Of any size, and of any mode that `plain` takes.
        shape: (channel, height, width).
        kept: The share of the shorter side that is not cut off.
        resizing: As of `Preprocessing`.
    """
    from PIL import Image

    channels, *size = shape
    image = plain(image).convert("RGB" if channels == 3 else "L")
    if [image.height, image.width] != size or kept != 1:
        scaled, (top, left) = covering((image.height, image.width), size, kept)
        image = image.resize((scaled[1], scaled[0]), Image.Resampling[resizing.upper()])
        image = image.crop((left, top, left + size[1], top + size[0]))
    pixels = np.array(image)  # a copy, since torch wants arrays that may be written to
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
