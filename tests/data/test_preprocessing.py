import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ddu.data import ArrayDataset, DataInfo, FolderDataset, Preprocessing
from ddu.data.preprocessing import covering, decoded, fitted, header, normalised, plain
from ddu.errors import DataError, InputError


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def photo(height: int, width: int) -> np.ndarray:
    """A colour image with edges and slopes, (height, width, 3)."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    waves = [np.sin(9 * x + 5 * y), np.cos(7 * y * x), np.sign(np.sin(12 * x))]
    return (127.5 + 127.5 * np.stack(waves, axis=-1)).astype(np.uint8)


def by_pillow(image: np.ndarray, size: tuple[int, int], resizing: str = "bilinear") -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling[resizing.upper()]), dtype=int)


@pytest.mark.parametrize("resizing", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("old", "new"),
    [((64, 64), (32, 32)), ((28, 28), (32, 32)), ((8, 8), (28, 28)), ((96, 96), (28, 28)), ((33, 33), (32, 32))],
)
def test_another_size_is_pillows_to_within_a_grey_level(old, new, resizing):
    for image in (photo(*old), noise(*old, 3)):
        ours = fitted(image[None], (3, *new), resizing=resizing)[0].astype(int)
        assert np.abs(ours - by_pillow(image, new, resizing)).max() <= 1


def test_a_file_is_resized_as_the_preprocessing_says(tmp_path):
    image = photo(20, 20)
    Image.fromarray(image).save(tmp_path / "photo.png")
    for resizing in ("bilinear", "bicubic"):
        to_input = Preprocessing((3, 32, 32), (0.0,) * 3, (1.0,) * 3, resizing=resizing)
        expected = torch.from_numpy(by_pillow(image, (32, 32), resizing)).permute(2, 0, 1) / 255
        torch.testing.assert_close(to_input(tmp_path / "photo.png")[0], expected)
        assert (to_input(image)[0] - expected).abs().max() <= 1.01 / 255


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_the_given_array_is_left_as_it_was(channels, dtype):
    images = np.ones((2, 8, 8, channels), dtype)
    Preprocessing((channels, 8, 8), (0.5,) * channels, (0.5,) * channels)(images)
    assert (images == 1).all()


def test_bicubic_resizing_keeps_floats_in_their_range():
    edges = noise(1, 8, 8, 3) // 128 * 1.0
    scaled = fitted(edges.astype(np.float32), (3, 20, 20), resizing="bicubic")
    assert (scaled.min(), scaled.max()) == (0, 1)


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


# Images of other modes


@pytest.mark.parametrize("dtype", ["uint16", ">u2", "int32"])
def test_sixteen_bits_become_the_nearest_eight(dtype):
    values = np.array([[0, 127, 129, 257, 32_768, 65_407, 65_535]])
    assert np.asarray(plain(Image.fromarray(values.astype(dtype)))).tolist() == [[0, 0, 1, 1, 128, 255, 255]]
    assert decoded(Image.fromarray(values.astype(dtype)), (3, 1, 7))[0, :, 2].tolist() == [0, 0, 1, 1, 128, 255, 255]


def test_pixels_of_unknown_range_are_refused():
    with pytest.raises(
        ValueError, match=r"^its pixels go from -1 to 70000, beyond 16 bits: convert it to 8 or 16 bits$"
    ):
        plain(Image.fromarray(np.array([[-1, 70_000]], dtype=np.int32)))
    with pytest.raises(
        ValueError, match=r"^its pixels are floats, whose range is unknown: convert it to 8 or 16 bits$"
    ):
        plain(Image.fromarray(np.zeros((2, 2), dtype=np.float32)))


def with_palette() -> Image.Image:
    image = Image.new("P", (2, 1))
    image.putpalette([200, 0, 0, 0, 0, 0])
    image.putpixel((1, 0), 1)
    image.info["transparency"] = 1
    return image


def with_alpha(mode: str) -> Image.Image:
    image = Image.new("RGBA", (2, 1), (200, 0, 0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    return image.convert(mode)


@pytest.mark.parametrize("image", [with_palette(), with_alpha("RGBA")], ids=["palette", "RGBA"])
def test_what_is_transparent_is_white(image):
    assert decoded(image, (3, 1, 2)).tolist() == [[[200, 0, 0], [255, 255, 255]]]
    assert decoded(image, (1, 1, 2)).tolist() == [[[60], [255]]]


def test_grey_with_transparency_is_grey_on_white():
    assert decoded(with_alpha("LA"), (1, 1, 2)).tolist() == [[[60], [255]]]
    assert header(with_alpha("LA")) == (1, 2, True)


def test_print_colours_become_those_of_the_screen():
    image = Image.new("CMYK", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 255, 255, 0))
    assert decoded(image, (3, 1, 2)).tolist() == [[[255, 255, 255], [255, 0, 0]]]


@pytest.mark.parametrize(("orientation", "turned"), [(1, 0), (3, 2), (6, 3), (8, 1)])
@pytest.mark.parametrize("end", ["png", "webp"])
def test_orientations_of_exif_are_applied(tmp_path, orientation, turned, end):
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = photo(6, 9)
    Image.fromarray(pixels).save(tmp_path / f"a.{end}", exif=exif, lossless=True)
    expected = np.rot90(pixels, turned)
    with Image.open(tmp_path / f"a.{end}") as image:
        assert header(image) == (*expected.shape[:2], False)
        np.testing.assert_array_equal(decoded(image, (3, *expected.shape[:2])), expected)


def test_what_is_no_exif_turns_nothing(tmp_path):
    Image.fromarray(photo(6, 9)).save(tmp_path / "a.png", exif=b"Exif\0\0garbage")
    with Image.open(tmp_path / "a.png") as image:
        assert header(image) == (6, 9, False)
        np.testing.assert_array_equal(decoded(image, (3, 6, 9)), photo(6, 9))


# Raw inputs

GREY = Preprocessing((1, 16, 16), mean=(0.3,), std=(0.2,))
COLOUR = Preprocessing((3, 16, 16), mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
VECTORS = Preprocessing((3,))


def test_raw_arrays_of_every_shape_are_what_the_set_gives():
    images = noise(5, 20, 24, 3)
    info = DataInfo("noise", (3, 16, 16), ("a", "b"), mean=COLOUR.mean, std=COLOUR.std)
    assert info.preprocessing == COLOUR
    expected = ArrayDataset(images, np.zeros(5, int), info).__getitems__(range(5))[0]
    assert torch.equal(COLOUR(images), expected)
    assert torch.equal(COLOUR(torch.from_numpy(images)), expected)
    assert torch.equal(COLOUR(list(images)), expected)
    assert torch.equal(COLOUR((images[:2], torch.from_numpy(images[2:]))), expected)
    assert torch.equal(COLOUR(images[3]), expected[3:4])
    read_only = images.copy()
    read_only.flags.writeable = False
    assert torch.equal(COLOUR(read_only), expected)
    assert torch.equal(COLOUR(images[::-1]), expected.flip(0))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_raw_floats_are_what_the_set_gives(dtype):
    images = (noise(5, 20, 24, 1) / 255).astype(dtype)
    info = DataInfo("noise", (1, 16, 16), ("a", "b"), mean=GREY.mean, std=GREY.std)
    native = images.astype(images.dtype.newbyteorder("="))
    expected = ArrayDataset(native, np.zeros(5, int), info).__getitems__(range(5))[0]
    assert torch.equal(GREY(images), expected)
    assert torch.equal(GREY(native[..., 0]), expected)
    assert torch.equal(GREY(native[2, ..., 0]), expected[2:3])
    assert torch.equal(GREY(torch.from_numpy(native).requires_grad_()), expected)


def test_three_axes_are_one_image_if_the_last_is_of_one_or_three_and_else_grey_images():
    assert GREY(noise(20, 20, 1)).shape == (1, 1, 16, 16)
    assert GREY(noise(20, 20, 3)).shape == (1, 1, 16, 16)
    assert GREY(noise(20, 20, 4)).shape == (20, 1, 16, 16)
    assert COLOUR(noise(20, 20, 28)).shape == (20, 3, 16, 16)


def test_vectors_are_taken_one_by_one_or_together():
    points = np.arange(6).reshape(2, 3) / 7
    expected = torch.from_numpy(points).float()
    for given_ in (points, torch.from_numpy(points), list(points), points.tolist(), [points[:1], points[1]]):
        assert torch.equal(VECTORS(given_), expected)
    assert torch.equal(VECTORS([0, 1, 2]), torch.tensor([[0.0, 1.0, 2.0]]))


def test_a_preprocessing_comes_back_from_json():
    for each in (GREY, COLOUR, VECTORS, Preprocessing((1, 8, 8), (0.5,), (0.5,), kept=0.875)):
        content = json.loads(json.dumps(each.to_json()))
        assert Preprocessing.from_json(content) == each
        assert hash(Preprocessing.from_json(content)) == hash(each)


@pytest.mark.parametrize(
    ("preprocessing", "inputs", "message"),
    [
        (GREY, [], "There are no inputs: the list is empty."),
        (
            GREY,
            3,
            "An input must be the name of an image file, an image of Pillow's, an array, a tensor, or a list of those. "
            "Got int instead.",
        ),
        (
            GREY,
            np.zeros((4, 4), int),
            "Pixels must be bytes (uint8), or floats in [0, 1]. Got int64 of shape (4, 4) instead.",
        ),
        (
            GREY,
            np.zeros((2, 3, 4, 5), np.uint8),
            "The channels of images must be the last axis: transpose them to 0, 2, 3, 1. Got uint8 of shape "
            "(2, 3, 4, 5) instead.",
        ),
        (
            GREY,
            np.zeros((2, 4, 4, 4), np.uint8),
            "Images must be (height, width), (height, width, channel), (sample, height, width) or "
            "(sample, height, width, channel), with 1 or 3 channels. Got uint8 of shape (2, 4, 4, 4) instead.",
        ),
        (GREY, np.zeros((0, 4, 4), np.uint8), "There are no pixels. Got uint8 of shape (0, 4, 4) instead."),
        (
            GREY,
            np.array([[0.0, 254.5]]),
            "Floats must be in [0, 1]. Got 0 to 254.5 instead: divide by the largest value possible, or give bytes "
            "(uint8).",
        ),
        (
            GREY,
            np.array([[0.0, np.nan]]),
            "Pixels must be finite, and some are NaN or infinite.",
        ),
        (
            VECTORS,
            np.zeros((5, 2)),
            "Inputs must be vectors of 3 numbers, (3,) or (sample, 3). Got float64 of shape (5, 2) instead.",
        ),
        (
            GREY,
            Image.fromarray(np.zeros((2, 2), np.float32)),
            "The given object cannot be read as an image: its pixels are floats, whose range is unknown: convert it "
            "to 8 or 16 bits.",
        ),
    ],
)
def test_wrong_inputs_are_refused_in_words(preprocessing, inputs, message):
    with pytest.raises(InputError) as caught:
        preprocessing(inputs)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"shape": (2, 8, 8)},
            "The shape of a preprocessing must be (channels, height, width) with 1 or 3 channels, or (features,). Got "
            "(2, 8, 8) instead.",
        ),
        (
            {"shape": (3, 8, 8), "mean": (0.5,), "std": (0.5,)},
            "Inputs of the shape (3, 8, 8) need 3 means and as many positive deviations. Got mean=(0.5,) and "
            "std=(0.5,) instead.",
        ),
        ({"shape": (3,), "kept": 1.5}, "The share of an image that is kept must be in (0, 1]. Got 1.5 instead."),
        (
            {"shape": (3,), "resizing": "nearest"},
            "The resizing must be 'bilinear' or 'bicubic'. Got 'nearest' instead.",
        ),
    ],
)
def test_wrong_fields_are_refused_in_words(fields, message):
    with pytest.raises(InputError) as caught:
        Preprocessing(**fields)
    assert str(caught.value) == message


def test_unknown_fields_in_json_are_refused():
    with pytest.raises(InputError, match=r"^A preprocessing has the fields shape, mean, .* Got shape, size instead\.$"):
        Preprocessing.from_json({"shape": [3], "size": 8})


def test_a_file_that_is_missing_or_no_image_names_itself(tmp_path):
    (tmp_path / "notes.png").write_text("no image")
    (tmp_path / "empty.png").touch()
    for name, reason in {
        "notes.png": "it has no known image format",
        "empty.png": "the file is empty",
        "gone.png": "No such file or directory",
    }.items():
        with pytest.raises(DataError) as caught:
            COLOUR(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name} cannot be read as an image: {reason}."


def test_files_of_every_kind_are_what_the_folder_gives(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photo(40, 64)).save(tmp_path / "turned.jpg", exif=exif)
    Image.fromarray(noise(30, 20).astype(np.uint16) * 257).save(tmp_path / "deep.png")
    with_alpha("RGBA").save(tmp_path / "clear.png")
    files = sorted(map(str, tmp_path.iterdir()))
    info = DataInfo("files", (3, 16, 16), ("a",), COLOUR.mean, COLOUR.std, kept=0.75)
    expected = FolderDataset(files, np.zeros(3, int), info).__getitems__([0, 1, 2])[0]
    assert torch.equal(info.preprocessing(files), expected)
    assert torch.equal(info.preprocessing(Path(files[1])), expected[1:2])
    for index, file in enumerate(files):
        with Image.open(file) as image:
            assert torch.equal(info.preprocessing(image), expected[index : index + 1])


def test_arrays_are_cut_like_images_of_pillow():
    image = photo(300, 400)
    cut = Preprocessing((3, 64, 64), COLOUR.mean, COLOUR.std, kept=0.875)
    grey_level = 1 / 255 / torch.tensor(COLOUR.std)[:, None, None]
    assert ((cut(image) - cut(Image.fromarray(image))).abs() <= 1.01 * grey_level).all()
