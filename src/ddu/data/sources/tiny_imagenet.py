"""Tiny-ImageNet in the layout of its archive, `tiny-imagenet-200/`."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.data.downloads import Download, download
from ddu.data.preprocessing import IMAGENET_SCALE
from ddu.data.registry import register
from ddu.data.sources.folder import FolderDataset, list_images
from ddu.errors import DataError

_TINY_IMAGENET = DataInfo("tiny_imagenet", (3, 64, 64), (), **IMAGENET_SCALE)
_FOLDER = "tiny-imagenet-200"
_NAMES = (f"{_FOLDER}/wnids.txt", f"{_FOLDER}/words.txt")
_ARCHIVE = Download(("http://cs231n.stanford.edu/tiny-imagenet-200.zip",), md5="90528d7ca1a48142e341f4ef8d21d0de")


@register(
    _TINY_IMAGENET,
    {
        "train": (*_NAMES, f"{_FOLDER}/train"),
        "test": (*_NAMES, f"{_FOLDER}/val/val_annotations.txt", f"{_FOLDER}/val/images"),
    },
    fetch=lambda root: download("tiny_imagenet", root, [_ARCHIVE]),
)
def tiny_imagenet(split: str, root: Path) -> ArrayDataset:
    """Small photographs of 200 of ImageNet's classes; its validation images are the test split."""
    folder = root / _FOLDER
    wnids = (folder / "wnids.txt").read_text().split()
    words = dict(_rows(folder / "words.txt"))
    info = replace(_TINY_IMAGENET, classes=tuple(words.get(wnid, wnid) for wnid in wnids))
    if split == "test":
        return FolderDataset(*_validation(folder / "val", wnids), info)
    return FolderDataset(*list_images({wnid: folder / "train" / wnid / "images" for wnid in wnids}), info)


def _validation(folder: Path, wnids: list[str]) -> tuple[list[str], np.ndarray]:
    """The images that the annotations name, and the position of each one's class."""
    label = {wnid: number for number, wnid in enumerate(wnids)}
    there = {path.name for path in (folder / "images").iterdir()}
    files, labels = [], []
    for name, wnid, *_ in _rows(folder / "val_annotations.txt"):
        if name not in there:
            raise DataError(f"{folder / 'images' / name} is missing: val_annotations.txt names it.")
        if wnid not in label:
            raise DataError(f"{folder / 'val_annotations.txt'} gives {name} the class {wnid}, which wnids.txt has not.")
        files.append(str(folder / "images" / name))
        labels.append(label[wnid])
    return files, np.array(labels, dtype=np.int64)


def _rows(path: Path) -> list[list[str]]:
    rows = [line.split("\t") for line in path.read_text().splitlines() if line]
    if any(len(row) < 2 for row in rows):
        raise DataError(f"{path} is not whole: it has a line with less than two columns.")
    return rows
