"""The sheet of samples."""

import numpy as np
from PIL import Image

from ddu.data.dirty_mnist_format import read_arrays
from ddu.dirty_mnist import draw_samples


def test_the_sheet_holds_images_of_the_set(made, tmp_path):
    draw_samples(made, tmp_path / "samples.png", columns=4, rows=3)
    sheet = np.asarray(Image.open(tmp_path / "samples.png"))
    images = read_arrays(made, "test")[0]["images"][..., 0]
    first = sheet[6 : 6 + 84 : 3, 6 : 6 + 84 : 3]  # three pixels a side for one
    assert (images == first).all((1, 2)).sum() == 1
    assert sheet.shape == (6 + 3 * (84 + 18 + 6), 6 + 4 * (84 + 6))


def test_the_same_seed_draws_the_same_sheet_and_another_seed_another(made, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        draw_samples(made, tmp_path / f"{name}.png", seed=seed)
    a, b, c = (np.asarray(Image.open(tmp_path / f"{name}.png")) for name in "abc")
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()
