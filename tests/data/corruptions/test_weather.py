import numpy as np
import pytest

from ddu.data.corruptions import corrupt, severity_constants
from ddu.data.corruptions._frost import frost_textures
from ddu.data.corruptions._image_random import ImageRandom
from ddu.data.corruptions._weather import fog, frost, plasma, snow


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
