import numpy as np
import pytest
from torch import Generator

from ddu.data import mix_pairs
from ddu.errors import LabelError

LABELS = np.arange(30) % 10
GREYS = np.broadcast_to(LABELS[:, None, None] / 10, (30, 4, 4)).astype(np.float32)  # a grey of its own for each class


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def test_a_mixture_is_the_weighted_mean_of_two_classes():
    mixed = mix_pairs(GREYS, LABELS, 500, seeded())
    first, second = mixed.parents.T
    assert (LABELS[first] != LABELS[second]).all()
    np.testing.assert_allclose(mixed.shares.sum(1), 1, rtol=1e-6)
    assert mixed.shares.min() >= 0.4
    assert mixed.shares.max() <= 0.6
    expected = (mixed.shares[..., None, None] * GREYS[mixed.parents]).sum(1)
    np.testing.assert_allclose(mixed.inputs, expected, rtol=1e-6, atol=1e-6)
    assert mixed.inputs.dtype == np.float32


def test_labels_are_drawn_by_the_shares():
    mixed = mix_pairs(GREYS, LABELS, 20_000, seeded())
    took_first = mixed.labels == LABELS[mixed.parents[:, 0]]
    assert (took_first | (mixed.labels == LABELS[mixed.parents[:, 1]])).all()
    light, heavy = (took_first[chosen].mean() for chosen in (mixed.shares[:, 0] < 0.5, mixed.shares[:, 0] > 0.5))
    for found, expected in ((light, 0.45), (heavy, 0.55)):
        assert abs(found - expected) < 4 * 0.5 / 10_000**0.5


def test_mixtures_of_bytes_are_the_nearest_bytes():
    pixels = np.random.default_rng(0).integers(0, 256, (30, 5, 5, 1), dtype=np.uint8)
    mixed = mix_pairs(pixels, LABELS, 200, seeded())
    assert mixed.inputs.dtype == np.uint8
    exact = (mixed.shares.astype(float)[..., None, None, None] * pixels[mixed.parents]).sum(1)
    assert np.abs(mixed.inputs - exact).max() <= 0.5 + 1e-4


def test_the_generator_decides_everything():
    first, again, other = (mix_pairs(GREYS, LABELS, 50, seeded(seed)) for seed in (1, 1, 2))
    for one, same in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, same)
    assert not np.array_equal(first.inputs, other.inputs)


def test_one_class_alone_cannot_be_ambiguous():
    with pytest.raises(LabelError) as caught:
        mix_pairs(np.zeros((3, 8, 8)), np.zeros(3, int), 5, seeded())
    assert str(caught.value) == "Mixtures are of two classes, and these 3 samples have 1."
