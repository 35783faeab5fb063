"""Whatever judges raw inputs is opened by one name, and judges as what it was made from."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import ddu
from ddu.detectors import BaseDetector
from ddu.errors import ArtifactError, InputError
from ddu.runs import RunSpec, load_run, train_run
from ddu.sources import DetectorSource, open_source
from ddu.training import RECIPES
from tests.small_networks import (
    CLASSES,
    PREPROCESSING,
    draw_images,
    make_detector,
    make_network,
    to_inputs,
    write_module,
)

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained

SPEC = RunSpec("resffn2_16", "two_moons", RECIPES["two_moons"].with_changes(epochs=1), limit=1500)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "moons"
    train_run(SPEC, folder)
    return folder


@pytest.fixture(scope="module")
def fitted() -> BaseDetector:
    return make_detector()


@pytest.fixture
def workplace(tmp_path, monkeypatch, fitted):
    """A working folder with a module, and a detector fitted to the network that it makes."""
    write_module(tmp_path)
    fitted.save(tmp_path / "detector")
    (tmp_path / "demo" / "run").mkdir(parents=True)
    (tmp_path / "demo" / "run" / "run.json").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "user_models", raising=False)
    return tmp_path


def test_a_run_is_a_source_that_judges_as_the_run(run_folder):
    source, run = open_source(run_folder), load_run(run_folder)
    points = np.array([[0.0, 0.5], [9.0, 9.0], [np.nan, 0.0]], dtype=np.float32)
    judged, expected = source.predict(points), run.predict(points)
    assert judged.to_dict() == expected.to_dict()
    assert judged.to_dict()["verdict"][1:] == ["out_of_distribution", "invalid"]
    assert (source.preprocessing, source.class_names) == (run.preprocessing, run.info.classes)
    assert source.description["kind"] == "run"
    assert source.description["data"] == "two_moons"
    assert source.description["run"] == run.fingerprint
    assert json.loads(json.dumps(source.description)) == source.description


def test_a_network_that_is_named_and_its_detector_are_a_source(workplace, fitted):
    source = open_source("user_models:with_preprocessing", detector="detector")
    images, _ = draw_images(6, seed=3)
    expected = fitted.predict(PREPROCESSING(images.numpy()))
    assert source.predict(images.numpy()).to_dict() == expected.to_dict()
    assert source.class_names == CLASSES
    assert isinstance(source, DetectorSource)
    assert str(workplace) not in sys.path


def test_another_rate_needs_no_data(workplace):
    source = open_source("user_models:with_preprocessing", detector="detector")
    assert source.false_alarm_rate == 0.05
    source.set_false_alarm_rate(0.5)
    images, _ = draw_images(200, seed=4)
    flagged = np.mean(source.predict(images.numpy()).verdict == "out_of_distribution")
    assert 0.35 < flagged < 0.65


def test_sources_that_may_judge_differently_have_different_fingerprints(workplace, fitted):
    once = open_source("user_models:with_preprocessing", detector="detector").fingerprint
    assert open_source("user_models:with_preprocessing", detector="detector").fingerprint == once
    ddu.load("detector", fitted.model).calibrate([to_inputs(*draw_images(301, seed=2))], 0.05).save("other")
    assert open_source("user_models:with_preprocessing", detector="other").fingerprint != once


def test_a_network_with_other_weights_than_the_detectors_is_refused(workplace, fitted):
    network = make_network()
    with torch.no_grad():
        next(network.parameters()).mul_(1.01)
    ddu.DDU(network).fit([to_inputs(*draw_images(400, seed=1))]).save("other")
    with pytest.raises(ArtifactError, match="load the weights it was fitted to, or fit again"):
        open_source("user_models:with_preprocessing", detector="other")


@pytest.mark.parametrize(
    ("name", "detector", "message"),
    [
        ("nowhere", None, "There is no folder nowhere: name a run, a fitted detector or a bundle; or module:function."),
        ("model.pt", None, "model.pt would have to be unpickled, which runs whatever code is in the file."),
        ("detector", None, "detector has a detector alone, and its network is not known: name that as module:function"),
        (".", None, "There is nothing in . that judges inputs: it has none of source.json, run.json, model.onnx."),
        ("demo", None, "it has none of source.json, run.json, model.onnx. Did you mean demo/run?"),
        ("timm:resnet18", None, "timm:resnet18 has no weights and no detector: `ddu fit timm:resnet18 --weights FILE"),
        ("user_models:alone", None, "user_models:alone is a network alone: add the folder of its detector with"),
        ("user_models:alone", "detector", "How user_models:alone wants to be shown an input is unknown: return "),
        (
            "user_models:with_another_shape",
            "detector",
            "user_models:with_another_shape cannot take inputs of 1 x 8 x 8: ",
        ),
        ("user_models:alon", "detector", "user_models has no function 'alon'. Did you mean 'alone'?"),
        ("user_models:broken", "detector", "user_models:broken() raised RuntimeError('no weights here')"),
        ("user_models:number", "detector", "user_models:number must return a network, an nn.Module, or (network, "),
        ("user_models:wants_an_argument", "detector", "it must return a network without arguments."),
        ("no_such_module:make", "detector", "There is no module 'no_such_module' in the working folder, nor anywhere"),
        ("timm:resnet18", "detector", "open detector by itself."),
        ("user_models:with_preprocessing", "nowhere", "There is no folder nowhere: give the folder of a detector."),
        ("user_models:alone", "nowhere", "There is no folder nowhere: give the folder of a detector."),
        ("user_models:alone", "demo", "There is no detector in demo: it has no detector.safetensors."),
        ("user_models:alone", "bundle", "bundle is an exported bundle, which has its network: open bundle by itself."),
        ("detector", "detector", "detector is a folder: --detector is for a network, named as module:function."),
    ],
)
def test_what_is_no_source_is_answered_with_the_way_out(workplace, name, detector, message):
    Path("bundle").mkdir()
    Path("bundle/model.onnx").touch()
    with pytest.raises((InputError, ArtifactError)) as caught:
        open_source(name, detector=detector)
    assert message in str(caught.value)


def test_a_file_does_not_choose_code_to_run(workplace):
    described = {"network": {"name": "user_models:alone", "options": {}}, "preprocessing": PREPROCESSING.to_json()}
    (workplace / "detector" / "source.json").write_text(json.dumps(described | {"data": "squares"}))
    with pytest.raises(NotImplementedError) as caught:
        open_source("detector")
    assert str(caught.value) == (
        "detector was fitted around your own function user_models:alone, and ddu runs no code that a file names: type "
        "`user_models:alone --detector detector` in place of `detector`."
    )
    assert "user_models" not in sys.modules
    source = open_source("user_models:alone", detector="detector")  # with the folder's preprocessing
    assert source.preprocessing == PREPROCESSING
    assert source.description["data"] == "squares"


def test_a_damaged_description_is_refused(workplace):
    (workplace / "detector" / "source.json").write_text("{}")
    with pytest.raises(ArtifactError, match="does not describe a detector of this ddu: fit it again"):
        open_source("detector")
