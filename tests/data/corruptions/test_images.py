import numpy as np
import pytest
from scipy import ndimage

from ddu.data.corruptions.images import ImageRandom, correlate, gaussian, sample, streak, zoom, zoom_matrix


def test_gaussian_blurs_each_channel_of_each_image_as_scipy_does(x):
    blurred = gaussian(x, 0.8)
    for image, result in zip(x, blurred, strict=True):
        expected = np.stack([ndimage.gaussian_filter(image[..., c], 0.8, mode="nearest") for c in range(3)], axis=-1)
        np.testing.assert_allclose(result, expected, atol=1e-6)


def test_correlate_works_within_one_image_and_one_channel(x):
    kernel = np.arange(9.0).reshape(3, 3)
    result = correlate(x, kernel)
    for image, filtered in zip(x, result, strict=True):
        expected = np.stack([ndimage.correlate(image[..., c], kernel, mode="mirror") for c in range(3)], axis=-1)
        np.testing.assert_allclose(filtered, expected, rtol=1e-5)


def reference_streak(image: np.ndarray, radius: int, sigma: float, degrees: float) -> np.ndarray:
    """The formula, pixel by pixel in double precision."""
    height, width = image.shape[:2]
    weights = [np.exp(-(k**2) / (2 * sigma**2)) for k in range(2 * radius + 1)]
    blurred = np.zeros(image.shape)
    for k, weight in enumerate(weights):
        down = round(k * np.sin(np.radians(degrees)))
        right = round(k * np.cos(np.radians(degrees)))
        for row in range(height):
            for column in range(width):
                source = min(max(row + down, 0), height - 1), min(max(column + right, 0), width - 1)
                blurred[row, column] += weight / sum(weights) * image[source]
    return blurred


def test_streak_equals_its_formula_at_the_angle_of_each_image(x):
    angles = np.array([-135.0, -77.7, -45.0, 0.0, 12.3, 45.0, 90.0], np.float32)
    blurred = streak(x, 3, 2.0, angles)
    for image, result, angle in zip(x, blurred, angles, strict=True):
        np.testing.assert_allclose(result, reference_streak(image, 3, 2.0, float(angle)), atol=1e-6)


@pytest.mark.parametrize(("degrees", "line"), [(0, np.s_[16, :]), (90, np.s_[:, 16]), (-90, np.s_[:, 16])])
def test_a_bright_pixel_becomes_a_line_in_the_direction_of_motion(degrees, line):
    point = np.zeros((1, 33, 33, 1), np.float32)
    point[0, 16, 16] = 1
    (blurred,) = streak(point, 6, 2.0, np.array([degrees], np.float32))[..., 0]
    assert blurred.sum() == pytest.approx(1, rel=1e-6)
    assert blurred[line].sum() == pytest.approx(1, rel=1e-6)
    # One-sided: nothing on the other side of the pixel, and falling on this one
    ahead, behind = (blurred[line][15::-1], blurred[line][17:])
    if degrees < 0:
        ahead, behind = behind, ahead
    assert (behind == 0).all()
    assert (np.diff(ahead[:12]) < 0).all()


@pytest.mark.parametrize("factor", [1.0, 1.05, 1.75, 2.25])
@pytest.mark.parametrize("shape", [(32, 32), (24, 41)])
def test_zoom_reads_about_the_centre_as_scipy_does(factor, shape):
    x = np.random.default_rng(0).random((3, *shape), np.float32)
    centre = (np.array(shape) - 1) / 2
    for image, zoomed in zip(x, zoom(x, factor), strict=True):
        expected = ndimage.affine_transform(
            image.astype(np.float64), np.full(2, 1 / factor), centre - centre / factor, order=1, mode="nearest"
        )
        np.testing.assert_allclose(zoomed, expected, atol=1e-5)


def test_a_zoom_keeps_flat_images_flat():
    np.testing.assert_allclose(zoom_matrix(32, 1.37).sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(zoom_matrix(32, 1.0), np.eye(32))


def test_sample_equals_scipys_interpolation_however_far_outside(x):
    random = np.random.default_rng(0)
    rows, columns = random.uniform(-70, 100, (2, len(x), 32, 32)).astype(np.float32)
    result = sample(x, rows, columns)
    for image, read, row, column in zip(x, result, rows, columns, strict=True):
        for channel in range(3):
            expected = ndimage.map_coordinates(image[..., channel], (row, column), order=1, mode="mirror")
            np.testing.assert_allclose(read[..., channel], expected, atol=1e-5)


# Random numbers


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
