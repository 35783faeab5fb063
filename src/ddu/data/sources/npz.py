"""Arrays in one file: `x_train`, `y_train`, `x_test`, `y_test`, or `x` and `y`; `groups_train` ...; and `classes`."""

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.data.preprocessing import Scale, default_scale
from ddu.data.registry import Source, register_prefix
from ddu.errors import DataError, InputError, LabelError

LARGE = 2**24  # bytes from which an array that is stored uncompressed is memory-mapped

# Bytes in front of the name of a zip's member. The last four are the lengths of the name and of what comes after it
_LOCAL_HEADER = 30


@dataclass(frozen=True)
class Member:
    """An array in an `.npz` file, not read yet.

    Attributes:
        shape: Of the array.
        dtype: Of the array.
        order: "C" or "F".
        start: The byte of the file where its values begin; None if they are compressed.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    order: Literal["C", "F"]
    start: int | None


def read_members(path: Path) -> dict[str, Member]:
    """What is in an `.npz` file, by the headers of its arrays alone."""
    with _named(path), zipfile.ZipFile(path) as archive, path.open("rb") as file:
        return {
            info.filename.removesuffix(".npy"): _read_member(archive, info, file)
            for info in archive.infolist()
            if info.filename.endswith(".npy")
        }


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: BinaryIO) -> Member:
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
        header = stream.tell()
    file.seek(info.header_offset + _LOCAL_HEADER - 4)
    name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    start = info.header_offset + _LOCAL_HEADER + name + extra + header
    return Member(shape, dtype, "F" if fortran else "C", start if info.compress_type == zipfile.ZIP_STORED else None)


def read_array(path: Path, name: str, member: Member) -> np.ndarray:
    """One array of an `.npz` file: memory-mapped if it is large and not compressed."""
    if member.dtype.hasobject:
        raise DataError(f"{name} of {path} holds Python objects, and only numbers and strings are read.")
    with _named(path):
        if member.start is not None and member.dtype.itemsize * math.prod(member.shape) >= LARGE:
            return np.memmap(path, member.dtype, "c", member.start, member.shape, order=member.order)
        with path.open("rb") as file, np.load(file) as arrays:
            return arrays[name]


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of a damaged file that say which file it is."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"There is no file {path}.") from error
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is corrupt, not whole, or no .npz file: {error}.") from error


@register_prefix("npz", "PATH")
def open_npz(path: str) -> Source:
    """Arrays of your own: x_train, y_train, x_test, y_test, or x and y."""
    return npz_source(Path(path).expanduser(), DataInfo(f"npz:{path}", (), ()))


def npz_source(path: Path, known: DataInfo, summary: str = "") -> Source:
    """The source of an `.npz` file.

    Args:
        path: The file.
        known: What is known of the set: its name, and, if it is a known one, its classes and normalisation.
        summary: What it is, in a line.
    """
    members = read_members(path)
    suffixes = {"train": "_train", "test": "_test"} if "x" not in members else {"train": ""}
    suffixes = {split: end for split, end in suffixes.items() if {f"x{end}", f"y{end}"} <= members.keys()}
    if not suffixes:
        raise DataError(
            f"{path} has the arrays {', '.join(members) or '(none)'}. A set needs x_train and y_train, x_test and "
            "y_test, or x and y."
        )

    def array(key: str) -> np.ndarray:
        return read_array(path, key, members[key])

    def read(split: str, root: Path) -> ArrayDataset:
        inputs, labels = (array(f"{letter}{suffixes[split]}") for letter in "xy")
        _check(inputs, labels, info, path)
        images = inputs[..., None] if inputs.ndim == 3 else inputs
        copies = f"groups{suffixes[split]}"
        return ArrayDataset(images, labels.astype(np.int64), info, array(copies) if copies in members else None)

    shape = _input_shape(members[f"x{next(iter(suffixes.values()))}"].shape, path)
    if known.classes:
        classes = known.classes
    elif "classes" in members:
        classes = tuple(map(str, array("classes")))
    else:
        highest = max(int(array(f"y{end}").max(initial=0)) for end in suffixes.values())
        classes = tuple(map(str, range(highest + 1)))
    fits = len(shape) == 3 and len(known.mean) == shape[0]
    scale = Scale(mean=known.mean, std=known.std) if fits else default_scale(shape)
    info = DataInfo(known.name, shape, classes, **scale)
    files = dict.fromkeys(suffixes, (str(path.absolute()),))
    remedy = "The test split is x_test and y_test, the training split x_train and y_train, or x and y."
    return Source(info, read, files, remedy=remedy, summary=summary, place=path)


def _input_shape(shape: tuple[int, ...], path: Path) -> tuple[int, ...]:
    """(channel, height, width), or (feature,), of an array of inputs."""
    match shape:
        case (_, features):
            return (features,)
        case (_, height, width):
            return 1, height, width
        case (_, height, width, (1 | 3) as channels):
            return channels, height, width
    raise InputError(
        f"The inputs in {path} have the shape {shape}. They must be images (sample, height, width) or (sample, height, "
        "width, channel) with 1 or 3 channels, or vectors (sample, feature)."
    )


def _check(inputs: np.ndarray, labels: np.ndarray, info: DataInfo, path: Path) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise LabelError(
            f"The labels in {path} must be integers, (sample,). Got {labels.dtype}, {labels.shape}, instead."
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < info.num_classes:
        raise LabelError(
            f"The labels in {path} go from {labels.min()} to {labels.max()}, and there are {info.num_classes} classes."
        )
    shape = _input_shape(inputs.shape, path)
    if shape != info.shape and not (len(shape) == 3 and info.is_image):
        raise InputError(
            f"The inputs in {path} have the shape {shape} in one split and {info.shape} in the other: make them alike."
        )
    first = inputs[:100]
    if info.is_image and inputs.dtype != np.uint8 and not (first.min() >= 0 and first.max() <= 1):
        raise InputError(
            f"The images in {path} must be bytes, or floats in [0, 1]. Got {inputs.dtype} from {first.min():g} to "
            f"{first.max():g} instead."
        )
