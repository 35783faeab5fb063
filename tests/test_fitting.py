"""A detector around a network from elsewhere: what `ddu fit` writes is a source that judges as the detector."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image

import ddu
from ddu import data, engines
from ddu.data import Preprocessing
from ddu.engines import Engine, OneByOne, using
from ddu.errors import InputError
from ddu.fitting import FitSpec, fit_detector
from ddu.sources import open_source
from tests.small_networks import CLASSES, PREPROCESSING, draw_images, to_inputs, write_module

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained


def write_set(path, *, seed, count=500, classes=CLASSES):
    images, labels = draw_images(count, seed=seed)
    np.savez(path, x_train=images.numpy(), y_train=labels.numpy(), classes=np.array(classes))


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A working folder with a module, a set to fit and a set to calibrate on."""
    write_module(tmp_path)
    for name, seed in (("train", 1), ("held_out", 2)):
        write_set(tmp_path / f"{name}.npz", seed=seed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "user_models", raising=False)
    return tmp_path


SPEC = FitSpec("user_models:with_preprocessing", "npz:train.npz", calibration="npz:held_out.npz", false_alarm_rate=0.05)


def test_a_fitted_folder_and_its_network_judge_as_a_detector_made_by_hand(workplace):
    fit_detector(SPEC, "detector", command="ddu fit these words")
    assert {path.name for path in (workplace / "detector").iterdir()} == {"source.json", "detector.safetensors"}
    source = open_source("user_models:with_preprocessing", detector="detector")
    by_hand = ddu.DDU(source.detector.model, class_names=CLASSES)
    by_hand.fit([to_inputs(*draw_images(500, seed=1))]).calibrate([to_inputs(*draw_images(500, seed=2))], 0.05)
    images = draw_images(20, seed=3)[0].numpy()
    judged, expected = source.predict(images), by_hand.predict(PREPROCESSING(images))
    torch.testing.assert_close(judged.epistemic, expected.epistemic, rtol=1e-3, atol=1e-4)  # other batches
    assert judged.to_dict()["verdict"] == expected.to_dict()["verdict"]
    written = json.loads((workplace / "detector" / "source.json").read_text())
    assert written["command"] == "ddu fit these words"
    assert written["samples"] == {"fitted": 500, "held_out": 500}
    assert written["calibration"] == "npz:held_out.npz, train"
    assert source.description == {"kind": "detector", **written, "network": "user_models:with_preprocessing"}


class Backwards(Engine):
    """Gives the last result first, as workers elsewhere may."""

    def map(self, function, jobs):
        return reversed(list(OneByOne().map(function, jobs)))


@pytest.mark.parametrize("method", ["ddu", "energy"])
def test_an_engine_fits_in_parts_what_one_process_fits(workplace, monkeypatch, method):
    spec = replace(SPEC, method=method)
    alone = fit_detector(spec, "alone")
    monkeypatch.setattr(engines, "ROWS", 120)
    with using(Backwards()):
        together = fit_detector(spec, "together")
    images = PREPROCESSING(draw_images(20, seed=3)[0].numpy())
    one, two = alone.predict(images), together.predict(images)
    torch.testing.assert_close(two.epistemic, one.epistemic, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(two.p_value, one.p_value)


def test_without_data_to_calibrate_on_a_share_is_held_out_by_the_seed(workplace):
    spec = FitSpec("user_models:with_preprocessing", "npz:train.npz", held_out=0.4, false_alarm_rate=0.05, seed=3)
    parts = spec.load_data()
    everything = data.load("npz:train.npz")
    train, kept = data.split(everything, 0.4, seed=3)
    np.testing.assert_array_equal(parts.held_out.inputs, everything.inputs[kept])
    np.testing.assert_array_equal(parts.train.inputs, everything.inputs[train])
    assert parts.calibration == "40% of npz:train.npz"
    limited = FitSpec("user_models:with_preprocessing", "npz:train.npz", held_out=0.4, limit=100).load_data()
    assert (len(limited.train), len(limited.held_out)) == (60, 40)


def test_the_split_val_of_a_folder_is_what_it_is_calibrated_on(workplace):
    for split, seed in (("train", 1), ("val", 2), ("test", 3)):
        images, labels = draw_images(10 * seed, seed=seed)
        for index, (image, label) in enumerate(zip(images, labels, strict=True)):
            folder = workplace / "squares" / split / CLASSES[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.numpy()).save(folder / f"{index}.png")
    parts = FitSpec("user_models:alone", "folder:squares").load_data()
    assert (len(parts.train), len(parts.held_out), parts.calibration) == (10, 20, "folder:squares, val")


def test_a_network_without_preprocessing_gets_that_of_the_data_or_the_one_given(workplace):
    fit_detector(FitSpec("user_models:alone", "npz:train.npz", false_alarm_rate=0.05), "detector")
    expected = data.load("npz:train.npz").preprocessing
    assert open_source("user_models:alone", detector="detector").preprocessing == expected
    given = Preprocessing((1, 12, 12), (0.3,), (0.2,), resizing="bicubic")
    fit_detector(FitSpec("user_models:alone", "npz:train.npz", preprocessing=given, false_alarm_rate=0.05), "given")
    assert open_source("user_models:alone", detector="given").preprocessing == given


def test_a_network_of_timm_with_its_weights_is_a_source_by_itself(workplace):
    torch.manual_seed(0)
    options = {"num_classes": 2, "in_chans": 1}
    theirs = timm.create_model("test_resnet", **options).eval()
    safetensors.torch.save_file(theirs.state_dict(), "weights.safetensors")
    spec = FitSpec(
        "timm:test_resnet",
        "npz:train.npz",
        preprocessing=Preprocessing((1, 32, 32), (0.4,), (0.3,)),
        method="energy",
        options={"in_chans": 1},
    )
    with pytest.warns(ddu.errors.DDUWarning):  # the weights are random
        detector = fit_detector(spec, "detector", weights="weights.safetensors")
    (workplace / "weights.safetensors").unlink()
    source = open_source("detector")
    images = draw_images(4, seed=3)[0].numpy()
    expected = theirs(Preprocessing((1, 32, 32), (0.4,), (0.3,))(images))
    torch.testing.assert_close(source.predict(images).probs, (expected / detector.temperature).softmax(1))
    assert source.description["network"] == "timm:test_resnet"


def test_the_same_command_does_nothing_again_and_another_is_refused(workplace):
    fit_detector(SPEC, "detector")
    before = (workplace / "detector" / "detector.safetensors").stat().st_mtime_ns
    again = fit_detector(SPEC, "detector", command="from elsewhere")
    assert (workplace / "detector" / "detector.safetensors").stat().st_mtime_ns == before
    assert again.false_alarm_rate == 0.05
    changed = FitSpec(SPEC.network, SPEC.data, calibration=SPEC.calibration, false_alarm_rate=0.02)
    with pytest.raises(InputError, match=r"has false_alarm_rate=0\.05, and this one has false_alarm_rate=0\.02"):
        fit_detector(changed, "detector")
    write_set(workplace / "train.npz", seed=7)
    with pytest.raises(InputError, match="has digest="):
        fit_detector(SPEC, "detector")


def test_a_fit_that_was_stopped_while_it_wrote_is_done_again(workplace):
    fit_detector(SPEC, "detector")
    (workplace / "detector" / "detector.safetensors").unlink()
    fit_detector(SPEC, "detector")
    assert open_source(SPEC.network, detector="detector").false_alarm_rate == 0.05


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "ensemble_mi"}, "ensemble_mi needs 5 networks, and there is one: choose another method."),
        ({"calibration": "npz:other.npz"}, "npz:train.npz has the classes left, right, and npz:other.npz has up, down"),
        ({"data": "two_moons", "calibration": None}, "Inputs of two_moons, (2,), cannot be shown as inputs of the"),
        (
            {"data": "digits", "calibration": None},
            "user_models:with_preprocessing has 2 outputs, and digits has 10 classes: give data with a class for each "
            "output, in their order, or a network with these outputs alone.",
        ),
        (
            {"limit": 1},
            "and the labels of the 1 training samples cover 1 of them; class 0 has none. Add samples of every class, "
            "or raise the limit of 1.",
        ),
        (
            {"network": "user_models:alone", "data": "digits", "calibration": None},
            "(1x64 and 144x8). Give the data that it was trained on, or with --preprocessing the shape that it takes.",
        ),
        (
            {"preprocessing": Preprocessing((3, 12, 12), (0.5,) * 3, (0.5,) * 3)},
            "user_models:with_preprocessing cannot take inputs of 3 x 12 x 12: ",
        ),
        (
            {"network": "user_models:alone", "data": "two_moons", "calibration": None},
            "user_models:alone cannot take two_moons's inputs of 2 numbers: ",
        ),
        ({"false_alarm_rate": 0.0001}, "A false-alarm rate of 0.0001 needs at least"),
        ({"options": {"num_classes": 2}}, "Weights and options are for timm:NAME and torchvision:NAME."),
    ],
)
def test_a_mistake_is_an_error_before_the_pass_and_leaves_no_folder(workplace, monkeypatch, changes, message):
    monkeypatch.setattr(ddu.DDU, "learn_part", lambda *_, **__: pytest.fail("it was fitted"))
    write_set(workplace / "other.npz", seed=1, classes=("up", "down"))
    spec = FitSpec(**{"network": SPEC.network, "data": SPEC.data, "calibration": SPEC.calibration} | changes)
    with pytest.raises(InputError) as caught:
        fit_detector(spec, "detector")
    assert message in str(caught.value)
    assert not (workplace / "detector").exists()
