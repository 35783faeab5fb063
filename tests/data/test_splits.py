import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, nn

from ddu import DDU
from ddu.data import ArrayDataset, DataInfo, draw, load_splits, loader, save_splits, split, stratified_split
from ddu.errors import DataError, InputError

INFO = DataInfo("points", (2,), ("a", "b", "c"))


def labelled(samples: int) -> ArrayDataset:
    labels = np.random.default_rng(0).choice(3, samples, p=[0.7, 0.2, 0.1])
    return ArrayDataset(np.zeros((samples, 2)), labels, INFO)


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


# Groups


def copies(sizes: list[int], labels: list[int], seed: int) -> ArrayDataset:
    """Groups of some sizes with one label each, in any order, under names that are not in order either."""
    random = np.random.default_rng(seed)
    groups = np.repeat(random.permutation(len(sizes)) * 3 - 5, sizes)
    order = random.permutation(len(groups))
    return ArrayDataset(np.zeros((len(groups), 2)), np.repeat(labels, sizes)[order], INFO, groups[order])


sets_with_groups = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), min_size=1, max_size=40).flatmap(
    lambda groups: st.builds(
        copies, *(st.just(list(column)) for column in zip(*groups, strict=True)), st.integers(0, 9)
    )
)
shares = st.floats(0.05, 0.95)
quickly = settings(derandomize=True, max_examples=100, deadline=None)


@quickly
@given(dataset=sets_with_groups, share=shares, seed=st.integers(0, 99), stratified=st.booleans())
def test_no_group_is_on_both_sides_and_the_same_seed_splits_alike(dataset, share, seed, stratified):
    large, small = split(dataset, share, seed=seed, stratified=stratified)
    assert sorted([*large, *small]) == list(range(len(dataset)))
    assert not set(dataset.groups[large]) & set(dataset.groups[small])
    again = split(dataset, share, seed=seed, stratified=stratified)
    assert all(map(np.array_equal, again, (large, small)))


@quickly
@given(dataset=sets_with_groups, share=shares, seed=st.integers(0, 99))
def test_shares_are_right_to_within_one_group(dataset, share, seed):
    largest = np.unique(dataset.groups, return_counts=True)[1].max()
    _, small = split(dataset, share, seed=seed)
    assert abs(len(small) - share * len(dataset)) <= largest
    _, small = split(dataset, share, seed=seed, stratified=True)
    difference = np.bincount(dataset.labels[small], minlength=3) - share * np.bincount(dataset.labels, minlength=3)
    assert np.abs(difference).max() <= largest


@quickly
@given(dataset=sets_with_groups, count=st.integers(1, 400), seed=st.integers(0, 99))
def test_a_draw_takes_whole_groups_and_not_more_than_asked_for(dataset, count, seed):
    rows = draw(dataset, count, seed=seed)
    left = np.setdiff1d(np.arange(len(dataset)), rows)
    sizes = np.unique(dataset.groups, return_counts=True)[1]
    assert not set(dataset.groups[rows]) & set(dataset.groups[left])
    assert min(count, len(dataset)) - sizes.max() < len(rows) <= count


def reference_split(labels: np.ndarray, share: float, seed: int, stratified: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Row by row: results that are published depend on it."""
    generator = torch.Generator().manual_seed(seed)
    if not stratified:
        order = torch.randperm(len(labels), generator=generator)
        cut = round(share * len(labels))
        return order[cut:].sort().values, order[:cut].sort().values
    parts = []
    for label in np.unique(labels):
        members = torch.from_numpy(np.flatnonzero(labels == label))
        members = members[torch.randperm(len(members), generator=generator)]
        parts.append(members.tensor_split([round((1 - share) * len(members))]))
    large, small = (torch.cat(part).sort().values for part in zip(*parts, strict=True))
    return large, small


@quickly
@given(
    labels=st.lists(st.integers(0, 2), min_size=1, max_size=120),
    share=shares | st.sampled_from([0.1, 0.5, 0.25]),
    seed=st.integers(0, 99),
    stratified=st.booleans(),
    own=st.sampled_from([None, 1, -3]),
)
def test_without_copies_a_set_is_split_row_by_row(labels, share, seed, stratified, own):
    dataset = ArrayDataset(np.zeros((len(labels), 2)), np.array(labels), INFO)
    if own is not None:
        dataset.groups = own * np.arange(len(labels))
    found, expected = split(dataset, share, seed=seed, stratified=stratified), reference_split
    for ours, theirs in zip(found, expected(dataset.labels, share, seed, stratified), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    count = (len(labels) + 1) // 2
    drawn = np.random.default_rng(seed).permutation(len(labels))[:count]
    np.testing.assert_array_equal(draw(dataset, count, seed=seed), np.sort(drawn))


def test_a_group_with_several_labels_counts_as_the_most_frequent():
    # 20 images that are mostly 0 and 20 that are mostly 2, with one label that disagrees each
    labels = np.tile([[0, 1, 0], [1, 2, 2]], (20, 1)).ravel()
    dataset = ArrayDataset(np.zeros((120, 2)), labels, INFO, np.repeat(np.arange(40), 3))
    _, small = split(dataset, 0.25, seed=0, stratified=True)
    assert np.bincount(labels[small]).tolist() == [10, 10, 10]


IMAGES, COPIES, SIZE, RATE = 400, 5, 120, 0.1


@pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")  # noise has no classes
def test_what_is_held_out_with_its_copies_keeps_the_false_alarm_rate():
    """A density knows the images that it was fitted to, and their copies: they say nothing of new ones."""
    random = np.random.default_rng(0)
    images = random.normal(size=(IMAGES, SIZE)).astype(np.float32)
    noisy = images.repeat(COPIES, axis=0) + 0.05 * random.normal(size=(IMAGES * COPIES, SIZE)).astype(np.float32)
    labels, groups = random.integers(0, 2, len(noisy)), np.arange(IMAGES).repeat(COPIES)
    dataset = ArrayDataset(noisy, labels, DataInfo("copies", (SIZE,), ("a", "b")), groups)
    new = torch.from_numpy(random.normal(size=(1000, SIZE)).astype(np.float32))

    def false_alarms(dataset: ArrayDataset) -> float:
        train, held_out = (dataset.subset(rows) for rows in split(dataset, 0.5, seed=0))
        network = nn.Sequential(nn.Flatten(), nn.Linear(SIZE, 2))
        detector = DDU(network).fit(loader(train)).calibrate(loader(held_out), RATE)
        return float((detector.predict(new).verdict == "out_of_distribution").mean())

    # 200 images are held out: the rate of a threshold has a deviation of √(0.1 · 0.9 / 200), that of the test less
    assert abs(false_alarms(dataset) - RATE) < 3 * (RATE * (1 - RATE) * (1 / 200 + 1 / 1000)) ** 0.5
    dataset.groups = None
    assert false_alarms(dataset) > 0.3


def test_groups_are_one_integer_a_sample():
    with pytest.raises(InputError) as caught:
        ArrayDataset(np.zeros((3, 2)), np.zeros(3, int), INFO, np.zeros(2, int))
    assert str(caught.value) == (
        "The groups of points must be integers, one for each of its 3 samples. Got int64, (2,), instead."
    )
    with pytest.raises(InputError, match=r"^The groups of points must be integers, .* Got float64, \(3,\), instead\.$"):
        ArrayDataset(np.zeros((3, 2)), np.zeros(3, int), INFO, np.zeros(3))


# Shares of classes


@settings(derandomize=True, max_examples=20, deadline=None)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 100),
)
def test_a_stratified_split_is_a_partition_in_which_every_class_has_its_share(counts, weights, seed):
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    labels = labels[torch.randperm(len(labels), generator=Generator().manual_seed(seed))]
    shares = [w / sum(weights) for w in weights]
    parts = stratified_split(labels, shares, Generator().manual_seed(seed))
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(labels)))
    for part, share in zip(parts, shares, strict=True):
        got = torch.bincount(labels[part], minlength=len(counts))
        assert ((got - share * torch.tensor(counts)).abs() <= 1 + 1e-9).all()


def test_a_split_depends_on_the_generator_alone():
    labels = torch.arange(100) % 4
    first, again, other = (stratified_split(labels, [0.5, 0.5], Generator().manual_seed(s))[0] for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_shares_that_do_not_add_up_are_refused():
    with pytest.raises(InputError) as caught:
        stratified_split(torch.arange(4), [0.5, 0.4], Generator())
    assert str(caught.value) == "The shares of a split must be positive and add up to 1. Got [0.5, 0.4]."
