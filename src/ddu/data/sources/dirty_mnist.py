"""Ambiguous-MNIST and Dirty-MNIST, once `ddu data make dirty-mnist` has made them: `dirty_mnist/` below the root."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.data.dirty_mnist_format import numbers, read_arrays, read_manifest
from ddu.data.registry import SOURCES, Source, load, register, register_prefix
from ddu.data.sources.mnist import DIGITS, SCALE
from ddu.errors import InputError
from ddu.files import FilePath
from ddu.messages import check_name

NOISE = 0.05
"""Standard deviation of the noise, in units of MNIST's own (0.3081): as it is once images are normalised."""

_ROWS = 4096  # given noise at a time


class SoftLabelled(NamedTuple):
    """Images with a drawn label each, and what it was drawn from.

    Attributes:
        inputs: (sample, 28, 28, 1), halves; black is 0 and white is 1, but for the noise.
        labels: (sample,).
        soft_labels: (sample, class); one-hot where there is no doubt.
        groups: (sample,); copies of one image have the same number.
    """

    inputs: np.ndarray
    labels: np.ndarray
    soft_labels: np.ndarray
    groups: np.ndarray

    def take(self, rows: np.ndarray | slice) -> "SoftLabelled":
        """Some of the samples."""
        return SoftLabelled(*(column[rows] for column in self))


def load_ambiguous(folder: FilePath, split: str = "train", *, noise: float = NOISE) -> SoftLabelled:
    """Ambiguous-MNIST: every image as often as it has labels, one copy after the other, each with noise of its own.

    The noise depends on nothing but the seed that the set was made with. Whoever holds out a part of the samples should
    hold out whole images, that is, whole `groups`: samples 10 i to 10 i + 9 are the same one.

    Args:
        folder: What `make_dirty_mnist` made.
        split: "train" or "test".
        noise: Standard deviation, where 1 is that of MNIST's pixels.
    """
    arrays, manifest = read_arrays(Path(folder), split)
    copies = arrays["labels"].shape[1]
    return SoftLabelled(
        with_noise(arrays["images"], copies, noise, numbers(manifest["seed"], "noise", split, "ambiguous")),
        arrays["labels"].reshape(-1).astype(np.int64),
        arrays["soft_labels"].repeat(copies, axis=0),
        np.arange(len(arrays["images"])).repeat(copies),
    )


def load_dirty(folder: FilePath, split: str, mnist: ArrayDataset, *, noise: float = NOISE) -> SoftLabelled:
    """Dirty-MNIST: MNIST, then Ambiguous-MNIST, both with noise, so that noise does not tell them apart.

    Args:
        folder: What `make_dirty_mnist` made.
        split: "train" or "test".
        mnist: The same split of MNIST, in bytes.
        noise: Standard deviation, where 1 is that of MNIST's pixels.
    """
    ambiguous = load_ambiguous(folder, split, noise=noise)
    seed = read_manifest(Path(folder))["seed"]
    clean = with_noise(mnist.inputs, 1, noise, numbers(seed, "noise", split, "clean"))
    certain = np.eye(ambiguous.soft_labels.shape[1], dtype=np.float32)[mnist.labels]
    return SoftLabelled(
        np.concatenate([clean, ambiguous.inputs]),
        np.concatenate([mnist.labels, ambiguous.labels]),
        np.concatenate([certain, ambiguous.soft_labels]),
        np.concatenate([np.arange(len(mnist)), len(mnist) + ambiguous.groups]),
    )


def with_noise(images: np.ndarray, copies: int, noise: float, random: np.random.Generator) -> np.ndarray:
    """Copies of images in bytes, one after the other, each with noise of its own, as halves."""
    result = np.empty((len(images) * copies, *images.shape[1:]), dtype=np.float16)
    for start in range(0, len(result), _ROWS):
        rows = result[start : start + _ROWS]
        pixels = images[np.arange(start, start + len(rows)) // copies] / np.float32(255)
        rows[:] = pixels + np.float32(noise * SCALE["std"][0]) * random.standard_normal(rows.shape, dtype=np.float32)
    return result


_AMBIGUOUS_MNIST = DataInfo("ambiguous_mnist", (1, 28, 28), DIGITS, **SCALE)
_DIRTY_MNIST = DataInfo("dirty_mnist", (1, 28, 28), DIGITS, **SCALE)
_FOLDER = "dirty_mnist"
_FILES = {split: (f"{_FOLDER}/manifest.json", f"{_FOLDER}/ambiguous_{split}.npz") for split in ("train", "test")}
_REMEDY = "Make it with `ddu data make dirty-mnist`."


@register(_AMBIGUOUS_MNIST, _FILES, remedy=_REMEDY)
def ambiguous_mnist(split: str, root: Path) -> ArrayDataset:
    """Digits that could be one of two or more, with labels drawn accordingly."""
    made = load_ambiguous(root / _FOLDER, split)
    return ArrayDataset(made.inputs, made.labels, _AMBIGUOUS_MNIST, made.groups)


@register(_DIRTY_MNIST, _FILES, remedy=_REMEDY)
def dirty_mnist(split: str, root: Path) -> ArrayDataset:
    """MNIST and Ambiguous-MNIST together."""
    made = load_dirty(root / _FOLDER, split, load("mnist", split, root=root))
    return ArrayDataset(made.inputs, made.labels, _DIRTY_MNIST, made.groups)


@register_prefix("noisy", "NAME")
def noisy(name: str) -> Source:
    """Another set of images with the noise of Dirty-MNIST, so that noise tells nothing: noisy:fashion_mnist."""
    check_name(name, SOURCES, "There is no data set {name!r} to add noise to")
    info = replace(SOURCES[name].info, name=f"noisy:{name}")

    def read(split: str, root: Path) -> ArrayDataset:
        images = load(name, split, root=root)
        if getattr(images.inputs, "dtype", None) != np.uint8:
            raise InputError(f"Noise is added to images in bytes, and those of {name} are something else.")
        inputs = with_noise(images.inputs, 1, NOISE, np.random.default_rng(0))
        return ArrayDataset(inputs, images.labels, info, images.groups)

    # What is missing is said by the set itself
    return replace(SOURCES[name], info=info, read=read, files=dict.fromkeys(SOURCES[name].splits, ()), fetch=None)
