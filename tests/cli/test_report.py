"""`ddu report`."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ddu.errors import NotSupportedError
from ddu.experiments import ReportedSource
from ddu.runs import RunSpec, train_run
from ddu.sources import open_source
from ddu.training import RECIPES
from tests.small_networks import CLASSES, draw_images, make_detector, write_module

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "moons"
    recipe = RECIPES["two_moons"].with_changes(epochs=1)
    train_run(RunSpec("resffn2_16", "two_moons", recipe, limit=1500), folder)
    return folder


@pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning")
def test_the_command_writes_one_page_and_tells_what_it_does(command, folder, tmp_path):
    code, printed, said = command(
        "report", str(folder), "-o", str(tmp_path / "pages" / "report.html"), "--samples", "2"
    )
    assert code == 0
    assert f"See it in a browser: {tmp_path}/pages/report.html" in printed
    assert "Judge the test set: 2,000 inputs" in said
    page = (tmp_path / "pages" / "report.html").read_text(encoding="utf-8")
    assert "resffn2_16+sn on two_moons" in page
    assert f"<code>ddu report {folder}" in page


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A working folder with a network from elsewhere, its detector and data with labels."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "user_models", raising=False)
    write_module(tmp_path)
    make_detector().save("detector")
    for name, seed in (("held_out", 3), ("new", 4)):
        images, labels = draw_images(200, seed=seed)
        np.savez(f"{name}.npz", x_test=images.numpy(), y_test=labels.numpy(), classes=np.array(CLASSES))


NETWORK = ("user_models:with_preprocessing", "--detector", "detector")


def test_a_network_from_elsewhere_is_reported_on_data_that_is_named(command, elsewhere):
    code, printed, said = command("report", *NETWORK, "--data", "npz:held_out.npz", "--ood", "noise", "--samples", "2")
    assert code == 0, said
    assert "See it in a browser: report.html" in printed
    assert "Judge the test set: 200 inputs" in said
    page = Path("report.html").read_text(encoding="utf-8")
    assert "user_models:with_preprocessing on npz:held_out.npz" in page
    assert "the numbers hold if there are none among them" in page
    for title in ("Is the detector fit for its work?", "Is unknown told from known?", "Inputs to look at"):
        assert title in page
    assert "<h2>Training</h2>" not in page
    # The numbers are those of the detector
    source = open_source("user_models:with_preprocessing", detector="detector")
    images, labels = draw_images(200, seed=3)
    right = float((source.predict(images.numpy()).label == labels).double().mean())
    assert f"<dt>of test inputs predicted right</dt><dd>{right:.1%}".replace("%", " %") in page


def test_a_run_stands_beside_a_network_from_elsewhere(command, folder, elsewhere):
    code, _, said = command("report", str(folder), *NETWORK, "--data", "npz:new.npz", "--samples", "1")
    assert code == 0, said
    page = Path("report.html").read_text(encoding="utf-8")
    assert "2 detectors side by side" in page
    assert "moons, detector." in page


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (NETWORK, "user_models:with_preprocessing is no run of `ddu train`, so its test set is not known: name one wi"),
        (("RUN", "--data", "digits"), "A run is tested on its own test set: leave out --data."),
        (("RUN", "--detector", "detector"), "--detector is for a network, named as module:function: leave it out."),
        (
            ("user_models:alone", "--data", "digits"),
            "user_models:alone is a network alone: add the folder of its detec",
        ),
        ((*NETWORK, "--data", "digits"), "user_models:with_preprocessing has the classes left, right (2), and digits"),
        (("detector", "--data", "digits"), "detector has a detector alone, and its network is not known"),
    ],
)
def test_what_cannot_be_reported_is_refused_with_the_way_out(command, folder, elsewhere, arguments, complaint):
    code, _, said = command("report", *(str(folder) if one == "RUN" else one for one in arguments))
    assert code == 1
    assert complaint in said
    assert not Path("report.html").exists()


def test_a_bundle_is_refused_since_a_graph_gives_no_logits():
    with pytest.raises(NotSupportedError, match="bundle is an exported graph, which has no logits to report on: name"):
        ReportedSource(SimpleNamespace(name="bundle"), "digits")


def test_a_folder_without_a_run_is_an_error_of_one_line(command, tmp_path):
    code, _, said = command("report", str(tmp_path), "-o", str(tmp_path / "report.html"))
    assert code == 1
    assert said.startswith(f"There is nothing in {tmp_path} that judges inputs: it has none of source.json, run.json")
    assert not (tmp_path / "report.html").exists()
