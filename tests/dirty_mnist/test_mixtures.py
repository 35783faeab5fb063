"""Mixtures of digits."""

import numpy as np
import pytest
import torch
from scipy import stats

from ddu.data.dirty_mnist_format import numbers
from ddu.dirty_mnist import Mixing
from ddu.dirty_mnist.autoencoder import MEAN, STD, pixel_rows
from ddu.dirty_mnist.make import load_autoencoder
from ddu.dirty_mnist.mixtures import Mixer, Mixtures, draw_mixtures, sharpened
from ddu.errors import LabelError

# Sorted nowhere, and of very different sizes, so that positions within a class are no rows of the set
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), np.arange(1, 11) * 7))


def drawn(**options) -> Mixtures:
    return draw_mixtures(LABELS, Mixing(pool=0, **{"chunk": 20_000} | options), numbers(0, "test"))


@pytest.mark.parametrize("digits", [2, 3, 4])
def test_the_digits_of_a_mixture_are_of_different_classes(digits):
    classes = np.sort(LABELS[drawn(digits=digits).parents], axis=1)
    assert (np.diff(classes, axis=1) > 0).all()


def test_every_digit_of_the_set_is_used_and_every_class_is_as_likely():
    parents = drawn().parents
    assert set(np.unique(parents)) == set(range(len(LABELS)))
    pairs = np.sort(LABELS[parents], axis=1) @ [10, 1]
    counts = np.unique(pairs, return_counts=True)[1]
    assert len(counts) == 45
    assert stats.chisquare(counts).pvalue > 1e-3
    nines = parents[LABELS[parents] == 9]
    assert stats.chisquare(np.unique(nines, return_counts=True)[1]).pvalue > 1e-3


@pytest.mark.parametrize("digits", [2, 4])
def test_weights_are_on_the_simplex(digits):
    weights = drawn(digits=digits).weights
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize("concentration", [1.0, 3.0])
def test_weights_of_two_digits_follow_a_beta_distribution(concentration):
    weights = drawn(concentration=concentration).weights[:, 0]
    assert stats.kstest(weights, stats.beta(concentration, concentration).cdf).pvalue > 1e-3


def test_mixtures_of_two_three_and_four_digits_are_as_likely():
    weights = drawn(digits=4).weights
    sizes = (weights > 0).sum(1)
    assert stats.chisquare(np.bincount(sizes)[2:]).pvalue > 1e-3
    three = weights[sizes == 3][:, :3]
    # A uniform weight on the simplex of three is Beta(1, 2)
    assert stats.kstest(three[:, 1], stats.beta(1, 2).cdf).pvalue > 1e-3


def test_mixtures_of_the_same_digits_have_other_weights():
    mixtures = drawn(per_tuple=8, chunk=20)
    assert (mixtures.parents[:8] == mixtures.parents[0]).all()
    assert (mixtures.parents[8] != mixtures.parents[0]).any()
    assert len(np.unique(mixtures.weights[:, 0])) == 20
    assert len(mixtures.parents) == 20


def test_batches_hold_all_mixtures_in_order():
    mixtures = drawn(chunk=10)
    batches = list(mixtures.batches(4))
    assert [len(batch.parents) for batch in batches] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([batch.weights for batch in batches]), mixtures.weights)


def test_too_few_classes_are_refused():
    with pytest.raises(LabelError) as error:
        draw_mixtures(np.zeros(5, dtype=int), Mixing(pool=0), numbers(0))
    assert str(error.value) == "Mixtures of 2 digits need 2 classes, and these digits have 1."


def test_sharpening_gives_pixels_the_moments_of_mnist_and_then_contrast():
    pixels = 0.3 + 0.01 * torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    # Small deviations stay clear of black and white, where the clamp would bend them
    again = sharpened(pixels, pixels.mean().item(), 20 * pixels.std().item())
    assert again.mean().item() == pytest.approx(max(1.2 * MEAN - 0.15, 0), abs=0.02)
    grey = torch.tensor([0.2, 0.5, 0.9])
    expected = np.clip(1.2 * (MEAN + STD * (grey.numpy() - 0.13) / 0.29) - 0.15, 0, 1)
    np.testing.assert_allclose(sharpened(grey, 0.13, 0.29), expected, rtol=1e-5)
    assert sharpened(torch.tensor([0.0, 1.0]), MEAN, STD).tolist() == [0.0, 1.0]


def test_a_mixture_is_decoded_from_the_weighted_mean_of_latent_means(made, train_digits):
    vae, images = load_autoencoder(made), pixel_rows(train_digits.inputs[:6])
    mixtures = Mixtures(np.array([[0, 1], [4, 2]]), np.array([[0.25, 0.75], [1.0, 0.0]], dtype=np.float32))
    latents = vae.encode(images)[0]
    wanted = torch.stack([0.25 * latents[0] + 0.75 * latents[1], latents[4]])
    expected = sharpened(vae.decode(wanted), *vae.pixel_moments.tolist()).detach()
    found = Mixer(vae, images).images(mixtures)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.5 / 255 + 1e-4)
    torch.testing.assert_close(255 * found, (255 * found).round())
