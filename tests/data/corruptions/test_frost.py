import numpy as np

from ddu.data.corruptions import _frost
from ddu.data.corruptions._frost import feathers, frost_textures


def test_textures_are_made_once_and_always_the_same():
    assert frost_textures() is frost_textures()
    assert not frost_textures().flags.writeable
    again = _frost._texture(np.random.default_rng((_frost._SEED, 1)))
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
