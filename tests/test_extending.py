"""The page for contributors runs as it stands, and what it registers is known everywhere."""

from pathlib import Path

import pytest

from ddu import data, load, models
from ddu.detectors import find_method, registry
from ddu.experiments import parse_comparison
from ddu.results import RowFile
from ddu.runs import load_run
from tests.docs.pages import ROOT, run_page

PAGE = ROOT / "docs/extending.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names that the blocks of the page define, run from top to bottom in an empty folder."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((registry, "METHODS"), (data.registry, "SOURCES"), (models._factory, "_ARCHITECTURES")):
            patch.setattr(module, name, getattr(module, name).copy())  # forgotten after these tests
        patch.chdir(tmp_path_factory.mktemp("page"))
        yield run_page(PAGE, {})


def test_the_detector_is_trained_saved_and_loaded_by_name(page):
    run = load_run("runs/stripes")
    assert isinstance(run.detector, page["FeatureNorm"])
    assert isinstance(load("runs/stripes/detector", run.load_model()), page["FeatureNorm"])
    assert find_method("feature_norm") is page["METHOD"]


def test_the_detector_can_be_compared_on_the_new_network_and_data(page, tmp_path):
    content = {
        "data": "stripes",
        "ood": ["mnist_5k"],
        "model": "tiny_net",
        "recipe": {"name": "quick", "epochs": 1},
        "detectors": ["feature_norm", {"feature_norm": {"power": 2.0}}, "softmax"],
    }
    rows = parse_comparison(content).measure(tmp_path / "comparison", progress=False)
    assert {row.detector for row in rows} == {"feature_norm", "feature_norm power=2.0", "softmax"}
    assert {row.status for row in rows} == {"ok"}


def test_the_experiment_measures_once_and_writes_its_page(page):
    (row,) = RowFile("results/brightness/rows.csv").read()
    assert (row.data, row.metric) == ("stripes", "brightness")
    assert page["experiment"].measure("results/brightness") == [row]
    assert "brightness" in Path("results/brightness/table.md").read_text()


def test_the_page_is_linked_from_where_contributors_begin():
    assert "docs/extending.md" in (ROOT / "CONTRIBUTING.md").read_text()
