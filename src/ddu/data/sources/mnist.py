"""MNIST and sets in its format, IDX, where torchvision keeps them: `MNIST/raw/train-images-idx3-ubyte`, or `.gz`."""

import gzip
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.data.downloads import Download, download, verify
from ddu.data.preprocessing import Scale
from ddu.data.registry import register
from ddu.errors import DataError
from ddu.messages import require

DIGITS = tuple("0123456789")
SCALE = Scale(mean=(0.1307,), std=(0.3081,))
"""The normalisation of MNIST, which all sets in its format use."""

_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_SYLLABLES = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")

_MNIST = DataInfo("mnist", (1, 28, 28), DIGITS, **SCALE)
_FASHION_MNIST = DataInfo("fashion_mnist", (1, 28, 28), _CLOTHES, **SCALE)
_KMNIST = DataInfo("kmnist", (1, 28, 28), _SYLLABLES, **SCALE)

_BYTES = b"\0\0\x08"  # how an IDX file of unsigned bytes begins; the number of its axes is next


def read_idx(path: Path) -> np.ndarray:
    """Reads bytes in IDX format: a magic number, the length of each axis in four bytes, big-endian, and the values.

    A file that is not compressed is memory-mapped.
    """
    compressed = path.suffix == ".gz"
    try:
        with gzip.open(path) if compressed else path.open("rb") as file:
            magic = file.read(3)
            rank = int.from_bytes(file.read(1))
            axes = file.read(4 * rank)
            values = bytearray(file.read()) if compressed else None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is corrupt or not whole: {error}.") from error
    if magic != _BYTES or rank == 0 or len(axes) < 4 * rank:
        raise DataError(f"{path} is not an IDX file of bytes.")
    shape = tuple(int.from_bytes(axes[i : i + 4]) for i in range(0, len(axes), 4))
    start = 4 + len(axes)
    size = path.stat().st_size - start if values is None else len(values)
    if size != math.prod(shape):
        raise DataError(f"{path} is not whole: its header says {math.prod(shape):,} values, and it has {size:,}.")
    if values is None:
        return np.memmap(path, np.uint8, mode="c", offset=start, shape=shape)
    return np.frombuffer(values, np.uint8).reshape(shape)


def _files(kind: str) -> Mapping[str, tuple[str, ...]]:
    return {
        split: (f"{kind}/raw/{prefix}-images-idx3-ubyte", f"{kind}/raw/{prefix}-labels-idx1-ubyte")
        for split, prefix in (("train", "train"), ("test", "t10k"))
    }


def _read(kind: str, info: DataInfo, split: str, root: Path) -> ArrayDataset:
    images, labels = (_read_verified(kind, root / file) for file in _files(kind)[split])
    return ArrayDataset(images[..., None], labels.astype(np.int64), info)


def _read_verified(kind: str, path: Path) -> np.ndarray:
    if not path.exists():
        path = path.with_name(f"{path.name}.gz")
        verify(path, dict(_torchvision(kind).resources)[path.name])
    return read_idx(path)


def _fetch(kind: str, info: DataInfo, root: Path) -> None:
    home = _torchvision(kind)
    files = [
        Download(tuple(mirror + name for mirror in home.mirrors), md5, f"{kind}/raw") for name, md5 in home.resources
    ]
    download(info.name, root, files)


def _torchvision(kind: str):
    return getattr(require("torchvision.datasets", extra="data", purpose=f"The checksums of {kind}"), kind)


@register(_MNIST, _files("MNIST"), fetch=lambda root: _fetch("MNIST", _MNIST, root))
def mnist(split: str, root: Path) -> ArrayDataset:
    """Handwritten digits."""
    return _read("MNIST", _MNIST, split, root)


@register(_FASHION_MNIST, _files("FashionMNIST"), fetch=lambda root: _fetch("FashionMNIST", _FASHION_MNIST, root))
def fashion_mnist(split: str, root: Path) -> ArrayDataset:
    """Clothes, in the size and number of MNIST's digits."""
    return _read("FashionMNIST", _FASHION_MNIST, split, root)


@register(_KMNIST, _files("KMNIST"), fetch=lambda root: _fetch("KMNIST", _KMNIST, root))
def kmnist(split: str, root: Path) -> ArrayDataset:
    """Cursive Japanese syllables, in the size and number of MNIST's digits."""
    return _read("KMNIST", _KMNIST, split, root)
