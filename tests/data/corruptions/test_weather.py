import numpy as np
import pytest
from scipy import ndimage

from ddu.data.corruptions import corrupt, severity_constants, weather
from ddu.data.corruptions.images import ImageRandom
from ddu.data.corruptions.weather import (
    MUD,
    canny,
    drops,
    edge_distance,
    equalised,
    feathers,
    fog,
    frost,
    frost_textures,
    plasma,
    snow,
    spatter,
)


def seeded(name: str, count: int) -> ImageRandom:
    return ImageRandom(0, name, 1, 0, count)


def reference_plasma(displacement: np.ndarray, decay: float) -> np.ndarray:
    """Diamond-square on a torus, point by point."""
    size = len(displacement)
    field = np.zeros((size, size))
    step, amplitude = size, 1.0
    while step > 1:
        half = step // 2
        for row in range(half, size, step):
            for column in range(half, size, step):
                corners = [field[(row + i) % size, (column + j) % size] for i in (-half, half) for j in (-half, half)]
                field[row, column] = np.mean(corners) + amplitude * displacement[row, column]
        for row in range(0, size, half):
            for column in range(0, size, half):
                if (row + column) // half % 2:
                    near = [(row - half, column), (row + half, column), (row, column - half), (row, column + half)]
                    mean = np.mean([field[i % size, j % size] for i, j in near])
                    field[row, column] = mean + amplitude * displacement[row, column]
        step, amplitude = half, amplitude / decay**2
    return (field - field.min()) / (field.max() - field.min())


@pytest.mark.parametrize("decay", [1.75, 3.0])
def test_plasma_is_diamond_square(decay):
    fields = plasma(seeded("fog", 3), 16, decay)
    displacements = seeded("fog", 3).uniform(-1, 1, 16, 16)
    for field, displacement in zip(fields, displacements, strict=True):
        np.testing.assert_allclose(field, reference_plasma(displacement, decay), atol=1e-5)
    assert (fields.min(axis=(1, 2)) == 0).all()
    assert (fields.max(axis=(1, 2)) == 1).all()


def test_a_larger_decay_is_smoother():
    roughness = [np.abs(np.diff(plasma(seeded("fog", 20), 32, decay), axis=1)).mean() for decay in (1.75, 2, 2.5, 3)]
    assert roughness == sorted(roughness, reverse=True)


def test_fog_is_its_formula(x):
    field = plasma(seeded("fog", len(x)), 32, 2.0)[..., None].astype(np.float64)
    dim = 0.8 * x.astype(np.float64)
    expected = (dim + field) * 0.8 / (0.8 + 1)  # the largest value of each image is 0.8
    np.testing.assert_allclose(
        fog(np.float32(0.8) * x, seeded("fog", len(x)), amount=1, decay=2.0), expected, atol=1e-6
    )


def test_frost_adds_a_crop_of_a_texture(x):
    crops = (frost(x, seeded("frost", len(x)), image_weight=0.75, frost_weight=0.45) - 0.75 * x) / 0.45
    tiled = np.pad(frost_textures(), ((0, 0), (0, 31), (0, 31), (0, 0)), mode="wrap")
    windows = np.lib.stride_tricks.sliding_window_view(tiled[..., 0], (32, 32), axis=(1, 2))
    places = set()
    for crop in crops:
        near = np.abs(windows[..., 0, 0] - crop[0, 0, 0]) + np.abs(windows[..., 31, 31] - crop[31, 31, 0]) < 1e-5
        exact = [at for at in np.argwhere(near) if np.abs(windows[tuple(at)] - crop[..., 0]).max() < 1e-5]
        assert len(exact) == 1
        places.add(tuple(exact[0]))
    assert len(places) == len(x)
    assert len({texture for texture, _, _ in places}) > 1


CALM = {"zoom_factor": 1, "radius": 8, "sigma": 3.0}


def test_without_flakes_snow_whitens_the_scene(x):
    scene = snow(x, seeded("snow", len(x)), mean=0.1, std=0.2, cutoff=9, image_weight=0.8, **CALM)
    grey = x.astype(np.float64) @ [0.299, 0.587, 0.114]
    expected = 0.8 * x + 0.2 * np.maximum(x, 1.5 * grey[..., None] + 0.5)
    np.testing.assert_allclose(scene, expected, atol=1e-6)


def test_flakes_are_the_same_when_the_layer_is_turned_by_half():
    black = np.zeros((5, 32, 32, 3), np.float32)
    flakes = snow(black, seeded("snow", 5), mean=0.1, std=0.2, cutoff=0.5, image_weight=1, **CALM)
    assert flakes.max() > 0.05
    np.testing.assert_allclose(flakes, flakes[:, ::-1, ::-1], atol=1e-6)
    np.testing.assert_array_equal(flakes[..., 0], flakes[..., 2])


def test_flakes_are_drawn_out_along_their_fall():
    black = np.zeros((50, 32, 32, 3), np.uint8)
    layer = corrupt(black, "snow", 2).astype(np.float64)
    across, along = np.abs(np.diff(layer, axis=2)).mean(), np.abs(np.diff(layer, axis=1)).mean()
    assert across > 1.5 * along


def test_as_many_flakes_fall_as_exceed_the_cut_off():
    constants = severity_constants("snow", 2)
    layer = 0.1 + 0.2 * seeded("snow", 50).normal(32, 32).astype(np.float64)
    expected = 2 * np.where(layer < 0.5, 0, np.clip(layer, 0, 1)).mean()
    black = np.zeros((50, 32, 32, 3), np.float32)
    flakes = snow(black, seeded("snow", 50), **{**constants, "image_weight": 1})
    # Streaks conserve light but for what crosses the border
    assert flakes.mean() == pytest.approx(expected, rel=0.1)


# Frost


def test_textures_are_made_once_and_always_the_same():
    assert frost_textures() is frost_textures()
    assert not frost_textures().flags.writeable
    again = weather._texture(np.random.default_rng((weather._SEED, 1)))
    np.testing.assert_array_equal(frost_textures()[1], again)


def test_textures_are_bluish_white_on_dark_and_differ():
    textures = frost_textures()
    assert textures.shape == (5, 200, 200, 3)
    assert textures.dtype == np.float32
    assert textures.min() >= 0
    assert textures.max() <= 1
    red, green, blue = np.moveaxis(textures, -1, 0)
    assert (red <= green).all()
    assert (green <= blue).all()
    for texture in textures:
        grey = texture.mean(axis=-1)
        assert (grey > 0.8).mean() > 0.05  # ice
        assert (grey < 0.4).mean() > 0.1  # bare glass
    assert np.abs(textures[0] - textures[1]).mean() > 0.05


def test_opposite_borders_meet():
    textures = frost_textures()
    for axis in (1, 2):
        inside = np.abs(np.diff(textures, axis=axis)).mean()
        across = np.abs(textures.take(0, axis) - textures.take(-1, axis)).mean()
        assert across < 2 * inside


def test_feathers_branch():
    points = feathers(np.random.default_rng(0), 1000.0)
    # An arm alone has dimension 1; branches and twigs fill the plane between 1 and 2 (box counting)
    boxes = [len(np.unique(np.floor(points / size), axis=0)) for size in (4, 16)]
    dimension = np.log(boxes[0] / boxes[1]) / np.log(4)
    assert 1.2 < dimension < 2


# Spatter


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
