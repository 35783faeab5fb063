"""Ambiguous-MNIST and Dirty-MNIST, once `ddu data make dirty-mnist` has made them."""

import importlib
from pathlib import Path

from ddu.data._dataset import ArrayDataset, DataInfo
from ddu.data._registry import register
from ddu.data.sources._constants import DIGITS, MNIST

_AMBIGUOUS_MNIST = DataInfo("ambiguous_mnist", (1, 28, 28), DIGITS, **MNIST)
_DIRTY_MNIST = DataInfo("dirty_mnist", (1, 28, 28), DIGITS, **MNIST)
_MANIFEST = "dirty_mnist/manifest.json"
_FILES = {"train": (_MANIFEST,), "test": (_MANIFEST,)}
_REMEDY = "Make it with `ddu data make dirty-mnist`."


def _read(info: DataInfo, split: str, root: Path) -> ArrayDataset:
    made = importlib.import_module("ddu.data.dirty_mnist")
    images, labels = made.arrays(info.name, split, root)
    return ArrayDataset(images, labels, info)


@register(_AMBIGUOUS_MNIST, _FILES, remedy=_REMEDY)
def ambiguous_mnist(split: str, root: Path) -> ArrayDataset:
    """Digits that could be one of two or more, with labels drawn accordingly."""
    return _read(_AMBIGUOUS_MNIST, split, root)


@register(_DIRTY_MNIST, _FILES, remedy=_REMEDY)
def dirty_mnist(split: str, root: Path) -> ArrayDataset:
    """MNIST and Ambiguous-MNIST together."""
    return _read(_DIRTY_MNIST, split, root)
