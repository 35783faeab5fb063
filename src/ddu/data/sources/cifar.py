"""CIFAR-10 and CIFAR-100: their official pickles, read by an unpickler that can build nothing but arrays."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.data.downloads import Download, download, verify
from ddu.data.preprocessing import Scale
from ddu.data.registry import register
from ddu.errors import DataError
from ddu.messages import require

SCALE = Scale(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
"""The normalisation of CIFAR-10, which all sets of 32 x 32 pixels use."""

_OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_HUNDRED = (
    *("apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy"),
    *("bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock"),
    *("cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish"),
    *("forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion"),
    *("lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange"),
    *("orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine"),
    *("possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk"),
    *("skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank"),
    *("telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale"),
    *("willow_tree", "wolf", "woman", "worm"),
)

CIFAR10 = DataInfo("cifar10", (3, 32, 32), _OBJECTS, **SCALE)
_CIFAR100 = DataInfo("cifar100", (3, 32, 32), _HUNDRED, **SCALE)


class ArrayUnpickler(pickle.Unpickler):
    """Reads dictionaries, lists, numbers, strings and arrays; anything else in a pickle is refused before it runs."""

    def find_class(self, module: str, name: str) -> Any:
        """The few names that a pickled array needs, whatever numpy wrote it."""
        match module.replace("numpy._core", "numpy.core"), name:
            case "numpy.core.multiarray", "_reconstruct":
                return np.empty(0).__reduce__()[0]  # where numpy keeps this function today
            case "numpy", "ndarray":
                return np.ndarray
            case "numpy", "dtype":
                return np.dtype
            case "_codecs", "encode":  # how Python 3 writes bytes in the older protocols
                return _latin1
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only arrays are read")


def _latin1(text: str, _: str = "latin1") -> bytes:
    return text.encode("latin1")


def read_pickle(path: Path, labels: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads one batch file: images (sample, 32, 32, 3), bytes, and the labels stored under the given key."""
    try:
        with path.open("rb") as file:
            batch = ArrayUnpickler(file, encoding="latin1").load()
        pixels, classes = np.asarray(batch["data"], np.uint8), np.asarray(batch[labels], np.int64)
        images = pixels.reshape(len(classes), 3, 32, 32)
    # What a damaged pickle raises depends on where the damage is
    except Exception as error:
        raise DataError(f"{path} cannot be read as a batch of CIFAR: {error}.") from error
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)), classes


def _read(kind: str, info: DataInfo, split: str, root: Path) -> ArrayDataset:
    home = _torchvision(kind)
    batches = []
    for name, md5 in home.train_list if split == "train" else home.test_list:
        path = root / home.base_folder / name
        verify(path, md5)
        batches.append(read_pickle(path, "labels" if kind == "CIFAR10" else "fine_labels"))
    images, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    return ArrayDataset(images, labels, info)


def _fetch(kind: str, info: DataInfo, root: Path) -> None:
    home = _torchvision(kind)
    download(info.name, root, [Download((home.url,), home.tgz_md5)])


def _torchvision(kind: str):
    return getattr(require("torchvision.datasets", extra="data", purpose=f"The checksums of {kind}"), kind)


@register(
    CIFAR10,
    {
        "train": tuple(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)),
        "test": ("cifar-10-batches-py/test_batch",),
    },
    fetch=lambda root: _fetch("CIFAR10", CIFAR10, root),
)
def cifar10(split: str, root: Path) -> ArrayDataset:
    """Small photographs of ten kinds of animals and vehicles."""
    return _read("CIFAR10", CIFAR10, split, root)


@register(
    _CIFAR100,
    {"train": ("cifar-100-python/train",), "test": ("cifar-100-python/test",)},
    fetch=lambda root: _fetch("CIFAR100", _CIFAR100, root),
)
def cifar100(split: str, root: Path) -> ArrayDataset:
    """Small photographs of a hundred kinds of things."""
    return _read("CIFAR100", _CIFAR100, split, root)
