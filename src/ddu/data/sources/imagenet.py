"""ImageNet in torchvision's layout, below `imagenet/`, and ImageNet-O in that of its archive, `imagenet-o/`."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.data.downloads import Download, download, unpack, verify
from ddu.data.preprocessing import IMAGENET_SCALE
from ddu.data.registry import register
from ddu.data.sources.folder import FolderDataset, class_folders, list_images
from ddu.errors import DataError
from ddu.messages import require
from ddu.progress import track

CLASSES = 1000
KEPT = 224 / 256  # of the shorter side: what ImageNet's networks are judged on

_IMAGENET = DataInfo("imagenet", (3, 224, 224), (), **IMAGENET_SCALE, kept=KEPT)
_IMAGENET_O = DataInfo("imagenet_o", (3, 224, 224), (), **IMAGENET_SCALE, kept=KEPT)
_FOLDERS = {"train": "train", "test": "val"}
_REMEDY = (
    "ImageNet is given out at image-net.org to people with an account: put ILSVRC2012_devkit_t12.tar.gz, "
    "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar into the folder imagenet below the root, then run "
    "`ddu data fetch imagenet`, which verifies and unpacks them."
)
_ARCHIVE_O = Download(
    ("https://people.eecs.berkeley.edu/~hendrycks/imagenet-o.tar",), md5="86bd7a50c1c4074fb18fc5f219d6d50b"
)


def _fetch(root: Path) -> None:
    """Unpacks the archives of ImageNet that are there; what is unpacked in part is never called train or val."""
    folder = root / "imagenet"
    torchvision = require("torchvision.datasets.imagenet", extra="data", purpose="Unpacking ImageNet")
    archives = {part: (folder / name, md5) for part, (name, md5) in torchvision.ARCHIVE_META.items()}
    wanted = [part for part in ("train", "val") if archives[part][0].is_file() and not (folder / part).is_dir()]
    if not wanted:
        raise DataError(f"There is no archive of ImageNet to unpack in {folder}. {_REMEDY}")
    for part in wanted:
        verify(*archives[part])
        partial = folder / f".{part}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        unpack(archives[part][0], partial)
        if part == "train":
            _unpack_classes(partial)
        else:
            _sort_into_classes(partial, _validation_wnids(folder))
        partial.rename(folder / part)


def _unpack_classes(folder: Path) -> None:
    """The training archive holds an archive for each class."""
    for archive in track(sorted(folder.glob("*.tar")), "Unpacking classes"):
        unpack(archive, folder / archive.stem)
        archive.unlink()


def _sort_into_classes(folder: Path, wnids: Sequence[str]) -> None:
    """The validation archive holds images alone, in the order of the classes that the devkit lists."""
    images = sorted(folder.iterdir())
    for wnid in set(wnids):
        (folder / wnid).mkdir()
    for wnid, image in zip(wnids, track(images, "Sorting images"), strict=True):
        image.rename(folder / wnid / image.name)


def _validation_wnids(folder: Path) -> Sequence[str]:
    torchvision = require("torchvision.datasets.imagenet", extra="data", purpose="Unpacking ImageNet")
    try:
        torchvision.parse_devkit_archive(folder)
    except RuntimeError as error:
        raise DataError(f"The classes of ImageNet's validation images are unknown: {error}") from error
    return torchvision.load_meta_file(folder)[1]


@register(_IMAGENET, {split: (f"imagenet/{part}",) for split, part in _FOLDERS.items()}, fetch=_fetch, remedy=_REMEDY)
def imagenet(split: str, root: Path) -> ArrayDataset:
    """Photographs of a thousand kinds of things; its validation images are the test split."""
    models = require("torchvision.models", extra="data", purpose="The class names of ImageNet")
    names = models.ResNet18_Weights.DEFAULT.meta["categories"]
    folder = root / "imagenet" / _FOLDERS[split]
    folders = class_folders(folder)
    if len(folders) != CLASSES:
        raise DataError(f"{folder} has {len(folders):,} class folders, and ImageNet has {CLASSES:,}.")
    return FolderDataset(*list_images(folders), replace(_IMAGENET, classes=tuple(names)))


@register(
    _IMAGENET_O,
    {"test": ("imagenet-o",)},
    fetch=lambda root: download("imagenet_o", root, [_ARCHIVE_O]),
)
def imagenet_o(split: str, root: Path) -> ArrayDataset:
    """Photographs of things that are not among ImageNet's, by the class that they are mistaken for."""
    folders = class_folders(root / "imagenet-o")
    return FolderDataset(*list_images(folders), replace(_IMAGENET_O, classes=tuple(folders)))
