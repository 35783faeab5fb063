import numpy as np
import pytest

from ddu.data.corruptions import corrupt
from ddu.data.corruptions.catalogue import find_corruption
from ddu.data.corruptions.images import ImageRandom

GREY = np.full((40, 32, 32, 3), 102, np.uint8)  # 0.4
COUNT = GREY.size


def noise(name: str, severity: int) -> np.ndarray:
    """The change of grey, in [0, 1], before it is rounded to bytes."""
    corruption = find_corruption(name)
    x = np.full(GREY.shape, 0.4, np.float32)
    return corruption.function(x, ImageRandom(0, name, severity, 0, len(x)), **corruption.at(severity)) - np.float64(
        0.4
    )


@pytest.mark.parametrize(
    ("name", "severity", "std"),
    [
        ("gaussian_noise", 1, 0.04),
        ("gaussian_noise", 5, 0.10),
        ("speckle_noise", 1, 0.4 * 0.06),
        ("speckle_noise", 5, 0.4 * 0.2),
        ("shot_noise", 1, (0.4 / 500) ** 0.5),
        ("shot_noise", 5, (0.4 / 50) ** 0.5),
    ],
)
def test_noise_has_no_mean_and_the_published_deviation(name, severity, std):
    change = noise(name, severity)
    assert change.std() == pytest.approx(std, rel=4 / (2 * COUNT) ** 0.5)
    assert abs(change.mean()) < 4 * std / COUNT**0.5


def test_bytes_carry_the_noise():
    change = corrupt(GREY, "gaussian_noise", 3).astype(np.float64) - GREY
    # Rounding adds a variance of a twelfth
    assert change.std() == pytest.approx(((0.08 * 255) ** 2 + 1 / 12) ** 0.5, rel=4 / (2 * COUNT) ** 0.5)


@pytest.mark.parametrize("name", ["gaussian_noise", "speckle_noise", "shot_noise"])
def test_noise_is_independent_from_value_to_value(name):
    change = noise(name, 3)
    assert abs(np.corrcoef(change[..., 0].ravel(), change[..., 1].ravel())[0, 1]) < 4 / (COUNT / 3) ** 0.5
    assert abs(np.corrcoef(change[:, 1:].ravel(), change[:, :-1].ravel())[0, 1]) < 4 / COUNT**0.5


def test_shot_noise_counts_whole_photons():
    seen = corrupt(GREY, "shot_noise", 5)
    assert set(np.unique(seen)) <= set(np.rint(np.arange(51) / 50 * 255).astype(int))


@pytest.mark.parametrize(("severity", "share"), [(1, 0.01), (3, 0.03), (5, 0.07)])
def test_impulse_noise_turns_a_share_of_all_values_black_or_white(severity, share):
    noisy = corrupt(GREY, "impulse_noise", severity)
    assert set(np.unique(noisy)) == {0, 102, 255}
    for extreme in (0, 255):
        assert (noisy == extreme).mean() == pytest.approx(share / 2, abs=4 * (share / 2 / COUNT) ** 0.5)


@pytest.mark.parametrize("name", ["speckle_noise", "shot_noise"])
def test_black_stays_black(name):
    black = np.zeros((2, 32, 32, 3), np.uint8)
    np.testing.assert_array_equal(corrupt(black, name, 5), black)
