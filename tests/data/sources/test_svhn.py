import numpy as np
import pytest
import scipy.io
import torchvision

from ddu.data import info, load, load_ood
from ddu.data.sources.svhn import read_mat
from ddu.errors import DataError

from ..conftest import md5, noise

IMAGES = noise(5, 32, 32, 3)
LABELS = np.array([1, 9, 10, 3, 10], dtype=np.uint8)


@pytest.fixture
def mat(tmp_path):
    path = tmp_path / "test_32x32.mat"
    content = {"X": IMAGES.transpose(1, 2, 3, 0), "y": LABELS[:, None]}
    scipy.io.savemat(path, content, do_compression=True)
    return path


def test_images_come_first_and_ten_is_the_digit_zero(mat):
    images, labels = read_mat(mat)
    np.testing.assert_array_equal(images, IMAGES)
    assert images.flags.c_contiguous
    assert labels.tolist() == [1, 9, 0, 3, 0]


def test_a_set_is_read_by_name(mat, monkeypatch):
    published = {"test": [None, mat.name, md5(mat)]}
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", published)
    dataset = load("svhn", "test", root=mat.parent)
    np.testing.assert_array_equal(dataset.inputs, IMAGES)
    assert dataset.info.classes == tuple("0123456789")


def test_a_file_must_be_the_published_one(mat):
    with pytest.raises(DataError) as caught:
        load("svhn", "test", root=mat.parent)
    assert str(caught.value) == (
        f"{mat} is corrupt or not whole: its MD5 checksum is {md5(mat)}, and eb5a983be6a315427106f1b164d9cef3 is "
        "published. Delete it and fetch it again."
    )


@pytest.mark.parametrize("damage", [lambda data: data[:-1000], lambda data: b"", lambda data: bytes(len(data))])
def test_a_damaged_file_is_named(mat, damage):
    mat.write_bytes(damage(mat.read_bytes()))
    with pytest.raises(DataError) as caught:
        read_mat(mat)
    assert str(caught.value).startswith(f"{mat} cannot be read as a file of SVHN: ")


def test_a_file_without_labels_is_refused(tmp_path):
    path = tmp_path / "other.mat"
    scipy.io.savemat(path, {"X": IMAGES})
    with pytest.raises(DataError) as caught:
        read_mat(path)
    assert str(caught.value) == f"{path} cannot be read as a file of SVHN: 'y'."


def test_every_test_image_of_svhn_6k_is_in_one_of_its_splits(tmp_path):
    pixels = np.zeros((6100, 32, 32, 3), np.uint8)
    pixels[:, 0, 0, :2] = np.stack(np.divmod(np.arange(6100), 256), axis=1)
    np.savez(tmp_path / "svhn.npz", x_test=pixels, y_test=np.arange(6100) % 10)
    train, test = (load("svhn_6k", split, root=tmp_path) for split in ("train", "test"))
    assert (len(train), len(test)) == (4500, 1500)
    numbers = [256 * part.inputs[:, 0, 0, 0].astype(int) + part.inputs[:, 0, 0, 1] for part in (train, test)]
    assert sorted(np.concatenate(numbers)) == list(range(6000))
    assert np.array_equal(numbers[0] % 10, train.labels)
    # Degenerate images are made from the test split by the set's own name
    assert len(load_ood("inverted", info("svhn_6k", root=tmp_path), root=tmp_path)) == 500


def test_svhn_6k_without_svhn_says_how_to_get_that(tmp_path):
    with pytest.raises(DataError, match=r"^svhn is not in .*`ddu data fetch svhn`"):
        load("svhn_6k", root=tmp_path)
