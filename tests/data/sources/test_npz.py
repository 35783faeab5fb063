import zipfile
from pathlib import Path

import numpy as np
import pytest

from ddu.data import info, list_data, list_splits, load
from ddu.data.sources import npz
from ddu.errors import DataError, InputError, LabelError

from ..conftest import noise

IMAGES = noise(12, 5, 6, 3)
LABELS = np.arange(12) % 3


def write(path: Path, *, compressed: bool = True, **arrays) -> Path:
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_are_read_by_split(tmp_path, compressed):
    path = write(
        tmp_path / "own.npz",
        compressed=compressed,
        x_train=IMAGES,
        y_train=LABELS,
        x_test=IMAGES[:4],
        y_test=LABELS[:4].astype(np.uint8),
        classes=np.array(["ant", "bee", "cat"]),
    )
    assert list_splits(f"npz:{path}") == ("train", "test")
    train, test = (load(f"npz:{path}", split) for split in ("train", "test"))
    np.testing.assert_array_equal(train.inputs, IMAGES)
    np.testing.assert_array_equal(test.inputs, IMAGES[:4])
    assert test.labels.tolist() == [0, 1, 2, 0]
    assert test.labels.dtype == np.int64
    assert train.info == test.info == info(f"npz:{path}")
    assert train.info.name == f"npz:{path}"
    assert train.info.classes == ("ant", "bee", "cat")
    assert train[0][0].shape == train.info.shape == (3, 5, 6)


def test_arrays_without_splits_are_the_training_split(tmp_path):
    path = write(tmp_path / "own.npz", x=IMAGES, y=LABELS)
    assert list_splits(f"npz:{path}") == ("train",)
    assert len(load(f"npz:{path}")) == 12
    with pytest.raises(InputError) as caught:
        load(f"npz:{path}", "test")
    assert str(caught.value) == (
        f"npz:{path} ({path}) has no split 'test', only 'train'. The test split is x_test and y_test, the training "
        "split x_train and y_train, or x and y."
    )


def test_classes_without_names_are_numbered_over_all_splits(tmp_path):
    path = write(tmp_path / "own.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:1], y_test=np.array([4]))
    assert load(f"npz:{path}").info.classes == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize(
    ("inputs", "shape"), [(IMAGES[..., 0], (1, 5, 6)), (IMAGES[..., :1], (1, 5, 6)), (IMAGES[:, 0, :, 0] / 1.0, (6,))]
)
def test_grey_images_and_vectors_are_read_as_such(tmp_path, inputs, shape):
    dataset = load(f"npz:{write(tmp_path / 'own.npz', x=inputs, y=LABELS)}")
    assert dataset[0][0].shape == dataset.info.shape == shape
    assert len(dataset.info.mean) == (len(shape) == 3)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_array_that_is_not_compressed_is_memory_mapped(tmp_path, monkeypatch, order):
    monkeypatch.setattr(npz, "LARGE", IMAGES.nbytes)
    path = tmp_path / "own.npz"
    write(path, compressed=False, y=LABELS, x=np.asarray(IMAGES, order=order), classes=np.array(["a", "b", "c"]))
    dataset = load(f"npz:{path}")
    assert isinstance(dataset.inputs, np.memmap)
    assert not isinstance(dataset.labels, np.memmap)
    np.testing.assert_array_equal(dataset.inputs, IMAGES)
    assert not isinstance(load(f"npz:{write(path, x=IMAGES, y=LABELS)}").inputs, np.memmap)


def test_members_are_described_without_being_read(tmp_path):
    path = write(tmp_path / "own.npz", x=IMAGES, y=LABELS)
    members = npz.read_members(path)
    assert {name: (member.shape, member.dtype) for name, member in members.items()} == {
        "x": ((12, 5, 6, 3), np.dtype(np.uint8)),
        "y": ((12,), np.dtype(np.int64)),
    }


def test_a_set_with_a_name_of_its_own_keeps_its_normalisation(tmp_path):
    write(tmp_path / "mnist.npz", x_test=noise(4, 28, 28), y_test=np.arange(4))
    dataset = load("mnist", "test", root=tmp_path)
    assert dataset.info == info("mnist", root=tmp_path) == info("mnist", root="nowhere")
    assert dataset.inputs.shape == (4, 28, 28, 1)


def test_a_set_in_other_channels_than_its_own_gets_the_usual_normalisation(tmp_path):
    write(tmp_path / "mnist.npz", x_test=noise(4, 28, 28, 3), y_test=np.arange(4))
    dataset = load("mnist", "test", root=tmp_path)
    assert dataset.info.mean == (0.485, 0.456, 0.406)
    assert dataset[0][0].shape == (3, 28, 28)


def test_a_set_of_another_name_is_found_under_the_root(tmp_path):
    write(tmp_path / "letters.npz", x_test=IMAGES, y_test=LABELS)
    write(tmp_path / "features.npz", z=np.zeros((4, 2)))
    assert len(load("letters", "test", root=tmp_path)) == 12
    assert "letters" in list_data(root=tmp_path)
    assert "features" not in list_data(root=tmp_path)


def test_a_split_that_is_not_in_the_file_is_missed_in_words(tmp_path):
    path = write(tmp_path / "cifar100.npz", x_test=noise(2, 32, 32, 3), y_test=np.arange(2))
    with pytest.raises(InputError) as caught:
        load("cifar100", root=tmp_path)
    assert str(caught.value) == (
        f"cifar100 ({path}) has no split 'train', only 'test'. The test split is x_test and y_test, the training split "
        "x_train and y_train, or x and y."
    )


def test_a_file_without_a_set_in_it_says_what_it_has(tmp_path):
    path = write(tmp_path / "own.npz", x_train=IMAGES, z=LABELS)
    with pytest.raises(DataError) as caught:
        load(f"npz:{path}")
    assert str(caught.value) == (
        f"{path} has the arrays x_train, z. A set needs x_train and y_train, x_test and y_test, or x and y."
    )


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError) as caught:
        load(f"npz:{tmp_path}/none.npz")
    assert str(caught.value) == f"There is no file {tmp_path}/none.npz."


@pytest.mark.parametrize("compressed", [False, True])
def test_a_truncated_file_is_named(tmp_path, compressed):
    path = write(tmp_path / "own.npz", compressed=compressed, x=IMAGES, y=LABELS)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError) as caught:
        load(f"npz:{path}")
    assert str(caught.value) == f"{path} is corrupt, not whole, or no .npz file: File is not a zip file."


@pytest.mark.parametrize("compressed", [False, True])
def test_a_corrupt_array_is_named(tmp_path, compressed):
    path = write(tmp_path / "own.npz", compressed=compressed, x=IMAGES, y=LABELS)
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("x.npy").header_offset
    content = bytearray(path.read_bytes())
    content[start + 250 : start + 500] = bytes(250)
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load(f"npz:{path}")
    assert str(caught.value).startswith(f"{path} is corrupt, not whole, or no .npz file: ")


def test_pickled_objects_are_not_read(tmp_path):
    path = write(tmp_path / "own.npz", x=IMAGES, y=LABELS, classes=np.array([object()]))
    with pytest.raises(DataError) as caught:
        load(f"npz:{path}")
    assert str(caught.value) == f"classes of {path} holds Python objects, and only numbers and strings are read."


@pytest.mark.parametrize("shape", [(12,), (12, 3, 5, 6), (12, 5, 6, 4), (12, 2, 2, 2, 3)])
def test_inputs_of_another_shape_are_refused(tmp_path, shape):
    path = write(tmp_path / "own.npz", x=np.zeros(shape, dtype=np.uint8), y=LABELS)
    with pytest.raises(InputError) as caught:
        load(f"npz:{path}")
    assert str(caught.value) == (
        f"The inputs in {path} have the shape {shape}. They must be images (sample, height, width) or (sample, height, "
        "width, channel) with 1 or 3 channels, or vectors (sample, feature)."
    )


def test_images_that_are_neither_bytes_nor_in_zero_to_one_are_refused(tmp_path):
    path = write(tmp_path / "own.npz", x=np.linspace(0, 255, 12 * 30).reshape(12, 5, 6), y=LABELS)
    with pytest.raises(InputError) as caught:
        load(f"npz:{path}")
    assert str(caught.value) == (
        f"The images in {path} must be bytes, or floats in [0, 1]. Got float64 from 0 to 255 instead."
    )


def test_labels_that_are_no_classes_are_refused(tmp_path):
    path = write(tmp_path / "own.npz", x=IMAGES, y=LABELS, classes=np.array(["a", "b"]))
    with pytest.raises(LabelError) as caught:
        load(f"npz:{path}")
    assert str(caught.value) == f"The labels in {path} go from 0 to 2, and there are 2 classes."
    write(path, x=IMAGES, y=LABELS / 2, classes=np.array(["a", "b"]))
    with pytest.raises(LabelError) as caught:
        load(f"npz:{path}")
    assert str(caught.value) == f"The labels in {path} must be integers, (sample,). Got float64, (12,), instead."


@pytest.mark.parametrize(
    ("name", "split", "samples"),
    [
        ("cifar10", "train", 20_000),
        ("cifar10", "test", 10_000),
        ("cifar100", "test", 5_000),
        ("svhn", "test", 6_000),
        ("tiny_imagenet", "test", 2_000),
    ],
)
def test_the_real_sets_are_read(real_data, name, split, samples):
    if not (real_data / f"{name}.npz").is_file():
        pytest.skip(f"no {name}.npz in {real_data}")
    dataset = load(name, split, root=real_data)
    assert len(dataset) == samples
    assert dataset[0][0].shape == dataset.info.shape == info(name, root=real_data).shape
    assert set(dataset.labels) == set(range(dataset.info.num_classes))
    pixels, _ = dataset.__getitems__(range(1000))
    # The constants that everybody uses are another set's for some, and CIFAR's deviations a mean over single images
    assert pixels.mean(dim=(0, 2, 3)).abs().max() < 0.3
    assert (pixels.std(dim=(0, 2, 3)) - 1).abs().max() < 0.4


def test_paths_may_be_relative(tmp_path, monkeypatch):
    write(tmp_path / "digits.npz", x=IMAGES, y=LABELS)
    monkeypatch.chdir(tmp_path.parent)
    assert len(load(f"npz:{tmp_path.name}/digits.npz")) == 12
    assert len(load("digits", root=tmp_path.name)) == 12


def test_groups_are_read_with_their_split(tmp_path):
    groups = np.arange(12) // 4
    path = write(
        tmp_path / "own.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS, groups_train=groups
    )
    np.testing.assert_array_equal(load(f"npz:{path}").groups, groups)
    assert load(f"npz:{path}", "test").groups is None
    path = write(tmp_path / "short.npz", x=IMAGES, y=LABELS, groups=groups[:5])
    with pytest.raises(InputError) as caught:
        load(f"npz:{path}")
    assert str(caught.value) == (
        f"The groups of npz:{path} must be integers, one for each of its 12 samples. Got int64, (5,), instead."
    )
