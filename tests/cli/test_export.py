"""`ddu export` from a run to a bundle."""

from pathlib import Path

import numpy as np
import pytest

from ddu.bundles import Bundle
from ddu.runs import RunSpec, load_run, train_run
from ddu.training import RECIPES
from tests.export.conftest import detector as detector

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained


def test_help_of_export_has_examples(command):
    code, printed, _ = command("export", "--help")
    assert code == 0
    for words in ("--output", "--detector", "--inputs", "ddu export runs/mnist --output bundle"):
        assert words in printed


def test_a_bundle_is_not_exported_again(command, tmp_path, monkeypatch):
    monkeypatch.setattr("ddu.cli.export.open_source", lambda name, detector: Bundle.__new__(Bundle))
    code, _, complaint = command("export", "bundle", "--output", str(tmp_path / "again"))
    assert code == 1
    assert complaint == "bundle is exported already: name what it was exported from.\n"


@pytest.mark.parametrize("name", ["absent.npy", "objects.npy"])
def test_inputs_that_cannot_be_read_are_named_and_nothing_is_written(command, detector, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    detector.save("detector")
    given = [
        "tests.small_networks:with_preprocessing",
        "--detector",
        "detector",
        "--output",
        "bundle",
        "--inputs",
        name,
    ]
    code, _, complaint = command("export", *given)
    assert code == 1
    assert complaint.startswith(f"{name} cannot be read as an array: ")
    assert not Path("bundle").exists()


def test_examples_that_nobody_kept_are_not_exported(command, detector, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    detector.save("detector")
    source = "tests.small_networks:with_preprocessing"
    code, _, complaint = command("export", source, "--detector", "detector", "-o", "bundle", "--with-examples")
    assert code == 1
    assert complaint == f"No examples are kept beside the detector of {source}: fit it with --keep-examples.\n"
    assert not Path("bundle").exists()


@pytest.mark.slow
def test_a_run_becomes_a_bundle_checked_on_its_held_out_inputs(command, tmp_path):
    spec = RunSpec("resffn2_16", "two_moons", RECIPES["two_moons"].with_changes(epochs=1), limit=1500)
    train_run(spec, tmp_path / "run", examples=10)
    code, printed, _ = command("export", str(tmp_path / "run"), "--output", str(tmp_path / "bundle"), "--with-examples")
    assert code == 0
    for words in ("Largest differences from PyTorch", "given", "far out", "model.onnx"):
        assert words in printed
    bundle, run = Bundle(tmp_path / "bundle"), load_run(tmp_path / "run")
    assert bundle.examples is not None
    assert len(bundle.examples.labels) == 10
    assert bundle.description["kind"] == "bundle"
    points = np.array([[0.0, 0.5], [1.0, 0.0], [9.0, 9.0], [np.nan, 0.0]], dtype=np.float32)
    found, known = bundle.predict(points).to_dict(), run.predict(points).to_dict()
    assert found["verdict"] == known["verdict"]
    assert found["label"] == known["label"]
    assert found["reason"] == ["", "", "", "it has NaN or infinity"]
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert "on two_moons, with ddu" in card
    assert "| test accuracy | " in card
