import numpy as np
import pytest
from scipy import ndimage

from ddu.data.corruptions import corrupt
from ddu.data.corruptions._image_random import ImageRandom
from ddu.data.corruptions._spatter import MUD, canny, drops, edge_distance, equalised, spatter


def disk_image(radius: float, height: float, size: int = 41) -> np.ndarray:
    offset = np.arange(size) - size // 2
    return np.where(offset[:, None] ** 2 + offset**2 <= radius**2, height, 0).astype(np.float32)


def test_the_edge_of_a_disk_is_a_thin_closed_ring():
    (edges,) = canny(disk_image(10, 200)[None], 50, 150)
    row, column = np.nonzero(edges)
    distance = np.hypot(row - 20, column - 20)
    assert distance.min() > 8.5
    assert distance.max() < 12
    # Closed: the inside cannot be left; thin: about as many pixels as the circumference
    inside = ndimage.binary_propagation(disk_image(1, 1) > 0, mask=~edges)
    assert not inside[0, 0]
    assert edges.sum() < 1.5 * 2 * np.pi * 10.5


def test_a_step_is_an_edge_only_where_its_gradient_exceeds_the_thresholds():
    # Sobel's gradient of a straight step is four times its height
    step = np.zeros((4, 20, 20), np.float32)
    step[:, :, 10:] = np.array([12, 13, 37, 38], np.float32)[:, None, None]
    edges = canny(step, 50, 150)
    assert edges.any(axis=(1, 2)).tolist() == [False, False, False, True]
    assert edges[3].sum(axis=1).tolist() == [1] * 20  # one pixel wide


def test_a_weak_edge_counts_where_it_joins_a_strong_one_of_its_own_image():
    # A step that is strong in its upper half only, and one that is weak all along, in images side by side
    step = np.zeros((2, 20, 20), np.float32)
    step[0, :10, 10:], step[0, 10:, 10:] = 60, 20
    step[1, :, 10:] = 20
    joined, weak = canny(step, 50, 150)
    assert joined[:9].any(axis=1).all()
    assert joined[12:].any(axis=1).all()
    assert not weak.any()


def test_edges_do_not_depend_on_the_batch():
    layers = np.floor(255 * np.clip(np.random.default_rng(0).normal(0.6, 0.3, (6, 32, 32)), 0, 1)).astype(np.float32)
    layers = np.where(layers < 170, 0, layers)
    together = canny(layers, 50, 150)
    assert 0.05 < together.mean() < 0.6
    np.testing.assert_array_equal(together, np.concatenate([canny(layer[None], 50, 150) for layer in layers]))
    np.testing.assert_array_equal(drops(layers / 255), np.concatenate([drops(layer[None] / 255) for layer in layers]))


def test_distances_are_those_of_scipy_to_edges_of_the_same_image():
    edges = np.random.default_rng(0).random((5, 64, 64)) < 0.002
    edges[2] = False
    edges[3] = False
    edges[3, 0, 0] = True
    distance = edge_distance(edges)
    for i in (0, 1, 3, 4):
        np.testing.assert_allclose(
            distance[i], np.asarray(ndimage.distance_transform_edt(~edges[i])).clip(max=20), rtol=1e-6
        )
    assert (distance[2] == 20).all()
    assert (edge_distance(edges[2:3]) == 20).all()


def test_equalised_bytes_are_ranks():
    images = np.random.default_rng(0).integers(3, 21, (4, 16, 16)).astype(np.uint8)
    images[3] = 9
    for image, result in zip(images[:3], equalised(images), strict=False):
        least = (image == image.min()).sum()
        expected = [[round(255 * ((image <= v).sum() - least) / (image.size - least)) for v in row] for row in image]
        np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(equalised(images)[3], images[3])


def test_light_falls_on_water_alone_and_is_scaled_to_the_brightest():
    layers = np.stack([disk_image(9, 0.8), np.zeros((41, 41), np.float32)])
    wet, dry = drops(layers)
    assert wet.max() == 1
    assert (wet[layers[0] == 0] == 0).all()
    assert (dry == 0).all()


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_water_adds_pale_turquoise(severity):
    black = np.zeros((20, 32, 32, 3), np.uint8)
    red, green, blue = np.moveaxis(corrupt(black, "spatter", severity).astype(np.float64), -1, 0)
    np.testing.assert_array_equal(green, blue)
    np.testing.assert_allclose(red, green * 175 / 238, atol=1)
    np.testing.assert_allclose(green.max(axis=(1, 2)), round(0.5 * 238), atol=1)  # its strength


def test_mud_covers_with_brown_what_is_well_inside_a_blot():
    white = np.ones((20, 32, 32, 3), np.float32)
    random = ImageRandom(0, "spatter", 4, 0, 20)
    muddy = spatter(white, random, mean=0.65, std=0.1, sigma=0.7, cutoff=0.69, strength=0.6, mud=1)
    cover = (1 - muddy) / (1 - MUD)
    np.testing.assert_allclose(cover[..., 0], cover[..., 1], atol=1e-5)
    covered = cover[..., 0][cover[..., 0] > 1e-5]
    assert 0 < len(covered) < 0.2 * cover[..., 0].size
    assert covered.min() >= 0.8 - 1e-5
