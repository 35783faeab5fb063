import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ddu.data._pixels import covering, decoded, fitted, normalised


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def photo(height: int, width: int) -> np.ndarray:
    """A colour image with edges and slopes, (height, width, 3)."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    waves = [np.sin(9 * x + 5 * y), np.cos(7 * y * x), np.sign(np.sin(12 * x))]
    return (127.5 + 127.5 * np.stack(waves, axis=-1)).astype(np.uint8)


def by_pillow(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR), dtype=int)


@pytest.mark.parametrize(
    ("old", "new"),
    [((64, 64), (32, 32)), ((28, 28), (32, 32)), ((8, 8), (28, 28)), ((96, 96), (28, 28)), ((33, 33), (32, 32))],
)
def test_another_size_is_pillows_to_within_a_grey_level(old, new):
    for image in (photo(*old), noise(*old, 3)):
        ours = fitted(image[None], (3, *new))[0].astype(int)
        assert np.abs(ours - by_pillow(image, new)).max() <= 1


def test_grey_is_pillows_to_within_a_grey_level():
    image = noise(20, 20, 3)
    pillows = np.asarray(Image.fromarray(image).convert("L"), dtype=int)
    ours = fitted(image[None], (1, 20, 20))[0, :, :, 0].astype(int)
    assert np.abs(ours - pillows).max() <= 1


def test_colour_of_a_grey_image_is_the_same_grey_three_times():
    image = noise(2, 7, 7, 1)
    np.testing.assert_array_equal(fitted(image, (3, 7, 7)), np.repeat(image, 3, axis=3))


def test_a_wide_image_is_scaled_by_its_height_and_cut_at_both_sides():
    image = photo(40, 64)
    ours = fitted(image[None], (3, 20, 20))[0].astype(int)
    assert np.abs(ours - by_pillow(image, (20, 32))[:, 6:26]).max() <= 1


def test_bytes_stay_bytes_and_floats_stay_floats():
    image = noise(1, 16, 16, 3)
    assert fitted(image, (1, 8, 8)).dtype == np.uint8
    halved = fitted((image / 255).astype(np.float32), (1, 8, 8))
    assert halved.dtype == np.float32
    assert np.abs(255 * halved - fitted(image, (1, 8, 8))).max() <= 1


def test_images_that_fit_are_not_touched():
    image = noise(1, 16, 16, 3)
    assert fitted(image, (3, 16, 16)) is image


@pytest.mark.parametrize(
    ("mode", "size"), [("RGB", (64, 48)), ("L", (64, 48)), ("P", (64, 48)), ("RGBA", (8, 8)), ("1", (30, 31))]
)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 32, 32)])
def test_a_decoded_image_is_the_fitted_array_of_it(mode, size, shape):
    image = Image.fromarray(photo(*size)).convert(mode)
    array = np.array(image.convert("RGB" if shape[0] == 3 else "L")).reshape(1, *size, -1)
    ours = decoded(image, shape)
    assert ours.shape == (32, 32, shape[0])
    assert np.abs(ours.astype(int) - fitted(array, shape)[0].astype(int)).max() <= 1


def test_what_is_kept_is_imagenets_centre():
    image = photo(300, 400)
    # The usual evaluation: the shorter side to 256 pixels, and 224 of them from the centre
    usual = by_pillow(image, (256, 341))[16:240, 58:282]
    assert np.abs(decoded(Image.fromarray(image), (3, 224, 224), kept=224 / 256).astype(int) - usual).max() <= 1


sides = st.integers(1, 300)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(old=st.tuples(sides, sides), new=st.tuples(sides, sides), kept=st.sampled_from([1.0, 0.875]))
def test_a_covering_size_covers_centres_and_keeps_the_proportions(old, new, kept):
    scaled, corner = covering(old, new, kept)
    for total, side, before in zip(scaled, new, corner, strict=True):
        assert total >= side
        assert 0 <= (total - side - before) - before <= 1
    ratio = max(n / o for n, o in zip(new, old, strict=True)) / kept
    assert all(abs(total - ratio * o) <= 1 for total, o in zip(scaled, old, strict=True))


def test_normalised_pixels_have_the_mean_and_deviation_taken_out():
    image = noise(5, 4, 4, 3)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    expected = ((image / 255 - mean) / std).transpose(0, 3, 1, 2)
    for pixels in (image, (image / 255).astype(np.float32)):
        found = normalised(pixels, mean, std)
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)
