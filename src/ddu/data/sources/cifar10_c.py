"""CIFAR-10-C: the test images of CIFAR-10, corrupted; `CIFAR-10-C/fog.npy` has severities 1 to 5 one after another."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from ddu.data.corruptions import CORRUPTIONS, SEVERITIES
from ddu.data.dataset import ArrayDataset
from ddu.data.downloads import Download, download
from ddu.data.registry import SOURCES, Source, register, register_prefix
from ddu.data.sources.cifar import CIFAR10
from ddu.errors import DataError, InputError

_FOLDER = "CIFAR-10-C"
_ARCHIVE = Download(
    ("https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",), md5="56bf5dcef84df0e2308c6dcbcbbd8499"
)
_REMEDY = "Get it with `ddu data fetch cifar10_c`, or make your own with `ddu data make corruptions`."


@register(
    replace(CIFAR10, name="cifar10_c"),
    {"test": (f"{_FOLDER}/labels.npy",)},
    fetch=lambda root: download("cifar10_c", root, [_ARCHIVE]),
    remedy=_REMEDY,
)
def cifar10_c(split: str, root: Path) -> ArrayDataset:
    """CIFAR-10 under 19 corruptions of 5 severities, one at a time: cifar10_c:fog:3."""
    raise InputError(_which("cifar10_c"))


@register_prefix("cifar10_c", "CORRUPTION:SEVERITY")
def open_corruption(argument: str) -> Source:
    """One corruption of CIFAR-10-C at one severity, such as cifar10_c:fog:3."""
    corruption, _, level = argument.partition(":")
    if corruption not in CORRUPTIONS or level not in map(str, SEVERITIES):
        raise InputError(_which(f"cifar10_c:{argument}"))
    files = (f"{_FOLDER}/{corruption}.npy", f"{_FOLDER}/labels.npy")
    info = replace(CIFAR10, name=f"cifar10_c:{argument}")

    def read(split: str, root: Path) -> ArrayDataset:
        images, labels = (read_severity(root / file, int(level)) for file in files)
        return ArrayDataset(images, labels.astype(np.int64), info)

    return replace(SOURCES["cifar10_c"], info=info, read=read, files={"test": files})


def read_severity(path: Path, severity: int) -> np.ndarray:
    """The rows of one severity in an array that is memory-mapped."""
    severities = _severities(path.parent)
    if severity not in severities:
        raise DataError(f"{path} has the severities {', '.join(map(str, severities))}, and no {severity}.")
    try:
        array = np.load(path, mmap_mode="c")
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} is corrupt or not whole: {error}.") from error
    samples, rest = divmod(len(array), len(severities))
    if rest:
        raise DataError(f"{path} has {len(array):,} rows, which are not {len(severities)} severities of as many each.")
    start = severities.index(severity) * samples
    return array[start : start + samples]


def _severities(folder: Path) -> list[int]:
    """All five, except where a set of our own has a manifest that says otherwise."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return list(SEVERITIES)
    try:
        return json.loads(manifest.read_text())["severities"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{manifest} is not whole, or does not describe corrupted images: {error}.") from error


def _which(name: str) -> str:
    return (
        f"There is no set {name!r}: name a corruption and a severity from 1 to 5, as in 'cifar10_c:fog:3'. "
        f"The corruptions are {', '.join(CORRUPTIONS)}."
    )
