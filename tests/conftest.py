"""Fixtures for all tests, and the state that each of them starts from."""

import os
import random
import signal
import zlib
from pathlib import Path

# Before torch is imported, here and in child processes: two workers share two cores, so each has one thread, and one
# that waits for another sleeps
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

import numpy as np
import pytest
import torch

# A shell that starts the tests in the background has them, and every child process, ignore Ctrl-C
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    config.option.randomly_reset_seed = False  # pytest-randomly is for the order alone


def _seed(value: int) -> None:
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002
    torch.default_generator.manual_seed(value)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    """A fixture draws the same random numbers whichever test asks for it first, and others than the test itself."""
    _seed(zlib.crc32(fixturedef.argname.encode()))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """A test draws the same random numbers whatever ran before it."""
    _seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "real_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_data)


@pytest.fixture(scope="session")
def whole_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `make demo` leaves the whole demo, most of a minute: once for all workers of pytest-xdist."""
    from ddu.experiments.demo import Demo

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "whole_demo"
    Demo().measure(folder)  # a second worker waits for the first, and finds it done
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the real data sets; tests that ask for it are skipped where it is absent."""
    beside_the_repository = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("DDU_DATA", beside_the_repository))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set DDU_DATA to the folder that holds it")
    return folder
