"""Folders of images, one subfolder per class; below `train/` and `test/` (or `val/`) where there are splits."""

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.data.preprocessing import default_scale, header, open_image, plain
from ddu.data.registry import Source, listed, register_prefix
from ddu.errors import DataError, DataWarning
from ddu.progress import track

if TYPE_CHECKING:
    from PIL import Image

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SMALL = 96  # pixels: up to here images that all have one size keep it
USUAL = 224  # the size of all others, as for ImageNet

_SPLITS = ("train", "val", "test")
_END_OF_JPEG = b"\xff\xd9"


class FolderDataset(ArrayDataset):
    """Images in files, decoded with Pillow as they are asked for.

    Like an `ArrayDataset`, with the files' names as `inputs`: `subset` and `like` decode nothing, and each image is
    scaled once, from its own size to that of `info`.

    Args:
        files: Their names.
        labels: Integers, (sample,).
        info: Names the classes and holds size, mean and deviation.
        groups: As for an `ArrayDataset`.
    """

    def __init__(self, files: Sequence[str], labels: np.ndarray, info: DataInfo, groups: np.ndarray | None = None):
        super().__init__(np.array(files, dtype=object), labels, info, groups)

    def unreadable(self) -> dict[int, str]:
        """The samples that cannot be read, and why; a file that has not changed is not looked at again."""
        found = {row: _problem(str(file)) for row, file in enumerate(track(self.inputs, "Checking images"))}
        return {row: problem for row, problem in found.items() if problem is not None}

    def _read(self, rows: np.ndarray) -> Tensor:
        return self.preprocessing(list(self.inputs[rows]))

    def _input_bytes(self) -> Iterator[bytes]:
        """Names, relative to the folder that they have in common, and sizes: no image is read."""
        folder = os.path.commonpath([os.path.dirname(file) for file in self.inputs]) if len(self) else ""
        for file in self.inputs:
            yield f"{os.path.relpath(file, folder)}|{os.path.getsize(file)}|".encode()


def _problem(file: str) -> str | None:
    """Why a file cannot be read as an image; None if it can."""
    try:
        there = os.stat(file)
    except OSError as error:
        return f"{file} cannot be read: {error.strerror}."
    return _problem_of_version(file, there.st_size, there.st_mtime_ns)


@cache
def _problem_of_version(file: str, size: int, modified: int) -> str | None:
    try:
        if not _is_surely_whole(file):
            with open_image(file) as image:
                plain(image)
    except DataError as error:
        return str(error)
    return None


def _is_surely_whole(file: str) -> bool:
    """Whether a file is whole by the checksums of PNG or the end of JPEG; if not, only decoding can tell."""
    with open_image(file) as image:
        if image.format == "JPEG":
            with open(file, "rb") as content:
                content.seek(-len(_END_OF_JPEG), os.SEEK_END)
                return content.read() == _END_OF_JPEG
        if image.format == "PNG":
            try:
                image.verify()
            except (OSError, SyntaxError):
                return False
            return True
    return False


def class_folders(folder: Path) -> dict[str, Path]:
    """The subfolders of a folder by name, in order."""
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"The folder {folder} cannot be read: {error.strerror}.") from error
    return {name: folder / name for name in found}


def list_images(folders: Mapping[str, Path]) -> tuple[list[str], np.ndarray]:
    """The images of each class and their labels; a class without images is an error, other files are left out.

    Args:
        folders: The folder of each class, in the order of the labels.
    """
    files, labels, strangers = [], [], []
    for label, (name, folder) in enumerate(track(folders.items(), "Listing images")):
        images = []
        for path, subfolders, entries in os.walk(folder):
            subfolders.sort()
            for entry in sorted(entry for entry in entries if not entry.startswith(".")):
                (images if entry.lower().endswith(EXTENSIONS) else strangers).append(os.path.join(path, entry))
        if not images:
            raise DataError(f"The class {name!r} is empty: there is no image in {folder}.")
        files += images
        labels += [label] * len(images)
    if strangers:
        words = f"Left out {len(strangers)} of the files, which are no images: {listed(strangers)}"
        warnings.warn(words, DataWarning, 2)
    return files, np.array(labels, dtype=np.int64)


@register_prefix("folder", "PATH")
def open_folder(path: str) -> Source:
    """Images of your own, one subfolder per class."""
    folder = Path(path).expanduser()
    parts = _parts(folder)
    first = next(iter(parts))
    classes = tuple(class_folders(parts[first]))
    if not classes:
        raise DataError(f"{parts[first]} has no subfolders: every class needs one, with its images in it.")

    @cache
    def contents(split: str) -> tuple[list[str], np.ndarray]:
        found = class_folders(parts[split])
        for name in classes:
            if name not in found:
                raise DataError(f"{parts[split]} has no folder for the class {name!r}, and {parts[first]} has one.")
        for name in found:
            if name not in classes:
                raise DataError(f"{parts[split]} has a folder {name!r}, and {parts[first]} has no such class.")
        return list_images(found)

    shape = common_shape(_examples(*contents(first)))
    info = DataInfo(f"folder:{path}", shape, classes, **default_scale(shape))

    def read(split: str, root: Path) -> ArrayDataset:
        return FolderDataset(*contents(split), info)

    files = {split: (str(part.absolute()),) for split, part in parts.items()}
    remedy = "Splits are subfolders, train and test (or val), with the classes in each."
    return Source(info, read, files, remedy=remedy, place=folder)


def _parts(folder: Path) -> dict[str, Path]:
    """The folder of each split: one with nothing but train, val and test below it has those, any other is one split."""
    found = class_folders(folder)
    if not found or not found.keys() <= set(_SPLITS):
        return {"train": folder}
    if "test" not in found and "val" in found:
        found["test"] = found.pop("val")
    return {split: found[split] for split in _SPLITS if split in found}


def common_shape(images: Iterable["Image.Image"]) -> tuple[int, int, int]:
    """The shape to show images at, told by some of them: small ones of one size keep it, grey ones stay grey."""
    found = {header(image) for image in images} or {(USUAL, USUAL, False)}
    heights, widths, grey = (set(column) for column in zip(*found, strict=True))
    height, width = max(heights), max(widths)
    if len(heights) > 1 or len(widths) > 1 or max(height, width) > SMALL:
        height = width = USUAL
    return 1 if all(grey) else 3, height, width


def _examples(files: Sequence[str], labels: np.ndarray) -> Iterator["Image.Image"]:
    """The first image of each class that can be opened; nothing but its header has been read."""
    starts = np.unique(labels, return_index=True)[1]
    for start, end in zip(starts, [*starts[1:], len(files)], strict=True):
        for file in files[start:end]:
            try:
                with open_image(file) as image:
                    yield image
                break
            except DataError:  # loading the set lists it
                continue
