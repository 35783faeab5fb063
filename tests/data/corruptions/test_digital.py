import colorsys
import io

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from ddu.data.corruptions import corrupt
from ddu.data.corruptions.digital import elastic_transform
from ddu.data.corruptions.images import ImageRandom


@pytest.mark.parametrize(("severity", "factor"), [(1, 0.75), (3, 0.4), (5, 0.15)])
def test_contrast_is_its_formula(images, severity, factor):
    pixels = images.astype(np.float64)
    mean = pixels.mean(axis=(1, 2), keepdims=True)
    exact = (pixels - mean) * factor + mean
    np.testing.assert_allclose(corrupt(images, "contrast", severity), exact, atol=0.5 + 1e-3)  # rounding to bytes


def by_colorsys(images: np.ndarray, change) -> np.ndarray:
    """Each pixel through the standard library's hue, saturation and value."""
    pixels = images.reshape(-1, 3) / 255
    changed = [colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*pixel))) for pixel in pixels]
    return 255 * np.array(changed).reshape(images.shape)


@pytest.mark.parametrize(("severity", "added"), [(1, 0.05), (3, 0.15), (5, 0.3)])
def test_brightness_adds_to_the_value(images, severity, added):
    expected = by_colorsys(images[:3], lambda h, s, v: (h, s, min(v + added, 1)))
    np.testing.assert_allclose(corrupt(images[:3], "brightness", severity), expected, atol=0.5 + 1e-3)


@pytest.mark.parametrize(
    ("severity", "factor", "added"), [(1, 0.3, 0), (2, 0.1, 0), (3, 1.5, 0), (4, 2, 0.1), (5, 2.5, 0.2)]
)
def test_saturate_maps_the_saturation(images, severity, factor, added):
    expected = by_colorsys(images[:3], lambda h, s, v: (h, min(s * factor + added, 1), v))
    np.testing.assert_allclose(corrupt(images[:3], "saturate", severity), expected, atol=0.5 + 1e-3)


@pytest.mark.parametrize(("severity", "quality"), [(1, 80), (3, 58), (5, 40)])
def test_jpeg_compression_is_pillows(images, severity, quality):
    compressed = corrupt(images, "jpeg_compression", severity)
    for image, result in zip(images, compressed, strict=True):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        np.testing.assert_array_equal(result, np.asarray(Image.open(file)))


@pytest.mark.parametrize(("severity", "size"), [(1, 30), (2, 28), (3, 27), (4, 24), (5, 20)])
def test_pixelate_is_pillows_box_resize(images, severity, size):
    pixelated = corrupt(images, "pixelate", severity)
    for image, result in zip(images, pixelated, strict=True):
        small = Image.fromarray(image).resize((size, size), Image.Resampling.BOX)
        np.testing.assert_array_equal(result, np.asarray(small.resize((32, 32), Image.Resampling.BOX)))


def seeded(count: int) -> ImageRandom:
    return ImageRandom(0, "elastic_transform", 1, 0, count)


def test_elastic_transform_is_an_affine_map_then_a_smooth_displacement(x):
    """Both steps by scipy, from the same draws."""
    transformed = elastic_transform(x, seeded(len(x)), displacement=0.1, smoothing=0.04, affine=0.05)
    random = seeded(len(x))
    corners = np.array([[26, 26], [26, 6], [6, 6]], np.float64)
    moved = corners + random.uniform(-1.6, 1.6, 3, 2)
    shift = 3.2 * random.uniform(-1, 1, 32, 32, 2)
    grid = np.stack(np.meshgrid(np.arange(32), np.arange(32), indexing="ij")).astype(np.float64)
    for image, result, corners_moved, field in zip(x, transformed, moved, shift, strict=True):
        matrix, offset = affine_through(corners_moved, corners)
        smooth = [ndimage.gaussian_filter(field[..., i], 1.28, mode="reflect", truncate=3) for i in (0, 1)]
        for channel in range(3):
            warped = ndimage.affine_transform(image[..., channel], matrix, offset, order=1, mode="mirror")
            expected = ndimage.map_coordinates(warped, grid + smooth, order=1, mode="mirror")
            np.testing.assert_allclose(result[..., channel], expected, atol=1e-4)


def affine_through(points: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The affine map that takes three points to three others, by differences."""
    matrix = (images[1:] - images[0]).T @ np.linalg.inv((points[1:] - points[0]).T)
    return matrix, images[0] - matrix @ points[0]


def test_without_shift_and_displacement_nothing_moves(x):
    still = elastic_transform(x, seeded(len(x)), displacement=0, smoothing=0, affine=0)
    np.testing.assert_allclose(still, x, atol=1e-5)
