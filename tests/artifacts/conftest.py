"""Detectors of one small classifier, saved."""

import shutil

import pytest

import ddu
from tests.artifacts.files import batches, fitted, make_model


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def detector(model):
    return fitted(model)


@pytest.fixture(scope="module")
def newer(model):
    return ddu.DDU(model).fit(batches(seed=5))


@pytest.fixture(scope="module")
def saved(detector, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "detector"
    detector.save(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "detector")
