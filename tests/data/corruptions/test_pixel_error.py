import numpy as np
import pytest

from ddu.data.corruptions import PixelErrorTable, corrupt, pixel_error_table
from ddu.data.corruptions import _parallel as parallel
from ddu.errors import InputError


def test_errors_are_mean_absolute_differences(images, monkeypatch):
    monkeypatch.setattr(parallel, "CHUNK", 3)
    table = pixel_error_table(images, corruptions=["fog", "shot_noise"], seed=3, workers=1)
    assert list(table.errors) == ["fog", "shot_noise"]
    for name, row in table.errors.items():
        changes = [corrupt(images, name, s, seed=3).astype(float) - images for s in range(1, 6)]
        assert row == pytest.approx([np.abs(change).mean() for change in changes], rel=1e-12)


def test_rows_that_do_not_rise_are_named_with_the_severities_where_they_fall():
    table = PixelErrorTable({"fog": (1, 2, 3, 4, 5), "frost": (3, 2, 3, 3, 4), "snow": (5, 4, 3, 2, 1)})
    assert table.not_rising == {"frost": (2, 4), "snow": (2, 3, 4, 5)}


def test_the_table_is_markdown():
    table = PixelErrorTable({"fog": (1, 2.06, 3, 4, 50), "frost": (3, 2, 3, 3, 4)})
    assert table.to_markdown() == (
        "| corruption | 1 | 2 | 3 | 4 | 5 | rises |\n"
        "|---|---|---|---|---|---|---|\n"
        "| fog | 1.0 | 2.1 | 3.0 | 4.0 | 50.0 | yes |\n"
        "| frost | 3.0 | 2.0 | 3.0 | 3.0 | 4.0 | no |\n"
    )


def test_no_images_have_no_mean():
    with pytest.raises(InputError) as caught:
        pixel_error_table(np.zeros((0, 32, 32, 3), np.uint8))
    assert str(caught.value) == "There are no images to corrupt."


def test_fewer_than_one_worker_is_refused(images):
    with pytest.raises(InputError) as caught:
        pixel_error_table(images, workers=0)
    assert str(caught.value) == "The number of workers must be at least 1. Got 0."
