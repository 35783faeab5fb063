"""A detector, and the folder that it was exported to; an export takes seconds, so that tests share it."""

from pathlib import Path

import pytest

import ddu
from tests.small_networks import PREPROCESSING, draw_images, make_detector


@pytest.fixture(scope="session")
def detector() -> ddu.DDU:
    return make_detector()


@pytest.fixture(scope="session")
def exported(detector, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    images, _ = draw_images(40, seed=3)
    detector.export(folder, images.numpy(), preprocessing=PREPROCESSING, description={"data": "ramps"})
    return folder
