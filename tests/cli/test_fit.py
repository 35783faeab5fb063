"""`ddu fit` as a user meets it: a network from elsewhere, its detector, and what that says of new inputs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ddu.data import Preprocessing
from ddu.errors import DDUWarning
from ddu.sources import open_source
from tests.small_networks import CLASSES, PREPROCESSING, draw_images, write_module

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    write_module(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "user_models", raising=False)
    for name, seed in (("train", 1), ("held_out", 2)):
        images, labels = draw_images(400, seed=seed)
        np.savez(f"{name}.npz", x=images.numpy(), y=labels.numpy(), classes=np.array(CLASSES))
    np.save("new.npy", np.concatenate([draw_images(2, seed=3)[0].numpy(), np.zeros((1, 12, 12), np.uint8)]))


FIT = ("--data", "npz:train.npz", "--output", "detector", "--false-alarm-rate", "0.05")


def test_a_network_is_fitted_reported_and_judges(command):
    code, out, err = command("fit", "user_models:alone", *FIT, "--calibration", "npz:held_out.npz")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert "false-alarm rate 0.05" in words
    assert "Judge inputs: ddu predict user_models:alone INPUTS --detector detector" in words
    accuracy = float(words.partition("accuracy on them ")[2].split()[0])
    assert 0.8 < accuracy < 1
    assert json.loads(Path("detector/source.json").read_text())["command"].startswith(
        "ddu fit user_models:alone --data"
    )
    code, out, _ = command("predict", "user_models:alone", "new.npy", "--detector", "detector")
    assert code == 0
    assert "3 inputs: " in out


@pytest.mark.slow
def test_two_processes_fit_the_detector_that_one_fits(command):
    arguments = ["fit", "user_models:alone", *FIT, "--calibration", "npz:held_out.npz"]
    assert command(*arguments)[0] == 0
    alone = open_source("user_models:alone", detector="detector").predict(np.load("new.npy"))
    shutil.rmtree("detector")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ddu"]
    path = os.pathsep.join([str(Path.cwd()), *sys.path])
    done = subprocess.run(
        [*torchrun, *arguments], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The detector is in") == 1, "only one of the processes reports"
    together = open_source("user_models:alone", detector="detector").predict(np.load("new.npy"))
    assert list(together.verdict) == list(alone.verdict)
    np.testing.assert_allclose(together.epistemic, alone.epistemic, rtol=1e-5)
    np.testing.assert_array_equal(together.p_value, alone.p_value)


def test_examples_are_kept_by_option_and_a_fitted_detector_is_given_them_later(command):
    assert command("fit", "user_models:alone", *FIT)[0] == 0
    assert open_source("user_models:alone", detector="detector").examples is None
    fitted = Path("detector/detector.safetensors").read_bytes()
    assert command("fit", "user_models:alone", *FIT, "--keep-examples", "30")[0] == 0
    kept = open_source("user_models:alone", detector="detector").examples
    assert kept is not None
    assert len(kept.labels) == 30
    assert Path("detector/detector.safetensors").read_bytes() == fitted
    whole = Path("detector/examples.safetensors").read_bytes()
    Path("detector/examples.safetensors").write_bytes(whole[:100])
    with pytest.warns(DDUWarning, match="cannot be read"):
        assert command("fit", "user_models:alone", *FIT, "--keep-examples", "30")[0] == 0
    assert Path("detector/examples.safetensors").read_bytes() == whole, "a damaged file is written again"
    code, _, err = command("fit", "user_models:alone", *FIT[:2], "--output", "other", "--keep-examples", "5000")
    assert (code, err) == (1, "Between 1 and 2,000 training examples can be kept. Got 5,000 instead.\n")
    assert not Path("other").exists()


def test_the_preprocessing_is_the_networks_the_datas_or_that_of_a_file(command):
    own = Preprocessing((1, 12, 12), (0.25,), (0.5,))
    Path("own.json").write_text(json.dumps(own.to_json()))
    for name, given, expected in (
        ("with_preprocessing", (), PREPROCESSING),
        ("with_preprocessing", ("--preprocessing", "own.json"), own),
        ("with_preprocessing", ("--preprocessing", "data"), Preprocessing((1, 12, 12), (0.459,), (0.226,))),
        ("alone", (), Preprocessing((1, 12, 12), (0.459,), (0.226,))),
    ):
        output = f"{name}{''.join(given)}"
        arguments = (*FIT[:2], "--output", output, *FIT[4:], *given)
        assert command("fit", f"user_models:{name}", *arguments)[0] == 0
        assert open_source(f"user_models:{name}", detector=output).preprocessing == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("user_models:alone", "--preprocessing", "nowhere.json"), "--preprocessing must be data, or a JSON file of a"),
        (("user_models:alone", "--data", "npz:nowhere.npz"), "There is no file nowhere.npz"),
        (("user_models:alone", "--data", "digits"), "user_models:alone cannot take digits's inputs of 1 x 8 x 8: "),
        (("user_models:alone", "--held-out", "2"), "The share of a split must lie between 0 and 1. Got 2.0 instead."),
        (("user_models:alone", "--method", "dddu"), "There is no method 'dddu'. Did you mean 'ddu'?"),
        (("user_models:alone", "--false-alarm-rate", "0.001"), "A false-alarm rate of 0.001 needs at least"),
        (("timm:resnet18",), "timm:resnet18 has random weights: give the trained ones, a safetensors file, with"),
        (("timm:resnet18", "--weights", "weights.pth"), "weights.pth would have to be unpickled"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(command, arguments, message):
    code, _, err = command("fit", arguments[0], *FIT, *arguments[1:])
    assert code == 1
    assert message in err
    assert len(err.splitlines()) == 1
    assert not Path("detector").exists()


def test_help_has_examples(command):
    code, out, _ = command("fit", "--help")
    assert code == 0
    assert "ddu fit my_models:make --data folder:photos/train" in out
