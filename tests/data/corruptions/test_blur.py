import numpy as np
import pytest
from scipy import ndimage

from ddu.data.corruptions import corrupt
from ddu.data.corruptions.blur import disk, swapped
from ddu.data.corruptions.images import ImageRandom


def bytes_of(x: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(x, 0, 1) * 255)


@pytest.mark.parametrize(("severity", "sigma"), [(1, 0.4), (3, 0.7), (5, 1.0)])
def test_gaussian_blur_is_scipys(images, x, severity, sigma):
    expected = np.stack([ndimage.gaussian_filter(x[0, ..., c], sigma, mode="nearest") for c in range(3)], axis=-1)
    assert np.abs(corrupt(images, "gaussian_blur", severity)[0] - bytes_of(expected)).max() <= 1  # a tie in rounding
    assert (corrupt(images, "gaussian_blur", severity)[0] == bytes_of(expected)).mean() > 0.999


@pytest.mark.parametrize(
    ("radius", "edge_sigma"), [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1), (3, 0.5), (7.9, 1)]
)
def test_the_kernel_of_a_lens_adds_up_to_one_and_is_round(radius, edge_sigma):
    kernel = disk(radius, edge_sigma)
    assert kernel.sum() == pytest.approx(1, rel=1e-12)
    assert (kernel >= 0).all()
    for same in (kernel[::-1], kernel[:, ::-1], kernel.T):
        np.testing.assert_allclose(kernel, same, rtol=1e-12)


def test_a_disk_smaller_than_a_pixel_leaves_the_gaussian_of_three_pixels():
    tap = np.exp(-1 / (2 * 0.4**2))
    expected = np.outer([tap, 1, tap], [tap, 1, tap]) / (1 + 2 * tap) ** 2
    np.testing.assert_allclose(disk(0.3, 0.4), expected, rtol=1e-12)


def test_a_disk_of_one_and_a_half_pixels_is_the_mean_of_nine(images, x):
    expected = ndimage.uniform_filter(x.astype(np.float64), (1, 3, 3, 1), mode="mirror")
    assert np.abs(corrupt(images, "defocus_blur", 5) - bytes_of(expected)).max() <= 1


@pytest.mark.parametrize("reach", [1, 2])
def test_swapped_pixels_are_all_there_and_none_has_moved_further_than_the_reach(reach):
    grid = np.stack(np.meshgrid(np.arange(32), np.arange(32), indexing="ij"), axis=-1)
    places = np.broadcast_to(grid, (50, 32, 32, 2)).astype(np.float32)
    moved = swapped(places, ImageRandom(0, "glass_blur", 1, 0, 50), reach)
    for image in moved:
        np.testing.assert_array_equal(np.unique(image.reshape(-1, 2), axis=0), grid.reshape(-1, 2))
    distance = np.abs(moved - places)
    assert distance.max() == reach
    # Most pixels trade places; in either direction as often as in the other
    assert 0.5 < (distance.max(axis=-1) > 0).mean() < 0.8
    assert np.abs((moved - places).mean()) < 0.01


def test_a_pixel_and_its_partner_trade_places():
    grid = np.stack(np.meshgrid(np.arange(32), np.arange(32), indexing="ij"), axis=-1)
    (moved,) = swapped(grid[None].astype(np.float32), ImageRandom(3, "glass_blur", 1, 0, 1), 1).astype(int)
    np.testing.assert_array_equal(moved[moved[..., 0], moved[..., 1]], grid)


def test_glass_blur_leaves_flat_images_alone():
    flat = np.full((2, 32, 32, 3), 77, np.uint8)
    np.testing.assert_array_equal(corrupt(flat, "glass_blur", 5), flat)


def test_motion_blur_runs_at_most_45_degrees_off_the_horizontal():
    points = np.zeros((200, 65, 65, 3), np.uint8)
    points[:, 32, 32] = 255
    blurred = corrupt(points, "motion_blur", 5)[..., 0].astype(np.float64)
    offset = np.arange(65) - 32
    mass = blurred.sum(axis=(1, 2))
    down = (blurred * offset[:, None]).sum(axis=(1, 2)) / mass
    right = (blurred * offset).sum(axis=(1, 2)) / mass
    angle = np.degrees(np.arctan2(down, right))  # the streak trails behind, so about 180°
    off_horizontal = np.abs((angle % 360) - 180)
    assert off_horizontal.max() < 48  # pixels are whole
    assert off_horizontal.max() > 40
    assert abs((angle % 360).mean() - 180) < 4 * 26 / 200**0.5


@pytest.mark.parametrize(("severity", "zooms"), [(1, 6), (5, 26)])
def test_zoom_blur_is_the_mean_of_the_image_and_its_zooms(images, severity, zooms):
    x = images[:2].astype(np.float64) / 255
    centre = 15.5
    total = x.copy()
    for step in range(zooms):
        factor = 1 + step / 100
        for image, sums in zip(x, total, strict=True):
            for channel in range(3):
                sums[..., channel] += ndimage.affine_transform(
                    image[..., channel], [1 / factor] * 2, centre - centre / factor, order=1, mode="nearest"
                )
    assert np.abs(corrupt(images[:2], "zoom_blur", severity) - bytes_of(total / (zooms + 1))).max() <= 1
