"""Fixtures for all tests."""

import os
from pathlib import Path

# Before torch is imported, here and in child processes: on arrays this small a second thread only waits for the first
os.environ["OMP_NUM_THREADS"] = "1"

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "real_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_data)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the real data sets; tests that ask for it are skipped where it is absent."""
    beside_the_repository = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DDU_DATA", beside_the_repository))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set DDU_DATA to the folder that holds it")
    return folder
