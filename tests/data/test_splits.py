import numpy as np
import pytest

from ddu.data import ArrayDataset, DataInfo, load_splits, save_splits, split
from ddu.errors import DataError, InputError


def labelled(samples: int) -> ArrayDataset:
    labels = np.random.default_rng(0).choice(3, samples, p=[0.7, 0.2, 0.1])
    return ArrayDataset(np.zeros((samples, 2)), labels, DataInfo("points", (2,), ("a", "b", "c")))


@pytest.mark.parametrize("stratified", [False, True])
def test_a_split_is_a_seeded_partition(stratified):
    dataset = labelled(1000)
    large, small = split(dataset, 0.1, seed=3, stratified=stratified)
    assert sorted([*large, *small]) == list(range(1000))
    assert abs(len(small) - 100) <= 2
    again, other = (split(dataset, 0.1, seed=seed, stratified=stratified)[1] for seed in (3, 4))
    np.testing.assert_array_equal(small, again)
    assert not np.array_equal(small, other)


def test_a_stratified_split_keeps_the_shares_of_the_classes():
    dataset = labelled(1000)
    _, small = split(dataset, 0.1, seed=0, stratified=True)
    difference = np.bincount(dataset.labels[small]) - 0.1 * np.bincount(dataset.labels)
    assert np.abs(difference).max() <= 1


@pytest.mark.parametrize("share", [0, 1, -0.1, 5])
def test_a_share_outside_zero_and_one_is_refused(share):
    with pytest.raises(InputError) as caught:
        split(labelled(10), share, seed=0)
    assert str(caught.value) == f"The share of a split must lie between 0 and 1. Got {share} instead."


def test_saved_splits_come_back(tmp_path):
    dataset = labelled(100)
    train, validation = split(dataset, 0.2, seed=0)
    save_splits(tmp_path / "splits.npz", dataset, train=train, validation=validation)
    found = load_splits(tmp_path / "splits.npz", dataset)
    assert found.keys() == {"train", "validation"}
    np.testing.assert_array_equal(found["train"], train)
    np.testing.assert_array_equal(found["validation"], validation)
    assert [path.name for path in tmp_path.iterdir()] == ["splits.npz"]


def test_splits_of_a_set_of_another_size_are_refused(tmp_path):
    path = tmp_path / "splits.npz"
    save_splits(path, labelled(1000), train=np.arange(1000))
    with pytest.raises(DataError) as caught:
        load_splits(path, labelled(900))
    assert str(caught.value) == f"{path} splits 1,000 samples, and points has 900."


def test_a_damaged_file_of_splits_is_named(tmp_path):
    path = tmp_path / "splits.npz"
    with pytest.raises(DataError) as caught:
        load_splits(path, labelled(10))
    assert str(caught.value) == f"There are no splits at {path}: save_splits writes them."
    save_splits(path, labelled(1000), train=np.arange(1000))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError) as caught:
        load_splits(path, labelled(1000))
    assert str(caught.value).startswith(f"{path} is truncated, or was not written by save_splits: ")


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path, dataset = tmp_path / "splits.npz", labelled(10)
    save_splits(path, dataset, train=np.arange(10))
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        save_splits(path, dataset, train=np.array([object()]))
    assert load_splits(path, dataset)["train"].tolist() == list(range(10))
    assert [path.name for path in tmp_path.iterdir()] == ["splits.npz"]


def test_a_part_cannot_take_the_name_of_the_size(tmp_path):
    with pytest.raises(InputError) as caught:
        save_splits(tmp_path / "splits.npz", labelled(10), samples=np.arange(10))
    assert str(caught.value) == "A part of a split cannot be called 'samples'."
