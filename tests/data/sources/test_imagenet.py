import os
import shutil
import tarfile
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import scipy.io
import torchvision

from ddu.data import fetch, info, load
from ddu.errors import DataError

from ..conftest import md5

WNIDS = [f"n{number:08}" for number in range(1000)]


@pytest.fixture
def thousand(tmp_path, write_images):
    """A thousand class folders that share one image."""
    (image,) = write_images(tmp_path / "one", 1, size=(30, 40), end=".JPEG")
    folder = tmp_path / "imagenet" / "val"
    for wnid in WNIDS:
        (folder / wnid).mkdir(parents=True)
        os.link(image, folder / wnid / "image.JPEG")
    return tmp_path


def test_validation_images_are_the_test_split_with_torchvisions_names(thousand):
    dataset = load("imagenet", "test", root=thousand)
    assert dataset.labels.tolist() == list(range(1000))
    assert dataset.info.classes[:3] == ("tench", "goldfish", "great white shark")
    assert dataset[0][0].shape == (3, 224, 224)
    assert info("imagenet", root=thousand) == dataset.info


def test_another_number_of_classes_is_refused(thousand):
    shutil.rmtree(thousand / "imagenet" / "val" / WNIDS[7])
    with pytest.raises(DataError) as caught:
        load("imagenet", "test", root=thousand)
    assert str(caught.value) == f"{thousand}/imagenet/val has 999 class folders, and ImageNet has 1,000."


def test_what_is_missing_says_where_imagenet_is_given_out(tmp_path):
    with pytest.raises(DataError) as caught:
        load("imagenet", root=tmp_path)
    assert str(caught.value) == (
        f"imagenet is not in {tmp_path}: there is no imagenet/train, and no imagenet.npz. ImageNet is given out at "
        "image-net.org to people with an account: put ILSVRC2012_devkit_t12.tar.gz, ILSVRC2012_img_train.tar and "
        "ILSVRC2012_img_val.tar into the folder imagenet below the root, then run `ddu data fetch imagenet`, which "
        "verifies and unpacks them. If it is elsewhere, say where with --data-root or DDU_DATA."
    )


@pytest.fixture
def archives(tmp_path, write_images, monkeypatch):
    """Two classes with two images each as the three official archives, with checksums of their own."""
    folder = tmp_path / "imagenet"
    train, val, devkit = (tmp_path / "unpacked" / name for name in ("train", "val", "ILSVRC2012_devkit_t12"))
    folder.mkdir()
    for wnid in ("n01", "n02"):
        write_images(train / wnid, 2, end=".JPEG")
        pack(train / f"{wnid}.tar", *sorted((train / wnid).iterdir()))
    pack(folder / "ILSVRC2012_img_train.tar", train / "n01.tar", train / "n02.tar")
    pack(folder / "ILSVRC2012_img_val.tar", *write_images(val, 2, end=".JPEG"))
    (devkit / "data").mkdir(parents=True)
    fields = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children"]
    synsets = np.array(
        [(1, "n01", "tench, Tinca", "", 0), (2, "n02", "goldfish", "", 0)], dtype=[(f, object) for f in fields]
    )
    scipy.io.savemat(devkit / "data" / "meta.mat", {"synsets": synsets})
    (devkit / "data" / "ILSVRC2012_validation_ground_truth.txt").write_text("2\n1\n")
    pack(folder / "ILSVRC2012_devkit_t12.tar.gz", devkit, mode="w:gz")
    published = {
        part: (name, md5(folder / name)) for part, (name, _) in torchvision.datasets.imagenet.ARCHIVE_META.items()
    }
    monkeypatch.setattr(torchvision.datasets.imagenet, "ARCHIVE_META", published)
    return tmp_path


def pack(archive: Path, *members: Path, mode: Literal["w", "w:gz"] = "w") -> None:
    with tarfile.open(archive, mode) as file:
        for member in members:
            file.add(member, member.name)


def test_official_archives_are_unpacked_to_torchvisions_layout(archives):
    assert fetch("imagenet", root=archives)
    found = sorted(str(path.relative_to(archives / "imagenet")) for path in (archives / "imagenet").rglob("*.JPEG"))
    assert found == [
        "train/n01/image_0.JPEG",
        "train/n01/image_1.JPEG",
        "train/n02/image_0.JPEG",
        "train/n02/image_1.JPEG",
        "val/n01/image_1.JPEG",
        "val/n02/image_0.JPEG",
    ]
    assert not fetch("imagenet", root=archives)


def test_a_corrupt_archive_leaves_nothing_that_looks_like_imagenet(archives):
    path = archives / "imagenet" / "ILSVRC2012_img_train.tar"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match=f"^{path} is corrupt or not whole"):
        fetch("imagenet", root=archives)
    assert not (archives / "imagenet" / "train").exists()


def test_validation_images_are_not_sorted_without_the_devkit(archives):
    (archives / "imagenet" / "ILSVRC2012_devkit_t12.tar.gz").unlink()
    with pytest.raises(
        DataError, match=r"^The classes of ImageNet's validation images are unknown: The archive ILSVRC"
    ):
        fetch("imagenet", root=archives)
    assert not (archives / "imagenet" / "val").exists()


def test_without_archives_there_is_nothing_to_unpack(tmp_path):
    with pytest.raises(DataError, match=f"^There is no archive of ImageNet to unpack in {tmp_path}/imagenet. ImageNet"):
        fetch("imagenet", root=tmp_path)


def test_imagenet_o_is_a_folder_of_classes(tmp_path, write_images):
    for wnid in ("n02", "n01"):
        write_images(tmp_path / "imagenet-o" / wnid, 2, size=(300, 400), end=".JPEG")
    (tmp_path / "imagenet-o" / "README.txt").touch()
    dataset = load("imagenet_o", "test", root=tmp_path)
    assert dataset.info.classes == ("n01", "n02")
    assert dataset.labels.tolist() == [0, 0, 1, 1]
    assert dataset[0][0].shape == (3, 224, 224)
