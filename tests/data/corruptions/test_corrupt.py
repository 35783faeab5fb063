import numpy as np
import pytest

from ddu.data.corruptions import CORRUPTIONS, SEVERITIES, _corrupt, corrupt
from ddu.errors import InputError

WITHOUT_CHANCE = {
    "brightness",
    "contrast",
    "defocus_blur",
    "gaussian_blur",
    "jpeg_compression",
    "pixelate",
    "saturate",
    "zoom_blur",
}
everything = pytest.mark.parametrize("name", CORRUPTIONS)


@everything
@pytest.mark.parametrize("severity", SEVERITIES)
def test_a_corruption_changes_bytes_into_bytes_of_the_same_shape(images, name, severity):
    before = images.copy()
    corrupted = corrupt(images, name, severity)
    assert corrupted.dtype == np.uint8
    assert corrupted.shape == images.shape
    assert (corrupted != images).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(images, before)


@everything
def test_the_seed_decides_everything(images, name):
    first, again, other = (corrupt(images, name, 3, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.array_equal(first, other) == (name in WITHOUT_CHANCE)


@everything
@pytest.mark.parametrize("severity", [2, 5])
def test_a_set_may_be_corrupted_in_parts_and_in_any_order(images, name, severity):
    whole = corrupt(images, name, severity, seed=4, start=100)
    for parts in ([(3, 7), (0, 3)], [(i, i + 1) for i in (5, 0, 6, 2, 1, 4, 3)]):
        for first, last in parts:
            part = corrupt(images[first:last], name, severity, seed=4, start=100 + first)
            np.testing.assert_array_equal(part, whole[first:last])


@everything
def test_a_set_larger_than_a_block_is_no_different(images, name, monkeypatch):
    whole = corrupt(images, name, 3)
    monkeypatch.setattr(_corrupt, "_BLOCK", 3)
    np.testing.assert_array_equal(corrupt(images, name, 3), whole)


@everything
def test_images_of_the_same_pixels_get_randomness_of_their_own(images, name):
    twins = np.repeat(images[:1], 2, axis=0)
    first, second = corrupt(twins, name, 3)
    assert np.array_equal(first, second) == (name in WITHOUT_CHANCE)


@everything
@pytest.mark.parametrize("shape", [(8, 8), (24, 41), (96, 64)])
def test_other_sizes_are_corrupted_too(name, shape):
    images = np.random.default_rng(0).integers(0, 256, (2, *shape, 3), dtype=np.uint8)
    assert corrupt(images, name, 5).shape == images.shape


@everything
@pytest.mark.parametrize("level", [0, 255])
def test_black_and_white_images_stay_in_range(name, level):
    flat = np.full((3, 32, 32, 3), level, np.uint8)
    with np.errstate(all="raise"):
        assert corrupt(flat, name, 5).shape == flat.shape


@everything
def test_no_images_give_no_images(name):
    assert corrupt(np.zeros((0, 32, 32, 3), np.uint8), name, 1).shape == (0, 32, 32, 3)


def test_memory_mapped_and_strided_images_are_as_good(images, tmp_path):
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    np.testing.assert_array_equal(corrupt(mapped, "snow", 2), corrupt(images, "snow", 2))
    np.testing.assert_array_equal(corrupt(images[::-1], "contrast", 2), corrupt(images, "contrast", 2)[::-1])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            np.zeros((2, 32, 32, 3), np.float32),
            "Images to corrupt must be a uint8 array of shape (image, height, width, 3). "
            "Got float32 of shape (2, 32, 32, 3).",
        ),
        (
            np.zeros((2, 3, 32, 32), np.uint8),
            "Images to corrupt must be a uint8 array of shape (image, height, width, 3). "
            "Got uint8 of shape (2, 3, 32, 32).",
        ),
        (
            np.zeros((32, 32, 3), np.uint8),
            "Images to corrupt must be a uint8 array of shape (image, height, width, 3). "
            "Got uint8 of shape (32, 32, 3).",
        ),
        ([[1]], "Images to corrupt must be a uint8 array of shape (image, height, width, 3). Got a list."),
        (np.zeros((2, 32, 7, 3), np.uint8), "Images to corrupt must be at least 8 pixels a side. Got 32 × 7."),
    ],
)
def test_what_is_not_colour_images_of_bytes_is_refused(images, message):
    with pytest.raises(InputError) as caught:
        corrupt(images, "fog", 1)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "The seed must not be negative. Got -1."),
        ({"start": -2}, "The index of the first image must not be negative. Got -2."),
    ],
)
def test_negative_seeds_and_indices_are_refused(images, arguments, message):
    with pytest.raises(InputError) as caught:
        corrupt(images, "fog", 1, **arguments)
    assert str(caught.value) == message
