"""Ambiguous-MNIST and Dirty-MNIST as arrays."""

import numpy as np
import pytest
import torch
from scipy import stats

from ddu.data import ArrayDataset
from ddu.data.dirty_mnist_format import read_arrays
from ddu.dirty_mnist import load_ambiguous, load_dirty


def test_every_image_comes_as_often_as_it_has_labels(made):
    arrays, _ = read_arrays(made, "train")
    inputs, labels, soft_labels, groups = load_ambiguous(made, "train", noise=0)
    np.testing.assert_array_equal((inputs * np.float32(255)).round(), arrays["images"].repeat(4, axis=0))
    np.testing.assert_array_equal(labels.reshape(150, 4), arrays["labels"])
    np.testing.assert_array_equal(soft_labels[3::4], arrays["soft_labels"])
    np.testing.assert_array_equal(groups.reshape(150, 4), np.arange(150)[:, None].repeat(4, axis=1))
    assert (inputs.dtype, labels.dtype, soft_labels.dtype) == (np.float16, np.int64, np.float32)


def test_the_noise_is_normal_with_the_deviation_asked_for_in_normalised_units(made):
    clean = load_ambiguous(made, "train", noise=0).inputs.astype(float)
    noise = (load_ambiguous(made, "train").inputs - clean).ravel() / 0.3081
    assert noise.std() == pytest.approx(0.05, rel=0.01)
    assert abs(noise.mean()) < 4 * 0.05 / np.sqrt(len(noise))
    black = noise[clean.ravel() == 0][:5000]  # halves are finest there
    assert stats.kstest(black, stats.norm(scale=0.05).cdf).pvalue > 1e-3


def test_copies_differ_by_their_noise_alone_and_two_loads_by_nothing(made):
    first, again = load_ambiguous(made, "test"), load_ambiguous(made, "test")
    np.testing.assert_array_equal(first.inputs, again.inputs)
    copies = first.inputs.reshape(150, 4, -1).astype(float)
    for other in range(1, 4):
        difference = (copies[:, 0] - copies[:, other]) / 0.3081
        assert difference.std() == pytest.approx(0.05 * 2**0.5, rel=0.02)


def test_noise_of_train_and_test_is_not_the_same(made, train_digits):
    splits = [load_dirty(made, split, train_digits.subset(range(50))).inputs[:50] for split in ("train", "test")]
    noise = [(inputs - train_digits.inputs[:50] / 255).ravel() for inputs in splits]
    assert abs(np.corrcoef(noise)[0, 1]) < 0.03


def test_dirty_is_clean_then_ambiguous_both_with_noise(made, train_digits):
    dirty, ambiguous = load_dirty(made, "train", train_digits), load_ambiguous(made, "train")
    assert len(dirty.inputs) == len(dirty.labels) == len(dirty.soft_labels) == 600 + 600
    for whole, part in zip(dirty[:3], ambiguous[:3], strict=True):
        np.testing.assert_array_equal(whole[600:], part)
    assert len(set(dirty.groups[:600])) == 600
    assert not set(dirty.groups[:600]) & set(dirty.groups[600:])
    np.testing.assert_array_equal(dirty.groups[600:] - dirty.groups[600], ambiguous.groups)
    np.testing.assert_array_equal(dirty.labels[:600], train_digits.labels)
    np.testing.assert_array_equal(dirty.soft_labels[:600], np.eye(10)[train_digits.labels])
    noise = dirty.inputs[:600].astype(float) - train_digits.inputs / 255
    assert noise.std() / 0.3081 == pytest.approx(0.05, rel=0.01)


def test_the_arrays_make_a_normalised_dataset(made, train_digits):
    inputs, labels, *_ = load_ambiguous(made, "train")
    x, y = ArrayDataset(inputs, labels, train_digits.info)[7]
    expected = (torch.from_numpy(inputs[7]).float().permute(2, 0, 1) - 0.1307) / 0.3081
    torch.testing.assert_close(x, expected)
    assert y == labels[7]


def test_some_samples_can_be_taken(made):
    everything = load_ambiguous(made, "test")
    some = everything.take(slice(1, None, 4))
    for part, whole in zip(some, everything, strict=True):
        np.testing.assert_array_equal(part, whole[1::4])
