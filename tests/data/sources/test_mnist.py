import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from ddu.data import load
from ddu.data.sources.mnist import read_idx
from ddu.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 28, 28), dtype=np.uint8)
LABELS = np.arange(7, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(root: Path, kind: str = "MNIST", prefix: str = "train") -> Path:
    folder = root / kind / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(IMAGES))
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(LABELS))
    return folder


@pytest.mark.parametrize(
    ("name", "kind"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST"), ("kmnist", "KMNIST")]
)
@pytest.mark.parametrize(("split", "prefix"), [("train", "train"), ("test", "t10k")])
def test_raw_files_are_read_from_where_torchvision_keeps_them(tmp_path, name, kind, split, prefix):
    write(tmp_path, kind, prefix)
    dataset = load(name, split, root=tmp_path)
    np.testing.assert_array_equal(dataset.inputs[..., 0], IMAGES)
    np.testing.assert_array_equal(dataset.labels, LABELS)
    assert dataset.info.name == name


def test_raw_files_are_memory_mapped_and_never_written_to(tmp_path):
    images = read_idx(write(tmp_path) / "train-images-idx3-ubyte")
    assert isinstance(images, np.memmap)
    images[:] = 0
    np.testing.assert_array_equal(read_idx(tmp_path / "MNIST/raw/train-images-idx3-ubyte"), IMAGES)


@pytest.mark.parametrize("array", [IMAGES, LABELS, IMAGES[..., None]])
@pytest.mark.parametrize("compressed", [False, True])
def test_an_idx_file_gives_back_the_array(tmp_path, array, compressed):
    path = tmp_path / ("array.gz" if compressed else "array")
    path.write_bytes(gzip.compress(idx(array)) if compressed else idx(array))
    np.testing.assert_array_equal(read_idx(path), array)


def test_a_truncated_file_is_named_with_both_numbers(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(idx(IMAGES)[:-100])
    with pytest.raises(DataError) as caught:
        read_idx(path)
    assert str(caught.value) == f"{path} is not whole: its header says 5,488 values, and it has 5,388."


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08", idx(IMAGES)[:4], idx(IMAGES)[:10], b"GIF89a" + bytes(50), bytes(50)]
)
def test_what_is_no_idx_file_is_refused(tmp_path, content):
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_idx(path)
    assert str(caught.value) == f"{path} is not an IDX file of bytes."


@pytest.mark.parametrize("damage", [lambda data: data[:-500], lambda data: data[:300] + bytes(100) + data[400:]])
def test_a_damaged_compressed_file_is_named(tmp_path, damage):
    path = tmp_path / "images.gz"
    path.write_bytes(damage(gzip.compress(idx(IMAGES))))
    with pytest.raises(DataError) as caught:
        read_idx(path)
    assert str(caught.value).startswith(f"{path} is corrupt or not whole: ")


def test_a_compressed_file_must_be_the_published_one(tmp_path):
    folder = write(tmp_path)
    (folder / "train-images-idx3-ubyte").unlink()
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(b"something else")
    with pytest.raises(DataError) as caught:
        load("mnist", root=tmp_path)
    assert str(caught.value) == (
        f"{path} is corrupt or not whole: its MD5 checksum is 6c7ba9c5a141421e1c03cb9807c97c74, and "
        "f68b3c2dcbeaaa9fbdd348bbdeb94873 is published. Delete it and fetch it again."
    )


@pytest.mark.parametrize(("name", "kind"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_real_sets_are_what_torchvision_reads(real_data, name, kind, split):
    if not (real_data / kind).is_dir():
        pytest.skip(f"no {kind} in {real_data}")
    ours = load(name, split, root=real_data)
    theirs = getattr(torchvision.datasets, kind)(real_data, train=split == "train")
    assert torch.equal(torch.from_numpy(ours.inputs[..., 0]), theirs.data)
    assert torch.equal(torch.from_numpy(ours.labels), theirs.targets)
    if name == "mnist" and split == "train":
        pixels = ours.__getitems__(range(len(ours)))[0]
        torch.testing.assert_close(pixels.mean(), torch.tensor(0.0), atol=1e-3, rtol=0)
        torch.testing.assert_close(pixels.std(), torch.tensor(1.0), atol=1e-3, rtol=0)
