"""SVHN to train on where only its test images are at hand: 6,000 of them, split anew."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ddu.data.dataset import ArrayDataset
from ddu.data.registry import load, register
from ddu.data.sources.svhn import SVHN

COUNT, TRAIN = 6000, 4500

_SVHN_6K = replace(SVHN, name="svhn_6k")


@register(_SVHN_6K, {"train": (), "test": ()})
def svhn_6k(split: str, root: Path) -> ArrayDataset:
    """6,000 digits of svhn's test split, 4,500 of them to train on; it needs svhn."""
    digits = load("svhn", "test", root=root)
    order = np.random.default_rng(0).permutation(min(len(digits), COUNT))
    rows = order[:TRAIN] if split == "train" else order[TRAIN:]
    return ArrayDataset(digits.inputs[rows], digits.labels[rows], _SVHN_6K)
