"""A source around a small network, and images for it."""

from pathlib import Path

import pytest
from PIL import Image

from ddu.sources import DetectorSource
from tests.small_networks import PREPROCESSING, draw_images, make_detector


@pytest.fixture(scope="session")
def source() -> DetectorSource:
    return DetectorSource("small", make_detector(), PREPROCESSING, "0123456789ab", {"kind": "detector"})


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A working folder with `photos/`: 7 images in two subfolders, and 2 files that are no images."""
    monkeypatch.chdir(tmp_path)
    names = []
    for index, image in enumerate(draw_images(7, seed=3)[0]):
        path = Path("photos", "ba"[index % 2], f"{index}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.numpy()).save(path)
        names.append(str(path))
    Path("photos", "notes.txt").write_text("no image")
    Path("photos", "a", "table.csv").write_text("no image either")
    return sorted(names)
