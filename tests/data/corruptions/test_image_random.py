import numpy as np
import pytest

from ddu.data.corruptions._image_random import ImageRandom

DRAWS = {
    "normal": lambda random: random.normal(4, 5),
    "uniform": lambda random: random.uniform(-2, 3, 4, 5),
    "a single number": lambda random: random.uniform(0, 1),
    "integers": lambda random: random.integers(0, 1000, 2),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_an_images_draws_depend_on_its_own_index_alone(draw):
    together = draw(ImageRandom(0, "fog", 1, start=10, count=5))
    alone = np.concatenate([draw(ImageRandom(0, "fog", 1, start=index, count=1)) for index in range(10, 15)])
    np.testing.assert_array_equal(together, alone)
    assert len(np.unique(together, axis=0)) == 5


@pytest.mark.parametrize("other", [(1, "fog", 1), (0, "snow", 1), (0, "fog", 2)], ids=["seed", "name", "severity"])
def test_seed_name_and_severity_all_matter(other):
    draws = ImageRandom(0, "fog", 1, start=0, count=1).normal(100)
    assert not np.array_equal(draws, ImageRandom(*other, start=0, count=1).normal(100))


def test_successive_draws_differ():
    random = ImageRandom(0, "fog", 1, start=0, count=2)
    assert not np.array_equal(random.normal(10), random.normal(10))


def test_draws_have_their_distributions():
    random = ImageRandom(0, "fog", 1, start=0, count=4)
    count = 4 * 20_000
    normal, uniform = random.normal(20_000), random.uniform(-1, 3, 20_000)
    whole, counts = random.integers(-1, 2, 20_000), random.poisson(np.full((4, 20_000), 7.0))
    assert abs(normal.mean()) < 4 / count**0.5
    assert normal.std() == pytest.approx(1, abs=4 / (2 * count) ** 0.5)
    assert uniform.mean() == pytest.approx(1, abs=4 * (16 / 12 / count) ** 0.5)
    assert -1 <= uniform.min() < uniform.max() < 3
    assert np.bincount(whole.ravel() + 1) / count == pytest.approx(np.full(3, 1 / 3), abs=4 * 0.5 / count**0.5)
    assert counts.mean() == pytest.approx(7, abs=4 * (7 / count) ** 0.5)


def test_no_images_need_no_draws():
    random = ImageRandom(0, "fog", 1, start=0, count=0)
    assert (
        random.normal(4, 5).shape == random.uniform(0, 1, 4, 5).shape == random.integers(0, 2, 4, 5).shape == (0, 4, 5)
    )
