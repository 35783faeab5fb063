"""`ddu train` as a user meets it."""

import json
import os

import pytest

from ddu.detectors import list_methods
from ddu.runs import load_run
from ddu.sources import open_source

MOONS = ("train", "--model", "resffn2_16", "--data", "two_moons", "--recipe", "two_moons", "--accelerator", "cpu")


def test_a_run_is_trained_reported_and_not_repeated(command, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda descriptor: False)
    arguments = (*MOONS, "--set", "epochs=2", "--spectral-norm", "none", "--output", str(tmp_path / "run"))
    code, out, err = command(*arguments)
    assert code == 0
    assert "test accuracy" in out
    assert err.startswith("epoch 2 of 2: loss ")
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    assert written["command"] == "ddu " + " ".join(arguments)
    assert written["spec"]["options"]["spectral_norm"] is None
    assert written["spec"]["recipe"]["epochs"] == 2
    seconds = json.loads((tmp_path / "run" / "metrics.json").read_text())["seconds"]
    assert open_source(tmp_path / "run").examples is None
    assert command(*arguments, "--keep-examples", "12")[0] == 0  # a finished run is given them
    kept = open_source(tmp_path / "run").examples
    assert kept is not None
    assert len(kept.labels) == 12
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["seconds"] == seconds


def test_options_of_the_network_and_its_head_can_be_set(command, tmp_path):
    chosen = ("--option", "dropout=0.1", "--option", "head_options.length_scale=2", "--set", "epochs=1")
    arguments = (*MOONS, "--recipe", "duq_two_moons", *chosen, "--output", str(tmp_path / "run"))
    assert command(*arguments)[0] == 0
    options = json.loads((tmp_path / "run" / "run.json").read_text())["spec"]["options"]
    assert options["dropout"] == 0.1
    recipe = {"embedding_size": 10, "momentum": 0.99, "initial_count": 20.0}
    assert options["head_options"] == {**recipe, "length_scale": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "epoch=2"), "A recipe has no field 'epoch'. Did you mean 'epochs'?"),
        (("--set", "epochs=two"), "The recipe's epochs must be an integer. Got 'two' instead."),
        (("--set", "schedule=cos"), "A recipe's schedule must be one of "),
        (("--option", "dropout"), "An option of the network is written NAME=VALUE. Got 'dropout' instead."),
        (("--option", "droput=0.1"), "resffn2_16 has no option 'droput'; it takes "),
        (("--recipe", "moons"), "There is no recipe 'moons'. Did you mean 'two_moons'?"),
        (("--model", "resfn2_16"), "There is no model 'resfn2_16'."),
        (
            ("--model", "resnet18"),
            "resnet18 takes images, and an input of two_moons has 2 numbers: choose a network for ",
        ),
        (("--data", "digits"), "resffn2_16 takes vectors, and digits has images: choose a network such as resnet18."),
        (("--data", "two_mons"), "There is no data set 'two_mons'. The closest names are 'two_moons';"),
        (("--data", "folder:nowhere"), "nowhere"),
        (("--spectral-norm", "strong"), "--spectral-norm must be a number or none. Got 'strong' instead."),
        (("--output", "/proc/ddu"), "Cannot write to /proc/ddu: "),
        (("--accelerator", "quick"), "Cannot train with accelerator='quick' and devices=1: "),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_trained(command, tmp_path, arguments, message):
    code, _, err = command(*MOONS, "--output", str(tmp_path / "run"), *arguments)
    assert code == 1
    assert message in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.glob("run/*.ckpt"))


@pytest.mark.parametrize(("method", "network"), [("softmax", "resffn2_16"), ("sngp", "resffn2_16+sn")])
def test_a_method_chooses_the_network_and_the_detector(command, tmp_path, method, network):
    code, _, _ = command(*MOONS, "--set", "epochs=1", "--method", method, "--output", str(tmp_path / "run"))
    assert code == 0
    run = load_run(tmp_path / "run")
    assert (run.spec.method, run.spec.label, run.detector.name) == (method, network, method)


def test_help_names_every_method(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    code, out, _ = command("train", "--help")
    assert code == 0
    assert ", ".join(list_methods()) in " ".join(out.replace("│", " ").split())
