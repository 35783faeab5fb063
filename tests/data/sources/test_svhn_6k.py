"""SVHN's test images, split anew."""

import numpy as np
import pytest

from ddu.data import info, load, load_ood
from ddu.errors import DataError


def test_every_test_image_is_in_one_of_the_splits(tmp_path):
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


def test_without_svhn_it_says_how_to_get_that(tmp_path):
    with pytest.raises(DataError, match=r"^svhn is not in .*`ddu data fetch svhn`"):
        load("svhn_6k", root=tmp_path)
