import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ddu.data import ArrayDataset, DataInfo, collated, loader
from ddu.errors import InputError

INFO = DataInfo("noise", (3, 8, 8), ("a", "b", "c"), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))


@pytest.fixture
def dataset() -> ArrayDataset:
    random = np.random.default_rng(0)
    return ArrayDataset(random.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8), random.integers(0, 3, 20), INFO)


def as_memmap(dataset: ArrayDataset, tmp_path) -> ArrayDataset:
    np.save(tmp_path / "inputs.npy", dataset.inputs)
    return ArrayDataset(np.load(tmp_path / "inputs.npy", mmap_mode="c"), dataset.labels, dataset.info)


def test_a_sample_is_a_row_of_the_batch(dataset):
    x, y = dataset.__getitems__([3, 17, 3])
    assert x.shape == (3, 3, 8, 8)
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    for row, index in enumerate((3, 17, 3)):
        image, label = dataset[index]
        assert torch.equal(image, x[row])
        assert label == y[row] == dataset.labels[index]


def test_a_loader_gives_every_sample_once(dataset):
    batches = list(loader(dataset, 7))
    assert [len(y) for _, y in batches] == [7, 7, 6]
    assert torch.equal(torch.cat([x for x, _ in batches]), dataset.__getitems__(range(20))[0])
    shuffled = torch.cat([y for _, y in loader(dataset, 7, shuffle=True)])
    assert sorted(shuffled.tolist()) == sorted(dataset.labels.tolist())


def test_worker_processes_give_the_same_batches(dataset):
    alone, helped = (list(loader(dataset, 7, workers=workers)) for workers in (0, 1))
    for (x, y), (x_helped, y_helped) in zip(alone, helped, strict=True):
        assert torch.equal(x, x_helped)
        assert torch.equal(y, y_helped)


def test_samples_of_other_sets_are_stacked():
    batches = DataLoader([(torch.zeros(2), 0), (torch.ones(2), 1)], 2, collate_fn=collated)
    ((x, y),) = list(batches)
    assert x.tolist() == [[0, 0], [1, 1]]
    assert y.tolist() == [0, 1]


def test_reading_twice_gives_the_same(dataset):
    assert torch.equal(dataset[5][0], dataset[5][0])


@pytest.mark.parametrize("mapped", [False, True])
def test_a_subset_of_a_subset_picks_rows_of_the_first(dataset, tmp_path, mapped):
    source = as_memmap(dataset, tmp_path) if mapped else dataset
    rows = np.array([15, 2, 7, 4])
    part = source.subset(rows).subset([3, 0])
    assert len(part) == 2
    assert torch.equal(part.__getitems__([0, 1])[0], dataset.__getitems__([4, 15])[0])
    assert part.labels.tolist() == dataset.labels[[4, 15]].tolist()


def test_a_subset_takes_masks_tensors_and_negative_indices(dataset):
    expected = dataset.__getitems__([0, 19])[0]
    mask = np.zeros(20, dtype=bool)
    mask[[0, 19]] = True
    for indices in (mask, torch.tensor([0, 19]), [0, -1]):
        assert torch.equal(dataset.subset(indices).__getitems__([0, 1])[0], expected)


def test_a_subset_of_a_memory_mapped_set_reads_nothing(dataset, tmp_path):
    part = as_memmap(dataset, tmp_path).subset(np.arange(10))
    assert isinstance(part.inputs.source, np.memmap)


def test_a_set_like_another_has_its_size_channels_and_normalisation(dataset):
    grey = DataInfo("grey", (1, 4, 4), ("x", "y"), mean=(0.5,), std=(0.25,))
    shown = dataset.like(grey)
    assert shown.info == DataInfo("noise", (1, 4, 4), ("a", "b", "c"), mean=(0.5,), std=(0.25,))
    x, y = shown.__getitems__(range(20))
    assert x.shape == (20, 1, 4, 4)
    assert y.tolist() == dataset.labels.tolist()
    # Halving with antialiasing keeps the mean brightness to within what the borders make of it
    luma = dataset.inputs @ np.array([0.299, 0.587, 0.114]) / 255
    np.testing.assert_allclose((0.5 + 0.25 * x).mean(), luma.mean(), atol=0.01)


def test_a_set_like_itself_is_itself(dataset):
    assert torch.equal(dataset.like(INFO).__getitems__(range(20))[0], dataset.__getitems__(range(20))[0])


def test_a_set_like_another_copies_no_pixels(dataset):
    assert dataset.like(DataInfo("large", (3, 500, 500), (), mean=INFO.mean, std=INFO.std)).inputs is dataset.inputs


def test_vectors_are_taken_as_they_are():
    points = np.random.default_rng(0).standard_normal((5, 2))
    x, y = ArrayDataset(points, np.arange(5), DataInfo("points", (2,), tuple("abcde"))).__getitems__([1, 4])
    np.testing.assert_array_equal(x.numpy(), points[[1, 4]].astype(np.float32))
    assert y.tolist() == [1, 4]


def test_vectors_are_not_shown_as_images():
    points = ArrayDataset(np.zeros((5, 2)), np.arange(5), DataInfo("points", (2,), tuple("abcde")))
    with pytest.raises(InputError) as caught:
        points.like(INFO)
    assert str(caught.value) == "Inputs of points, (2,), cannot be shown as noise, (3, 8, 8)."


def test_inputs_and_labels_of_different_number_are_refused():
    with pytest.raises(InputError) as caught:
        ArrayDataset(np.zeros((3, 8, 8, 3)), np.zeros(2), INFO)
    assert str(caught.value) == "The set noise has 3 inputs and 2 labels."


def test_a_set_says_what_it_is(dataset):
    assert repr(dataset) == "ArrayDataset(noise, 20 of (3, 8, 8))"


@pytest.mark.parametrize("mapped", [False, True])
def test_groups_go_with_their_samples(dataset, tmp_path, mapped):
    dataset = as_memmap(dataset, tmp_path) if mapped else dataset
    assert dataset.subset([3, 1]).groups is None
    dataset.groups = np.arange(20) // 2
    some = dataset.subset([7, 2, 6]).like(DataInfo("grey", (1, 4, 4), ("a", "b", "c"), mean=(0.5,), std=(0.5,)))
    np.testing.assert_array_equal(some.groups, [3, 1, 3])
    np.testing.assert_array_equal(some.subset([1, 0]).groups, [1, 3])


# Digests


def test_the_digest_changes_with_a_pixel_a_label_a_group_the_order_and_the_dtype(dataset):
    digest = dataset.digest()
    assert len(digest) == 64
    images, labels = dataset.inputs, dataset.labels
    pixel, label = images.copy(), labels.copy()
    pixel[13, 2, 1, 0] ^= 1
    label[7] = (label[7] + 1) % 3
    changed = [
        ArrayDataset(pixel, labels, INFO),
        ArrayDataset(images, label, INFO),
        ArrayDataset(images, labels, INFO, np.arange(20)),
        ArrayDataset(images, labels, INFO, np.arange(20) // 2),
        dataset.subset(np.arange(20)[::-1]),
        dataset.subset(np.arange(19)),
        ArrayDataset(images.astype(np.float32), labels, INFO),
        ArrayDataset(images, labels.astype(np.int32), INFO),
        ArrayDataset(images.reshape(20, 4, 16, 3), labels, INFO),
    ]
    assert len({digest, *(other.digest() for other in changed)}) == 1 + len(changed)


def test_the_digest_is_that_of_the_content_wherever_it_lies(dataset, tmp_path, monkeypatch):
    mapped, rows = as_memmap(dataset, tmp_path), np.array([15, 2, 7, 4])
    assert mapped.digest() == dataset.digest()
    assert dataset.subset(np.arange(20)).digest() == dataset.digest()
    assert dataset.like(DataInfo("grey", (1, 4, 4), (), (0.5,), (0.5,))).digest() == dataset.digest()
    assert mapped.subset(rows).digest() == dataset.subset(rows).digest() != dataset.digest()
    whole = dataset.digest()
    monkeypatch.setattr("ddu.data.dataset._CHUNK", 1000)  # five samples at a time
    assert mapped.digest() == dataset.digest() == whole


def test_an_empty_set_has_a_digest(dataset):
    assert dataset.subset(np.arange(0)).digest() != dataset.digest()
