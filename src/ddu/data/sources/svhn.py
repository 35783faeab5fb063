"""SVHN: house numbers seen from the street, cropped to single digits; `train_32x32.mat` and `test_32x32.mat`."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.data.downloads import Download, download, verify
from ddu.data.registry import load, register
from ddu.data.sources.cifar import SCALE
from ddu.data.sources.mnist import DIGITS
from ddu.errors import DataError
from ddu.messages import require

SVHN = DataInfo("svhn", (3, 32, 32), DIGITS, **SCALE)
_SVHN_6K = replace(SVHN, name="svhn_6k")
_COUNT, _TRAIN = 6000, 4500


def read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Reads `X`, (32, 32, 3, sample), and `y`, where the digit 0 is labelled 10."""
    scipy_io = require("scipy.io", extra="data", purpose="Reading SVHN")
    try:
        content = scipy_io.loadmat(path, variable_names=["X", "y"])
        images, labels = content["X"], content["y"]
    # What a damaged file raises depends on where the damage is
    except Exception as error:
        raise DataError(f"{path} cannot be read as a file of SVHN: {error}.") from error
    return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), labels.ravel().astype(np.int64) % 10


def _home(split: str) -> tuple[str, str, str]:
    """Address, name and checksum of a file."""
    datasets = require("torchvision.datasets", extra="data", purpose="The checksums of SVHN")
    return datasets.SVHN.split_list[split]


def _fetch(root: Path) -> None:
    homes = [_home(split) for split in ("train", "test")]
    download("svhn", root, [Download((url,), md5, packed=False) for url, _, md5 in homes])


@register(SVHN, {split: (f"{split}_32x32.mat",) for split in ("train", "test")}, fetch=_fetch)
def svhn(split: str, root: Path) -> ArrayDataset:
    """Digits of house numbers, seen from the street."""
    _, name, md5 = _home(split)
    verify(root / name, md5)
    return ArrayDataset(*read_mat(root / name), SVHN)


@register(_SVHN_6K, {"train": (), "test": ()})
def svhn_6k(split: str, root: Path) -> ArrayDataset:
    """6,000 digits of svhn's test split, 4,500 of them to train on; it needs svhn."""
    digits = load("svhn", "test", root=root)
    order = np.random.default_rng(0).permutation(min(len(digits), _COUNT))
    rows = order[:_TRAIN] if split == "train" else order[_TRAIN:]
    return ArrayDataset(digits.inputs[rows], digits.labels[rows], _SVHN_6K)
