"""Sets by name."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from ddu.data._dataset import ArrayDataset, DataInfo
from ddu.data._digits import digits
from ddu.errors import InputError
from ddu.extras import require

Arrays = tuple[np.ndarray, np.ndarray]

_DIGITS = tuple("0123456789")
_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_MNIST = {"mean": (0.1307,), "std": (0.3081,)}
_CIFAR = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}


@dataclass(frozen=True)
class Source:
    """A set that can be read by name: `read(split, root)` gives its inputs and labels."""

    info: DataInfo
    read: Callable[[str, Path], Arrays]
    splits: tuple[str, ...] = ("train", "test")


_SOURCES: dict[str, Source] = {}


def load(name: str, split: str = "train", *, root: str | os.PathLike[str] | None = None) -> ArrayDataset:
    """Reads a set by name.

    Args:
        name: One of `list_data()`.
        split: "train" or "test".
        root: The folder of all sets; by default `DDU_DATA`, else the user's cache.
    """
    source = _find(name)
    if split not in source.splits:
        raise InputError(f"{name} has the splits {', '.join(source.splits)}, and no {split!r}.")
    inputs, labels = source.read(split, data_root(root))
    return ArrayDataset(inputs, labels, source.info)


def info(name: str) -> DataInfo:
    """What is known of a set without reading it."""
    return _find(name).info


def list_data() -> list[str]:
    """The names that `load` knows."""
    return sorted(_SOURCES)


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all sets: the one given, else `DDU_DATA`, else the user's cache."""
    return Path(root or os.environ.get("DDU_DATA") or Path.home() / ".cache" / "ddu").expanduser()


def _find(name: str) -> Source:
    if name not in _SOURCES:
        close = get_close_matches(name, _SOURCES, n=3)
        hint = f" The closest names are {', '.join(map(repr, close))};" if close else ""
        raise InputError(f"There is no data set {name!r}.{hint} list_data() gives them all.")
    return _SOURCES[name]


def _torchvision(kind: str) -> Callable[[str, Path], Arrays]:
    def read(split: str, root: Path) -> Arrays:
        datasets = require("torchvision.datasets", extra="data", purpose=f"Reading {kind}")
        try:
            found = getattr(datasets, kind)(root, train=split == "train")
        except RuntimeError as error:
            raise InputError(f"{kind} is not in {root}: {error}") from error
        return found.data.numpy()[..., None], found.targets.numpy()

    return read


def _npz(name: str) -> Callable[[str, Path], Arrays]:
    def read(split: str, root: Path) -> Arrays:
        path = root / f"{name}.npz"
        if not path.is_file():
            raise InputError(f"{name} is not in {root}: there is no {path}.")
        with np.load(path) as arrays:
            return arrays[f"x_{split}"], arrays[f"y_{split}"].astype(np.int64)

    return read


def _digits(split: str, root: Path) -> Arrays:
    everything = digits()
    rows = slice(0, 1297) if split == "train" else slice(1297, None)
    return everything.images[rows].permute(0, 2, 3, 1).contiguous().numpy(), everything.labels[rows].numpy()


def _two_moons(split: str, root: Path) -> Arrays:
    datasets = require("sklearn.datasets", extra="data", purpose="The two moons")
    points, labels = datasets.make_moons(2000, noise=0.1, random_state=0 if split == "train" else 1)
    return points.astype(np.float32), labels.astype(np.int64)


_SOURCES |= {
    "mnist": Source(DataInfo("mnist", (1, 28, 28), _DIGITS, **_MNIST), _torchvision("MNIST")),
    "fashion_mnist": Source(DataInfo("fashion_mnist", (1, 28, 28), _CLOTHES, **_MNIST), _torchvision("FashionMNIST")),
    "cifar10": Source(DataInfo("cifar10", (3, 32, 32), _OBJECTS, **_CIFAR), _npz("cifar10")),
    "digits": Source(DataInfo("digits", (1, 8, 8), _DIGITS, (0.305,), (0.376,)), _digits),
    "two_moons": Source(DataInfo("two_moons", (2,), ("upper", "lower")), _two_moons),
}
