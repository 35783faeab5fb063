"""Other sets with the noise of Dirty-MNIST."""

import numpy as np
import pytest

from ddu import data
from ddu.data.sources.dirty_mnist import NOISE
from ddu.data.sources.mnist import SCALE
from ddu.errors import InputError


def test_a_noisy_set_is_the_other_one_with_the_noise_of_dirty_mnist():
    plain, noisy = data.load("mnist_5k", "test"), data.load("noisy:mnist_5k", "test")
    added = noisy.inputs.astype(np.float64) - plain.inputs / 255
    assert added.std() == pytest.approx(NOISE * SCALE["std"][0], rel=0.01)
    assert abs(added.mean()) < 1e-3
    np.testing.assert_array_equal(noisy.labels, plain.labels)
    assert noisy.info.name == "noisy:mnist_5k"


def test_the_noise_is_always_the_same():
    assert data.load("noisy:mnist_5k", "test").digest() == data.load("noisy:mnist_5k", "test").digest()


def test_it_can_be_shown_as_out_of_distribution():
    shown = data.load_ood("noisy:photo_patches", data.info("mnist_5k"))
    assert shown.info.shape == (1, 28, 28)
    assert len(shown) == 1000


def test_noise_on_an_unknown_set_is_answered_with_the_closest_name():
    with pytest.raises(
        InputError, match=r"There is no data set 'mnist_5kk' to add noise to\. Did you mean 'mnist_5k'\?"
    ):
        data.load("noisy:mnist_5kk")


def test_noise_on_what_is_no_image_in_bytes_is_refused():
    with pytest.raises(
        InputError, match="Noise is added to images in bytes, and those of two_moons are something else"
    ):
        data.load("noisy:two_moons")
