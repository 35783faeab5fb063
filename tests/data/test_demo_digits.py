import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Generator, Tensor

from ddu.data import LabelledImages, ambiguous_digits, digits, digits_demo_data


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def test_digits_are_those_of_scikit_learn_scaled_to_one():
    data, (pixels, labels) = digits(), load_digits(return_X_y=True)
    assert data.images.shape == (1797, 1, 8, 8)
    assert data.images.dtype == torch.float32
    np.testing.assert_array_equal(data.images.flatten(1).numpy() * 16, pixels)
    np.testing.assert_array_equal(data.labels.numpy(), labels)
    assert torch.equal(data.label_probs.argmax(1), data.labels)
    assert torch.equal(data.label_probs.sum(1), torch.ones(1797))


def test_an_ambiguous_digit_mixes_two_classes_by_the_odds_of_its_label():
    # Each class has its own grey, so a mixture's grey is the mean under its label distribution
    labels = torch.arange(10).repeat(3)
    images = (labels.float() / 10)[:, None, None, None].expand(-1, 1, 8, 8)
    mixed = ambiguous_digits(images, labels, 500, seeded())
    assert (mixed.label_probs > 0).sum(1).eq(2).all()
    weights = mixed.label_probs[mixed.label_probs > 0]
    assert weights.min() >= 0.4
    assert weights.max() <= 0.6
    grey = (mixed.label_probs @ (torch.arange(10) / 10.0))[:, None, None, None]
    torch.testing.assert_close(mixed.images, grey.expand(-1, 1, 8, 8))
    entropy = torch.special.entr(mixed.label_probs).sum(1)
    assert entropy.min() > 0.67


def test_labels_of_ambiguous_digits_are_drawn_with_their_odds():
    data = digits()
    mixed = ambiguous_digits(data.images, data.labels, 20_000, seeded())
    drawn = mixed.label_probs.gather(1, mixed.labels[:, None]).squeeze(1)
    assert drawn.min() > 0
    # The heavier digit is drawn with the probability of its weight: mean within four standard errors
    heavier = mixed.label_probs.amax(1)
    hits = (drawn == heavier).double().mean()
    assert abs(hits - heavier.double().mean()) < 4 * 0.5 / 20_000**0.5
    assert heavier.mean() == pytest.approx(0.55, abs=0.002)


def is_mixture_of(mixed: LabelledImages, index: int, source: LabelledImages) -> bool:
    """Whether some two digits of `source` mix to exactly this image."""
    first, second = mixed.label_probs[index].nonzero().flatten().tolist()
    weight = mixed.label_probs[index, first]

    def of(label: int) -> Tensor:
        return source.images[source.labels == label].flatten(1)

    rest = mixed.images[index].flatten() - weight * of(first)
    distance = torch.cdist(rest, (1 - weight) * of(second), compute_mode="donot_use_mm_for_euclid_dist")
    return bool(distance.min() < 1e-5)


def test_no_set_of_the_demo_uses_a_digit_of_another():
    data, everything = digits_demo_data(3), digits()
    sets = {"train": data.train, "calibration": data.calibration, "test": data.clean + data.ambiguous}
    clean = {name: part[part.label_probs.amax(1) == 1] for name, part in sets.items()}
    rows = sorted(tuple(image.flatten().tolist()) for part in clean.values() for image in part.images)
    assert rows == sorted(tuple(image.flatten().tolist()) for image in everything.images)
    for name, part in sets.items():
        mixed = part[part.label_probs.amax(1) < 1]
        assert len(mixed) >= len(data.clean)
        assert all(is_mixture_of(mixed, index, clean[name]) for index in range(40))


def test_the_seed_decides_every_set_of_the_demo():
    first, again, other = digits_demo_data(1), digits_demo_data(1), digits_demo_data(2)
    for name in ("train", "calibration", "clean", "ambiguous"):
        assert torch.equal(getattr(first, name).images, getattr(again, name).images)
        assert not torch.equal(getattr(first, name).images[:300], getattr(other, name).images[:300])
    assert torch.equal(first.photos, again.photos)
    assert not torch.equal(first.photos, other.photos)
