"""Degenerate images for every kind of image set."""

import numpy as np
import pytest
import torch

from ddu.data import info, list_derived, load, load_ood
from ddu.errors import InputError

NAMES = ["black", "flat", "inverted", "noise", "repeated_row", "shuffled_patches", "white"]
KNOWN = ["digits", "mnist_5k"]


def _pixels(name: str, known: str) -> np.ndarray:
    """The images as networks see them, with the normalisation undone."""
    dataset, (mean, std) = load_ood(name, info(known)), (info(known).mean, info(known).std)
    x, _ = dataset.__getitems__(range(len(dataset)))
    return (x * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]).numpy()


def _test_pixels(known: str, count: int) -> np.ndarray:
    x, _ = load(known, "test").__getitems__(range(count))
    return (x * info(known).std[0] + info(known).mean[0]).numpy()


def test_they_are_listed_apart():
    assert list_derived() == NAMES


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("name", NAMES)
def test_they_have_the_shape_of_the_other_set_and_are_always_the_same(name, known):
    one, other = load_ood(name, info(known)), load_ood(name, info(known))
    assert one.info.name == name
    assert one[0][0].shape == info(known).shape
    assert one.digest() == other.digest()
    images = _pixels(name, known)
    assert images.min() > -1e-5
    assert images.max() < 1 + 1e-5


@pytest.mark.parametrize("known", KNOWN)
def test_flat_images_have_one_colour_each_and_many_together(known):
    images = _pixels("flat", known).reshape(500, -1)
    assert np.ptp(images, axis=1).max() == 0
    assert len(np.unique(images[:, 0])) > 200


def test_black_is_black_and_white_is_white():
    assert np.allclose(_pixels("black", "mnist_5k"), 0, atol=1e-6)
    assert np.allclose(_pixels("white", "mnist_5k"), 1, atol=1e-6)


def test_noise_is_uniform_and_gaussian_in_turn():
    images = _pixels("noise", "mnist_5k").reshape(500, -1)
    assert images[0::2].std() == pytest.approx(12**-0.5, abs=0.01)
    assert images[1::2].std() == pytest.approx(0.25, abs=0.02)  # a little less: it is clipped
    assert abs(np.corrcoef(images[:, 0], images[:, 1])[0, 1]) < 0.2  # neighbours have nothing in common


def test_colours_of_a_colour_set_are_colours():
    dataset = load_ood("flat", info("cifar10"))
    x, _ = dataset[0]
    assert x.shape == (3, 32, 32)
    assert len(x.flatten(1)[:, 0].unique()) == 3


@pytest.mark.parametrize("known", KNOWN)
def test_shuffled_patches_have_the_pixels_of_the_test_images_in_other_places(known):
    shuffled = _pixels("shuffled_patches", known)
    images = _test_pixels(known, len(shuffled))
    flat, other = (np.sort(pixels.reshape(len(pixels), -1), axis=1) for pixels in (shuffled, images))
    assert np.allclose(flat, other, atol=1e-5)
    assert not np.allclose(shuffled, images, atol=1e-5)


def test_inverted_images_are_negatives_with_the_labels_of_the_originals():
    dataset = load_ood("inverted", info("mnist_5k"))
    assert np.allclose(_pixels("inverted", "mnist_5k"), 1 - _test_pixels("mnist_5k", len(dataset)), atol=1e-5)
    assert np.array_equal(dataset.labels, load("mnist_5k", "test").labels[: len(dataset)])


def test_a_repeated_row_is_that_of_the_middle():
    images = _pixels("repeated_row", "mnist_5k")
    assert np.allclose(images, _test_pixels("mnist_5k", len(images))[:, :, 14, None], atol=1e-5)


def test_vectors_have_no_degenerate_images():
    with pytest.raises(InputError, match=r"^flat is a set of images, and inputs of two_moons have the shape \(2,\)\.$"):
        load_ood("flat", info("two_moons"))


def test_they_cannot_be_loaded_alone():
    with pytest.raises(InputError) as caught:
        load("noise")
    assert str(caught.value) == (
        "There is no data set 'noise'. It is made to look like another set: ddu.data.load_ood('noise', info) gives it."
    )


def test_a_set_of_ones_own_with_the_name_goes_first(tmp_path):
    np.savez(tmp_path / "noise.npz", x=np.zeros((3, 8, 8), np.uint8), y=np.zeros(3, np.int64))
    assert len(load_ood("noise", info("digits"), root=tmp_path)) == 3
