import numpy as np
import pytest

from ddu.data.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    STANDARD_CORRUPTIONS,
    catalogue,
    corrupt,
    severity_constants,
)
from ddu.data.corruptions.catalogue import find_corruption
from ddu.errors import InputError


def test_there_are_fifteen_standard_corruptions_and_four_extra_ones():
    assert STANDARD_CORRUPTIONS == (
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "defocus_blur",
        "glass_blur",
        "motion_blur",
        "zoom_blur",
        "snow",
        "frost",
        "fog",
        "brightness",
        "contrast",
        "elastic_transform",
        "pixelate",
        "jpeg_compression",
    )
    assert EXTRA_CORRUPTIONS == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    assert CORRUPTIONS == STANDARD_CORRUPTIONS + EXTRA_CORRUPTIONS
    assert SEVERITIES == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("name", "severity", "constants"),
    [
        ("gaussian_noise", 4, (0.09,)),
        ("shot_noise", 3, (100,)),
        ("impulse_noise", 4, (0.05,)),
        ("speckle_noise", 3, (0.12,)),
        ("gaussian_blur", 2, (0.6,)),
        ("glass_blur", 1, (0.05, 1, 1)),
        ("glass_blur", 4, (0.25, 1, 2)),
        ("defocus_blur", 3, (0.5, 0.6)),
        ("defocus_blur", 5, (1.5, 0.1)),
        ("motion_blur", 1, (6, 1)),
        ("motion_blur", 4, (8, 2)),
        ("zoom_blur", 5, (1.26,)),
        ("fog", 3, (0.75, 2.5)),
        ("frost", 5, (0.75, 0.45)),
        ("snow", 1, (0.1, 0.2, 1, 0.6, 8, 3, 0.95)),
        ("snow", 2, (0.1, 0.2, 1, 0.5, 10, 4, 0.9)),
        ("snow", 3, (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9)),
        ("snow", 4, (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85)),
        ("snow", 5, (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8)),
        ("spatter", 1, (0.62, 0.1, 0.7, 0.7, 0.5, 0)),
        ("spatter", 2, (0.65, 0.1, 0.8, 0.7, 0.5, 0)),
        ("spatter", 3, (0.65, 0.3, 1, 0.69, 0.5, 0)),
        ("spatter", 4, (0.65, 0.1, 0.7, 0.69, 0.6, 1)),
        ("spatter", 5, (0.65, 0.1, 0.5, 0.68, 0.6, 1)),
        ("contrast", 5, (0.15,)),
        ("brightness", 4, (0.2,)),
        ("saturate", 2, (0.1, 0)),
        ("saturate", 5, (2.5, 0.2)),
        ("jpeg_compression", 3, (58,)),
        ("pixelate", 3, (0.85,)),
        ("elastic_transform", 1, (0, 0, 0.08)),
        ("elastic_transform", 3, (0.08, 0.06, 0.06)),
    ],
)
def test_constants_are_the_published_ones(name, severity, constants):
    assert tuple(severity_constants(name, severity).values()) == constants


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_constant_has_five_severities(name):
    assert {len(values) for values in find_corruption(name).constants.values()} == {5}


@pytest.mark.parametrize("severity", [0, 6, -1, 2.0, "3", None])
def test_other_severities_are_refused(severity):
    with pytest.raises(InputError) as caught:
        severity_constants("fog", severity)
    assert str(caught.value) == f"The severity of a corruption must be 1, 2, 3, 4 or 5. Got {severity!r}."


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "gausian_noise",
            "There is no corruption 'gausian_noise'. The closest names are 'gaussian_noise', 'gaussian_blur', "
            "'shot_noise'; ddu.data.corruptions.CORRUPTIONS has them all.",
        ),
        (
            "fogg",
            "There is no corruption 'fogg'. The closest names are 'fog'; "
            "ddu.data.corruptions.CORRUPTIONS has them all.",
        ),
        ("", "There is no corruption ''. ddu.data.corruptions.CORRUPTIONS has them all."),
    ],
)
def test_a_misspelt_name_is_answered_with_the_closest_ones(name, message):
    with pytest.raises(InputError) as caught:
        severity_constants(name, 1)
    assert str(caught.value) == message


# Corrupting


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
    monkeypatch.setattr(catalogue, "_BLOCK", 3)
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
        (np.zeros((2, 32, 7, 3), np.uint8), "Images to corrupt must be at least 8 pixels per side. Got 32 × 7."),
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
