"""Ambiguous-MNIST and Dirty-MNIST, once `ddu data make dirty-mnist` has made them: `dirty_mnist/` below the root."""

from pathlib import Path

from ddu.data._registry import register
from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.data.sources.mnist import DIGITS, SCALE

_AMBIGUOUS_MNIST = DataInfo("ambiguous_mnist", (1, 28, 28), DIGITS, **SCALE)
_DIRTY_MNIST = DataInfo("dirty_mnist", (1, 28, 28), DIGITS, **SCALE)
_FOLDER = "dirty_mnist"
_FILES = {split: (f"{_FOLDER}/manifest.json", f"{_FOLDER}/ambiguous_{split}.npz") for split in ("train", "test")}
_REMEDY = "Make it with `ddu data make dirty-mnist`."


@register(_AMBIGUOUS_MNIST, _FILES, remedy=_REMEDY)
def ambiguous_mnist(split: str, root: Path) -> ArrayDataset:
    """Digits that could be one of two or more, with labels drawn accordingly."""
    from ddu.data.dirty_mnist import load_ambiguous

    made = load_ambiguous(root / _FOLDER, split)
    return ArrayDataset(made.inputs, made.labels, _AMBIGUOUS_MNIST, made.groups)


@register(_DIRTY_MNIST, _FILES, remedy=_REMEDY)
def dirty_mnist(split: str, root: Path) -> ArrayDataset:
    """MNIST and Ambiguous-MNIST together."""
    from ddu.data._sources import load  # which knows where MNIST may be, and this file
    from ddu.data.dirty_mnist import load_dirty

    made = load_dirty(root / _FOLDER, split, load("mnist", split, root=root))
    return ArrayDataset(made.inputs, made.labels, _DIRTY_MNIST, made.groups)
