"""Images that no camera takes, in the size and colours of any set of images: what a detector should always find.

flat, black, white and noise need nothing but a size; shuffled_patches, inverted and repeated_row are made from test
images. `ddu.data.load_ood(name, info)` gives them; the same set always gets the same images.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.data.registry import load_ood, register_derived
from ddu.errors import InputError

COUNT, COPIES = 500, 64  # images; those that are all alike
GRID = 4  # patches per side


@register_derived
def flat(info: DataInfo, root: Path) -> ArrayDataset:
    """500 images of one random colour each."""
    channels, height, width = _image_shape("flat", info)
    colours = _random().integers(0, 256, (COUNT, 1, 1, channels), np.uint8)
    return _as_set("flat", colours.repeat(height, 1).repeat(width, 2), info)


@register_derived
def black(info: DataInfo, root: Path) -> ArrayDataset:
    """64 black images."""
    channels, height, width = _image_shape("black", info)
    return _as_set("black", np.zeros((COPIES, height, width, channels), np.uint8), info)


@register_derived
def white(info: DataInfo, root: Path) -> ArrayDataset:
    """64 white images."""
    channels, height, width = _image_shape("white", info)
    return _as_set("white", np.full((COPIES, height, width, channels), 255, np.uint8), info)


@register_derived
def noise(info: DataInfo, root: Path) -> ArrayDataset:
    """500 images of noise, pixel by pixel: uniform and Gaussian (mean 1/2, deviation 1/4, clipped) in turn."""
    channels, height, width = _image_shape("noise", info)
    random, size = _random(), (COUNT // 2, height, width, channels)
    kinds = random.random(size), random.normal(0.5, 0.25, size).clip(0, 1)
    images = np.stack(kinds, axis=1).reshape(COUNT, height, width, channels)
    return _as_set("noise", (255 * images).round().astype(np.uint8), info)


@register_derived
def shuffled_patches(info: DataInfo, root: Path) -> ArrayDataset:
    """500 test images, cut into 4 x 4 patches that are put together in another order."""
    images, labels = _test_images("shuffled_patches", info, root)
    random, (high, wide) = _random(), (images.shape[1] // GRID, images.shape[2] // GRID)
    corners = [(high * row, wide * column) for row in range(GRID) for column in range(GRID)]
    shuffled = images.copy()  # where the size is no multiple of 4, the last rows and columns stay
    for old, new in zip(images, shuffled, strict=True):
        for (top, left), place in zip(corners, random.permutation(len(corners)), strict=True):
            above, beside = corners[place]
            new[top : top + high, left : left + wide] = old[above : above + high, beside : beside + wide]
    return _as_set("shuffled_patches", shuffled, info, labels)


@register_derived
def inverted(info: DataInfo, root: Path) -> ArrayDataset:
    """500 test images as negatives."""
    images, labels = _test_images("inverted", info, root)
    return _as_set("inverted", 1 - images, info, labels)


@register_derived
def repeated_row(info: DataInfo, root: Path) -> ArrayDataset:
    """500 test images of which the middle row is repeated from top to bottom."""
    images, labels = _test_images("repeated_row", info, root)
    height = images.shape[1]
    return _as_set("repeated_row", images[:, height // 2, None].repeat(height, 1), info, labels)


def _random() -> np.random.Generator:
    return np.random.default_rng(0)


def _image_shape(name: str, info: DataInfo) -> tuple[int, int, int]:
    if not info.is_image:
        raise InputError(f"{name} is a set of images, and inputs of {info.name} have the shape {info.shape}.")
    channels, height, width = info.shape
    return channels, height, width


def _test_images(name: str, info: DataInfo, root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Test images of a set as its networks see them, in [0, 1], (sample, height, width, channel); and their labels."""
    _image_shape(name, info)
    test = load_ood(info.name, info, root=root)
    x, labels = test.__getitems__(range(min(len(test), COUNT)))
    mean, std = (np.array(values, np.float32) for values in (info.mean, info.std))
    return (x.permute(0, 2, 3, 1).numpy() * std + mean).clip(0, 1), labels.numpy()


def _as_set(name: str, images: np.ndarray, info: DataInfo, labels: np.ndarray | None = None) -> ArrayDataset:
    """A set with the normalisation of another one; without labels of their own, all images are of one class."""
    classes = info.classes if labels is not None else (name,)
    own = replace(info, name=name, classes=classes, kept=1.0)
    return ArrayDataset(images, np.zeros(len(images), np.int64) if labels is None else labels, own)
