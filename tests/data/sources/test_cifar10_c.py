import json

import numpy as np
import pytest
import torch

from ddu.data import info, list_splits, load
from ddu.errors import DataError, InputError

from ..conftest import noise


@pytest.fixture
def root(tmp_path):
    """Four images at five severities, the red of each as large as its severity."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    images = noise(20, 32, 32, 3)
    images[..., 0] = np.repeat([1, 2, 3, 4, 5], 4)[:, None, None]
    np.save(folder / "fog.npy", images)
    np.save(folder / "labels.npy", np.tile(np.arange(4, dtype=np.uint8), 5))
    return tmp_path


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_a_severity_is_a_fifth_of_the_file(root, severity):
    dataset = load(f"cifar10_c:fog:{severity}", "test", root=root)
    assert dataset.labels.tolist() == [0, 1, 2, 3]
    assert np.unique(dataset.inputs[..., 0]) == severity
    assert dataset.info.name == f"cifar10_c:fog:{severity}"
    assert dataset.info.classes == info("cifar10").classes


def test_the_file_is_memory_mapped(root):
    assert isinstance(load("cifar10_c:fog:3", "test", root=root).inputs, np.memmap)


def test_inputs_are_normalised_as_those_of_cifar10(root):
    dataset = load("cifar10_c:fog:3", "test", root=root)
    assert torch.equal(dataset[0][0], dataset.like(info("cifar10"))[0][0])


def test_there_are_test_images_only(root):
    assert list_splits("cifar10_c:fog:3", root=root) == ("test",)
    with pytest.raises(InputError) as caught:
        load("cifar10_c:fog:3", root=root)
    assert str(caught.value) == "cifar10_c:fog:3 has no split 'train', only 'test'."


@pytest.mark.parametrize("name", ["cifar10_c:foggy:3", "cifar10_c:fog:6", "cifar10_c:fog", "cifar10_c:"])
def test_a_corruption_or_severity_that_does_not_exist_is_answered_with_those_that_do(root, name):
    with pytest.raises(InputError) as caught:
        load(name, "test", root=root)
    assert str(caught.value) == (
        f"There is no set {name!r}: name a corruption and a severity from 1 to 5, as in 'cifar10_c:fog:3'. The "
        "corruptions are gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur, zoom_blur, "
        "snow, frost, fog, brightness, contrast, elastic_transform, pixelate, jpeg_compression, speckle_noise, "
        "gaussian_blur, spatter, saturate."
    )


def test_the_name_alone_is_not_a_set(root):
    with pytest.raises(InputError, match=r"^There is no set 'cifar10_c': name a corruption and a severity"):
        load("cifar10_c", "test", root=root)


def test_a_missing_corruption_is_named_with_both_ways_to_get_it(root):
    with pytest.raises(DataError) as caught:
        load("cifar10_c:snow:1", "test", root=root)
    assert str(caught.value) == (
        f"cifar10_c:snow:1 is not in {root}: there is no CIFAR-10-C/snow.npy, and no cifar10_c.npz. Get it with `ddu "
        "data fetch cifar10_c`, or make your own with `ddu data make corruptions`. If it is elsewhere, say where with "
        "--data-root or DDU_DATA."
    )


def test_severities_are_those_of_the_manifest_where_there_is_one(root):
    folder = root / "CIFAR-10-C"
    np.save(folder / "fog.npy", np.load(folder / "fog.npy")[8:16])
    np.save(folder / "labels.npy", np.load(folder / "labels.npy")[8:16])
    (folder / "manifest.json").write_text(json.dumps({"severities": [3, 4]}))
    dataset = load("cifar10_c:fog:4", "test", root=root)
    assert len(dataset) == 4
    assert np.unique(dataset.inputs[..., 0]) == 4
    with pytest.raises(DataError) as caught:
        load("cifar10_c:fog:1", "test", root=root)
    assert str(caught.value) == f"{folder / 'fog.npy'} has the severities 3, 4, and no 1."


def test_a_manifest_of_something_else_is_named(root):
    path = root / "CIFAR-10-C" / "manifest.json"
    path.write_text("{}")
    with pytest.raises(DataError) as caught:
        load("cifar10_c:fog:4", "test", root=root)
    assert str(caught.value) == f"{path} is not whole, or does not describe corrupted images: 'severities'."


def test_a_damaged_file_is_named(root):
    path = root / "CIFAR-10-C" / "fog.npy"
    whole = path.read_bytes()
    for content in (whole[:-100], b"", b"\x93NUMPY", bytes(200)):
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            load("cifar10_c:fog:1", "test", root=root)
        assert str(caught.value).startswith(f"{path} is corrupt or not whole: ")


def test_pickled_objects_are_not_read(root):
    path = root / "CIFAR-10-C" / "fog.npy"
    np.save(path, np.array([object()] * 5))
    with pytest.raises(DataError, match="is corrupt or not whole"):
        load("cifar10_c:fog:1", "test", root=root)


def test_rows_that_are_not_five_times_as_many_are_refused(root):
    path = root / "CIFAR-10-C" / "fog.npy"
    np.save(path, noise(21, 32, 32, 3))
    with pytest.raises(DataError) as caught:
        load("cifar10_c:fog:1", "test", root=root)
    assert str(caught.value) == f"{path} has 21 rows, which are not 5 severities of as many each."
