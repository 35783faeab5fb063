import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddu.data.corruptions import CORRUPTIONS, PixelErrorTable, corrupt, generation, pixel_error_table
from ddu.errors import InputError


def test_errors_are_mean_absolute_differences(images, monkeypatch):
    monkeypatch.setattr(generation, "CHUNK", 3)
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


ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "corruptions.md").read_text()


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("corruptions_page", ROOT / "scripts" / "corruptions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documented_rows() -> dict[str, tuple[list[float], bool]]:
    """Each corruption's errors in the docs, and whether they are said to rise."""
    rows = re.findall(r"^\| (\w+) \| ([\d.| ]+) \| (yes|no) \|$", PAGE, flags=re.MULTILINE)
    return {name: ([float(error) for error in errors.split("|")], rises == "yes") for name, errors, rises in rows}


def test_the_docs_have_every_row_and_a_reason_for_each_that_does_not_rise():
    rows = documented_rows()
    assert tuple(rows) == CORRUPTIONS
    explained = dict(re.findall(r"^- \*\*(\w+)\*\* \(falls at [\d, ]+\): (.+)$", PAGE, flags=re.MULTILINE))
    assert list(explained) == [name for name, (_, rises) in rows.items() if not rises]
    assert explained == load_script().REASONS


def test_a_row_that_falls_without_a_reason_is_not_documented():
    with pytest.raises(SystemExit) as caught:
        load_script().page(PixelErrorTable({"fog": (2, 1, 3, 4, 5), "frost": (2, 1, 3, 4, 5)}), 10)
    assert str(caught.value) == "No reason is given why the pixel error falls: fog."


def test_the_docs_say_what_is_measured_on_cifar_10(real_data):
    with np.load(real_data / "cifar10.npz") as arrays:
        images = arrays["x_test"][:120]
    table = pixel_error_table(images, workers=1)
    for name, (shown, _) in documented_rows().items():
        # 120 images stand for 10,000, so that a mean may be off by several per cent
        assert table.errors[name] == pytest.approx(shown, rel=0.12, abs=0.1), name
    # What noise in the mean cannot turn round
    assert set(table.not_rising) >= {"elastic_transform", "frost", "glass_blur", "saturate", "spatter"}
