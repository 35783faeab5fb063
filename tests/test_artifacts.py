"""A saved detector is whole and genuine, or it is refused in words."""

import ast
import copy
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

import ddu
from ddu import artifacts
from ddu.errors import ArtifactError, DDUWarning, LayerError, NotFittedError


def make_model():
    """A classifier that needs no training: logit c is the c-th input, squashed; the other features are random."""
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
        model.get_parameter("0.weight")[:3] = torch.eye(3, 4)
        model.get_parameter("3.weight").copy_(torch.eye(3, 8))
        return model


def batches(samples=300, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % 3
    x = torch.randn(samples, 4, generator=generator) + 2 * torch.eye(3, 4)[y]
    return [(x, y)]


def fitted(model, **options):
    detector = ddu.DDU(model, class_names=["ant", "bee", "cat"], **options).fit(batches())
    return detector.calibrate(batches(seed=1), false_alarm_rate=0.05)


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def detector(model):
    return fitted(model)


@pytest.fixture
def folder(detector, tmp_path):
    detector.save(tmp_path / "detector")
    return tmp_path / "detector"


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


def tensors_of(folder):
    return folder / manifest_of(folder)["tensors"]["file"]


def refusal(folder, model):
    with pytest.raises(ArtifactError) as caught:
        ddu.load(folder, model)
    return str(caught.value)


def sign(folder, manifest):
    """Writes a manifest with the checksum that belongs to it: not tampered with, but written by another hand."""
    manifest["sha256"] = artifacts._manifest_digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


# What is written


def test_a_loaded_detector_is_the_same_detector(detector, folder, model):
    loaded = ddu.load(folder, copy.deepcopy(model))
    x = torch.cat([batches(seed=2)[0][0], torch.full((3, 4), 40.0)])
    mine, theirs = detector.predict(x), loaded.predict(x)
    for name in ("probs", "label", "aleatoric", "epistemic", "log_density"):
        assert torch.equal(getattr(theirs, name), getattr(mine, name))
    assert np.asarray(theirs.verdict).tolist() == np.asarray(mine.verdict).tolist()
    assert set(np.asarray(mine.verdict)) == set(ddu.Verdict)
    assert theirs.class_names == ("ant", "bee", "cat")
    assert (loaded.temperature, loaded.density_threshold) == (detector.temperature, detector.density_threshold)
    assert (loaded.entropy_threshold, loaded.false_alarm_rate) == (detector.entropy_threshold, 0.05)


@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal", "low_rank"])
def test_every_covariance_survives_with_its_parameters(covariance, model, tmp_path):
    density = ddu.GaussianDensity(covariance, rank=3, shrinkage="oas", prior="uniform", background=True, pca=5)
    detector = ddu.DDU(model, density=density).fit(batches())
    detector.save(tmp_path)
    loaded = ddu.load(tmp_path, model)
    assert loaded.density.get_params() == density.get_params() | {"num_classes": 3}
    x = batches(seed=2)[0][0]
    assert torch.equal(loaded.predict(x).epistemic, detector.predict(x).epistemic)


def test_a_loaded_detector_learns_on(folder, model):
    loaded = ddu.load(folder, model).calibrate(batches(seed=3), false_alarm_rate=0.1)
    assert loaded.false_alarm_rate == 0.1
    again = loaded.fit(batches(seed=4)).predict(batches()[0][0])
    assert again.verdict is None


def test_the_manifest_names_everything(detector, folder, model):
    manifest = manifest_of(folder)
    assert sorted(manifest) == ["content", "format", "format_version", "sha256", "tensors", "versions"]
    assert (manifest["format"], manifest["format_version"]) == ("ddu-detector", 1)
    assert manifest["versions"] == {
        "ddu": ddu.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
    }
    assert manifest["content"] == {
        "detector": "ddu",
        "class_names": ["ant", "bee", "cat"],
        "options": {
            "features": {"kind": "input", "layer": "3"},
            "density": {
                "covariance": "full",
                "shrinkage": "auto",
                "regularization": 1e-6,
                "prior": "empirical",
                "rank": 32,
                "normalize": False,
                "standardize": False,
                "pca": None,
                "background": False,
                "num_classes": 3,
            },
        },
        "calibration": {
            "temperature": detector.temperature,
            "epistemic_threshold": -detector.density_threshold,
            "entropy_threshold": detector.entropy_threshold,
            "false_alarm_rate": 0.05,
        },
        "model": {"class": "Sequential", "fingerprint": artifacts.model_fingerprint(model)},
    }


def test_the_tensors_are_plain_safetensors(folder):
    tensors = safetensors.torch.load_file(tensors_of(folder))
    assert tensors["count"].tolist() == [100, 100, 100]
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", tensors_of(folder).name]


def test_the_fingerprint_sees_every_weight_and_buffer_and_nothing_else(model):
    before = artifacts.model_fingerprint(model)
    assert artifacts.model_fingerprint(copy.deepcopy(model).train()) == before
    assert artifacts.model_fingerprint(nn.DataParallel(model)) == before
    for name, tensor in model.state_dict().items():
        changed = copy.deepcopy(model)
        changed.state_dict()[name].view(-1)[0].add_(1)
        assert artifacts.model_fingerprint(changed) != before, name
        assert tensor is not None
    assert artifacts.model_fingerprint(copy.deepcopy(model).bfloat16()) != before


# Features


@pytest.mark.parametrize("by", ["name", "module"])
@pytest.mark.parametrize("run", [False, True], ids=["before a forward pass", "after"])
def test_the_feature_layer_is_found_again(model, tmp_path, by, run):
    """Also where the head, which is the default, sees features of the same width."""
    features = model[:2].eval()(batches()[0][0]).detach()
    detector = ddu.DDU(model, features="1" if by == "name" else model[1]).fit_features(features, batches()[0][1])
    x = batches(seed=2)[0][0]
    if run:
        detector.predict(x)
    detector.save(tmp_path)
    assert torch.equal(ddu.load(tmp_path, model).predict(x).epistemic, detector.predict(x).epistemic)


def test_a_callable_for_features_must_be_given_again(model, tmp_path):
    def early(x):
        return 2 * x

    detector = fitted(model, features=early)
    detector.save(tmp_path)
    with pytest.raises(LayerError) as caught:
        ddu.load(tmp_path, model)
    assert str(caught.value) == (
        f"The features came from the callable {early.__qualname__!r}, which text cannot hold: pass it again as "
        "features=."
    )
    x = batches(seed=2)[0][0]
    loaded = ddu.load(tmp_path, model, features=early)
    assert torch.equal(loaded.predict(x).epistemic, detector.predict(x).epistemic)


# What is refused


def test_an_unfitted_detector_is_not_saved(model, tmp_path):
    with pytest.raises(NotFittedError):
        ddu.DDU(model).save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way_is_refused(detector, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ArtifactError) as caught:
        detector.save(path)
    assert str(caught.value) == f"{path} is a file: a detector is saved as a folder, so give another name."
    assert path.read_text() == "mine"
    assert refusal(path, detector.model) == (
        f"There is no detector in {path}: it has no manifest.json. Give the folder that save() wrote."
    )


def test_a_folder_without_a_detector_is_refused(model, tmp_path):
    assert refusal(tmp_path / "nowhere", model) == (
        f"There is no detector in {tmp_path / 'nowhere'}: it has no manifest.json. Give the folder that save() wrote."
    )


@pytest.mark.parametrize("left", [0, 8, -1])
def test_truncated_tensors_are_refused(folder, model, left):
    path = tensors_of(folder)
    data = path.read_bytes()
    path.write_bytes(data[:left])
    assert refusal(folder, model) == (
        f"{path} has {len(data[:left])} bytes where {len(data)} were written: it is truncated. Copy it again, or save "
        "the detector again."
    )


def test_missing_tensors_are_refused(folder, model):
    path = tensors_of(folder)
    path.unlink()
    assert refusal(folder, model) == f"{path} is missing: copy the whole folder, or save the detector again."


@pytest.mark.parametrize("at", [0.0, 0.3, 0.999])
def test_a_flipped_bit_in_the_tensors_is_refused(folder, model, at):
    path = tensors_of(folder)
    data = bytearray(path.read_bytes())
    data[int(at * len(data))] ^= 1
    path.write_bytes(data)
    assert refusal(folder, model) == (
        f"{path} was changed after it was saved: its checksum does not match the manifest's."
    )


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_manifest_is_refused(folder, model, share):
    path = folder / "manifest.json"
    text = path.read_text()
    path.write_text(text[: int(share * len(text))])
    message = refusal(folder, model)
    assert message.startswith(f"{path} is truncated or not JSON (")
    assert message.endswith("). Copy it again, or save the detector again.")


@pytest.mark.parametrize(
    ("key", "value"), [("density_threshold", -1e9), ("temperature", 2.0), ("class_names", ["x", "y", "z"])]
)
def test_an_edited_manifest_is_refused(folder, model, key, value):
    manifest = manifest_of(folder)
    manifest["content"][key] = value
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert refusal(folder, model) == (
        f"{folder / 'manifest.json'} was changed after it was saved: its checksum does not match its content."
    )


def test_no_flipped_bit_in_the_manifest_goes_unnoticed(folder, model):
    path = folder / "manifest.json"
    data, known = path.read_bytes(), manifest_of(folder)
    for position in range(0, len(data), 7):
        flipped = bytearray(data)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        try:
            same = json.loads(bytes(flipped)) == known  # white space carries nothing
        except ValueError:
            same = False
        if not same:
            refusal(folder, model)


def test_a_newer_format_is_refused(folder, model):
    sign(folder, manifest_of(folder) | {"format_version": 2})
    assert refusal(folder, model) == (
        f"{folder / 'manifest.json'} has format version 2, and ddu {ddu.__version__} reads up to 1: install the newer "
        "ddu that wrote it, or a later one."
    )


@pytest.mark.parametrize("manifest", ["[]", "{}", '{"format": "another"}', "3"])
def test_another_json_is_refused(folder, model, manifest):
    (folder / "manifest.json").write_text(manifest)
    assert refusal(folder, model) == f"{folder / 'manifest.json'} does not describe a ddu detector."


def test_an_unknown_detector_is_refused(folder, model):
    manifest = manifest_of(folder)
    manifest["content"]["detector"] = "oracle"
    sign(folder, manifest)
    assert refusal(folder, model) == (
        f"{folder} holds a detector 'oracle', and this ddu knows ddu, softmax, energy, mahalanobis, ensemble, sngp, "
        "duq."
    )


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname"])
def test_a_manifest_cannot_name_a_file_elsewhere(folder, model, name):
    manifest = manifest_of(folder)
    manifest["tensors"]["file"] = name
    sign(folder, manifest)
    assert refusal(folder, model) == (
        f"{folder / 'manifest.json'} names a file outside its folder, {folder / name}: it was not written by ddu."
    )


def test_a_manifest_without_its_parts_is_refused(folder, model):
    manifest = manifest_of(folder)
    del manifest["content"]
    sign(folder, manifest)
    assert refusal(folder, model) == f"{folder / 'manifest.json'} has no entry 'content': it was not written by ddu."


def test_content_that_a_detector_needs_and_lacks_is_named(folder, model):
    manifest = manifest_of(folder)
    del manifest["content"]["calibration"]
    sign(folder, manifest)
    assert refusal(folder, model) == (
        f"{folder} does not hold what a ddu detector needs (KeyError('calibration')): save it again."
    )


def test_another_model_is_refused_or_only_noted(folder, detector, model):
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight[0, 0] += 1e-3
    was, now = (artifacts.model_fingerprint(m)[:12] for m in (model, other))
    message = (
        f"The detector was fitted to a Sequential with the fingerprint {was}, this Sequential has {now}: load the "
        "weights it was fitted to, or fit again."
    )
    assert refusal(folder, other) == f"{message} If only the precision or layout differs, pass strict=False."
    with pytest.warns(DDUWarning) as noted:
        loaded = ddu.load(folder, other, strict=False)
    assert [str(warning.message) for warning in noted] == [message]
    assert noted[0].filename == __file__
    assert loaded.density_threshold == detector.density_threshold


# Saving again


def test_a_new_version_replaces_the_old_one_and_leaves_nothing_behind(folder, model):
    (folder / ".tensors-0.safetensors.77.tmp").write_text("of a process that was killed")
    (folder / "README").write_text("mine")
    newer = ddu.DDU(model).fit(batches(seed=5))
    newer.save(folder)
    assert ddu.load(folder, model).class_names is None
    assert sorted(path.name for path in folder.iterdir()) == ["README", "manifest.json", tensors_of(folder).name]


@pytest.mark.parametrize("crash", [1, 2], ids=["in the tensors", "between tensors and manifest"])
def test_a_crash_while_saving_leaves_the_old_detector(folder, detector, model, monkeypatch, crash):
    x = batches(seed=2)[0][0]
    before = detector.predict(x).epistemic
    calls = []
    fsync = artifacts.os.fsync

    def full_disk(descriptor):
        calls.append(descriptor)
        if len(calls) == crash:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(artifacts.os, "fsync", full_disk)
    newer = ddu.DDU(model).fit(batches(seed=5))
    with pytest.raises(OSError, match="No space left on device"):
        newer.save(folder)
    assert torch.equal(ddu.load(folder, model).predict(x).epistemic, before)
    assert not list(folder.glob(".*"))
    newer.save(folder)
    assert torch.equal(ddu.load(folder, model).predict(x).epistemic, newer.predict(x).epistemic)


# Rounds of: fork a process that saves two detectors in turn for ever, kill it at some moment, look at what is there.
_KILLS = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from torch import nn
import ddu

torch.manual_seed(0)
torch.set_num_threads(1)
folder, kills, draw = Path(sys.argv[1]), int(sys.argv[2]), random.Random(0)
model = nn.Sequential(nn.Linear(4, 96), nn.Tanh(), nn.Linear(96, 2))
x = torch.randn(400, 4)
y = model(x).argmax(1)  # as good as trained
detectors = [ddu.DDU(model, class_names=names).fit([(x * scale, y)]) for names, scale in (("ab", 1), ("cd", 2))]
scores = {detector.class_names: detector.predict(x).epistemic for detector in detectors}
detectors[0].save(folder)
outcomes, halfway = set(), 0
for _ in range(kills):
    child = os.fork()
    if child == 0:
        while True:
            for detector in reversed(detectors):
                detector.save(folder)
    time.sleep(draw.uniform(0.01, 0.15))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    halfway += len(list(folder.iterdir())) > 2
    loaded = ddu.load(folder, model)
    assert torch.equal(loaded.predict(x).epistemic, scores[loaded.class_names])
    outcomes.add(loaded.class_names)
detectors[1].save(folder)
print(halfway, len(outcomes), len(list(folder.iterdir())))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_a_process_killed_while_saving_leaves_one_whole_detector(tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", _KILLS, str(tmp_path / "detector"), "20"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    halfway, outcomes, files = map(int, run.stdout.split())
    assert halfway > 0, "no kill came while files were being written: the test shows nothing"
    assert outcomes == 2
    assert files == 2


# Nothing is unpickled

# CIFAR comes as pickles; tests/data/sources/test_cifar.py shows that its unpickler builds arrays and nothing else
_SOURCES = sorted(path for path in Path(ddu.__file__).parent.rglob("*.py") if path.name != "cifar.py")
_UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def unsafe_uses(source):
    """Imports of modules that unpickle, torch.load without weights_only=True, numpy.load with allow_pickle."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.split(".")[0] in _UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module] * ((node.module or "").split(".")[0] in _UNSAFE_MODULES)
            found += [f"{node.module}.load"] * (
                node.module in ("torch", "numpy") and any(name.name == "load" for name in node.names)
            )
        elif isinstance(node, ast.Call):
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if ast.unparse(node.func) == "torch.load" and options.get("weights_only") != "True":
                found.append("torch.load")
            if "allow_pickle" in options and options["allow_pickle"] != "False":
                found.append("allow_pickle")
            if ast.unparse(node.func) in ("eval", "exec"):
                found.append(ast.unparse(node.func))
    return found


@pytest.mark.parametrize("path", _SOURCES, ids=lambda path: path.name)
def test_no_module_unpickles(path):
    assert unsafe_uses(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", ["pickle"]),
        ("from joblib import load", ["joblib"]),
        ("import torch\ntorch.load('x')", ["torch.load"]),
        ("torch.load('x', weights_only=False)", ["torch.load"]),
        ("torch.load('x', weights_only=True)", []),
        ("from torch import load", ["torch.load"]),
        ("np.load('x', allow_pickle=True)", ["allow_pickle"]),
        ("eval('1')", ["eval"]),
        ("model.eval()", []),
    ],
)
def test_the_search_for_pickles_finds_them(source, found):
    assert unsafe_uses(source) == found


def test_a_folder_can_be_moved(folder, detector, model, tmp_path):
    shutil.move(folder, tmp_path / "elsewhere")
    x = batches(seed=2)[0][0]
    loaded = ddu.load(str(tmp_path / "elsewhere"), model)
    assert torch.equal(loaded.predict(x).epistemic, detector.predict(x).epistemic)


def test_a_detector_belongs_to_the_weights_it_was_fitted_to(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    x, y = torch.randn(100, 4, generator=torch.Generator().manual_seed(0)), torch.arange(100) % 2
    detector = ddu.DDU(model).fit([(x, y)])
    torch.nn.init.zeros_(model[0].bias)
    detector.save(tmp_path / "detector")  # of the weights before, not of those now
    with pytest.raises(ddu.errors.ArtifactError, match="load the weights it was fitted to, or fit again"):
        ddu.load(tmp_path / "detector", model)
