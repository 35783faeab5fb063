"""`ddu doctor` as a user meets it."""

import json
import sys

import numpy as np
import pytest

import ddu
from tests.small_networks import (
    CLASSES,
    PREPROCESSING,
    draw_images,
    make_detector,
    to_inputs,
    write_module,
)

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")  # of a network that nobody trained


@pytest.fixture(scope="module")
def detector() -> ddu.DDU:
    return make_detector()


@pytest.fixture
def doctor(command, detector, tmp_path, monkeypatch):
    """`ddu doctor` with a network and its detector, in a folder with data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.delitem(sys.modules, "user_models", raising=False)
    write_module(tmp_path)
    detector.save("detector")
    for name, seed in (("held_out", 3), ("train", 1)):
        images, labels = draw_images(300, seed=seed)
        np.savez(f"{name}.npz", x_test=images.numpy(), y_test=labels.numpy(), classes=np.array(CLASSES))

    def run(*arguments: str) -> tuple[int, str, str]:
        return command("doctor", "user_models:with_preprocessing", "--detector", "detector", *arguments)

    return run


def test_findings_are_a_table_with_the_worst_first_and_what_to_do(doctor):
    code, out, _ = doctor("--data", "npz:held_out.npz", "--train", "npz:train.npz")
    assert code == 0
    severities = [line.split()[0] for line in out.splitlines() if line.split()[:1] and line.split()[0] in ORDER]
    assert severities == sorted(severities, key=ORDER.index)
    for check in ("probes", "samples", "rank", "sensitivity", "smoothness", "spectral norms", "false alarms", "time"):
        assert check in out
    for title in ("Probes", "Classes", "Layers", "Norms"):
        assert title in out.split()


ORDER = ["problem", "warning", "note", "ok"]


def test_json_has_the_same_findings_and_every_table(doctor, detector):
    code, out, _ = doctor("--data", "npz:held_out.npz", "--json")
    assert code == 0
    found = json.loads(out)
    assert {*found} == {"findings", "tables"}
    assert {*found["findings"][0]} == {"severity", "check", "message", "value", "remedy"}
    assert [row["name"] for row in found["tables"]["classes"]] == [*CLASSES]
    alike = ddu.diagnose(detector, [to_inputs(*draw_images(300, seed=3))]).to_dict()
    ours, theirs = ({row["probe"]: row["auroc"] for row in one["tables"]["probes"]} for one in (found, alike))
    assert ours == pytest.approx(theirs, abs=0.1)  # made from other ones of the same images


def test_a_source_without_data_says_what_it_cannot_be_asked(doctor):
    code, out, _ = doctor()
    assert code == 0
    words = " ".join(out.split())
    assert "Not asked: it needs held-out data, which is not at hand." in words
    assert "Give held-out inputs with labels (--data)." in words
    assert "memory" in words


def test_drifted_files_are_a_problem_and_fail_where_that_is_asked(doctor):
    images = draw_images(300, seed=4)[0].numpy()
    np.save("same.npy", images)
    np.save("moved.npy", 255 - images // 4)
    assert doctor("--new", "same.npy", "--fail-on", "problem")[0] == 0
    code, out, err = doctor("--new", "moved.npy", "--fail-on", "problem")
    assert code == 3
    assert "drift" in out
    assert "--fail-on problem: drift." in err
    assert doctor("--new", "moved.npy")[0] == 0


def test_data_of_other_classes_is_refused(doctor):
    images, labels = draw_images(20, seed=3)
    np.savez("other.npz", x_test=images.numpy(), y_test=labels.numpy(), classes=np.array(["up", "down"]))
    code, _, err = doctor("--data", "npz:other.npz")
    assert code == 1
    assert "has the classes left, right (2), and npz:other.npz has up, down (2)" in err


def test_an_unknown_severity_is_refused_before_anything_is_opened(command):
    code, _, err = command("doctor", "nowhere", "--fail-on", "bad")
    assert code == 1
    assert "--fail-on has no severity 'bad'. There are warning, problem." in err


@pytest.mark.slow
def test_a_bundle_is_asked_what_a_graph_can_tell(command, detector, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    detector.export("bundle", draw_images(8, seed=9)[0].numpy(), preprocessing=PREPROCESSING)
    images, labels = draw_images(300, seed=3)
    np.savez("held_out.npz", x_test=images.numpy(), y_test=labels.numpy(), classes=np.array(CLASSES))
    code, out, _ = command("doctor", "bundle", "--data", "npz:held_out.npz", "--json")
    assert code == 0
    found = {one["check"]: one for one in json.loads(out)["findings"]}
    assert found["rank"]["value"] is None
    assert "there is a graph alone" in found["rank"]["message"]
    flagged = np.asarray(detector.predict(PREPROCESSING(images.numpy())).verdict) == "out_of_distribution"
    assert found["false alarms"]["value"] == pytest.approx(flagged.mean())
    assert found["probes"]["value"] is not None


@pytest.mark.slow
def test_a_run_brings_its_data_along(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    options = ("--model", "resnet18", "--width", "0.125", "--set", "epochs=1", "--limit", "300", "--output", "run")
    assert command("train", "--data", "digits", "--false-alarm-rate", "0.05", *options)[0] == 0
    code, out, _ = command("doctor", "run", "--json")
    assert code == 0
    found = json.loads(out)
    assert sum(row["looked_at"] for row in found["tables"]["classes"]) == 300 - sum(
        row["held_out"] for row in found["tables"]["classes"]
    )
