"""A loaded detector is the one that was saved."""

import copy
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

import ddu
from ddu import artifacts
from ddu.errors import (
    LayerError,
)
from tests.artifacts.files import batches, file_of, fitted, manifest_of


@pytest.mark.parametrize("make", [ddu.DDU, ddu.DDU.paper])
def test_a_loaded_detector_is_the_same_detector(make, model, tmp_path):
    detector = make(model, class_names=["ant", "bee", "cat"]).fit(batches())
    detector.calibrate(batches(seed=1), false_alarm_rate=0.05).save(tmp_path)
    loaded = ddu.load(tmp_path, copy.deepcopy(model))
    x = torch.cat([batches(seed=2)[0][0], torch.full((3, 4), 40.0)])
    mine, theirs = detector.predict(x), loaded.predict(x)
    for name in ("probs", "label", "aleatoric", "epistemic"):
        assert torch.equal(getattr(theirs, name), getattr(mine, name))
    if make is ddu.DDU:
        assert theirs.log_density is None
        assert mine.parts is not None
        assert theirs.parts is not None
        assert list(theirs.parts) == list(mine.parts)
        assert theirs.parts is not None
        assert all(torch.equal(theirs.parts[name], mine.parts[name]) for name in mine.parts)
    else:
        assert torch.equal(theirs.log_density, mine.log_density)
        assert theirs.parts is None
    assert np.asarray(theirs.verdict).tolist() == np.asarray(mine.verdict).tolist()
    assert set(np.asarray(mine.verdict)) == set(ddu.Verdict) - {ddu.Verdict.INVALID}
    assert torch.equal(theirs.p_value, mine.p_value)
    assert torch.equal(theirs.candidates, mine.candidates)
    assert theirs.class_names == ("ant", "bee", "cat")
    assert (loaded.temperature, loaded.density_threshold) == (detector.temperature, detector.density_threshold)
    assert (loaded.entropy_threshold, loaded.false_alarm_rate) == (detector.entropy_threshold, 0.05)


@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal", "low_rank"])
def test_every_covariance_survives_with_its_parameters(covariance, model, tmp_path):
    density = ddu.GaussianDensity(covariance, rank=3, shrinkage="oas", prior="uniform", background=True, pca=5)
    detector = ddu.DDU(model, features=None, view="raw", energy=False, density=density).fit(batches())
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
    assert (manifest["format"], manifest["format_version"]) == ("ddu-detector", 3)
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
            "features": [{"kind": "input", "layer": "3"}],
            "view": "auto",
            "energy": True,
            "density": {},  # what differs from the defaults
            "seed": 0,
            "classes": None,
        },
        "calibration": {
            "temperature": detector.temperature,
            "false_alarm_rate": 0.05,
            "threshold": "conformal",
            "confidence": None,
            "per_class": False,
            "error_rate": None,
            "coverage": 0.95,
        },
        "model": {"class": "Sequential", "fingerprint": artifacts.model_fingerprint(model)},
    }


def test_a_detector_is_one_plain_safetensors_file(folder):
    assert [path.name for path in folder.iterdir()] == ["detector.safetensors"]
    tensors = safetensors.torch.load_file(file_of(folder))
    assert tensors["0.count"].tolist() == [100, 100, 100]
    assert {name.partition(".")[0] for name in tensors} == {"centre", "scale", "0", "1", "calibration"}


@pytest.mark.parametrize("make", [ddu.DDU, ddu.DDU.paper])
def test_moments_are_stored_by_option_and_only_with_them_a_loaded_detector_learns_on(make, model, tmp_path):
    detector = make(model).fit(batches()).calibrate(batches(seed=1), 0.05)
    more = detector.tap(batches(seed=6)[0][0])._replace(labels=batches(seed=6)[0][1])
    x = batches(seed=2)[0][0]
    for moments in (False, True):
        detector.save(tmp_path / str(moments), moments=moments)
        names = safetensors.torch.load_file(file_of(tmp_path / str(moments)))
        assert any(name.endswith(".scatter") for name in names) is moments
        assert torch.equal(ddu.load(tmp_path / str(moments), model).predict(x).epistemic, detector.predict(x).epistemic)
    with pytest.raises(ddu.errors.NotSupportedError, match=r"Save the detector with moments=True, or fit again\.$"):
        ddu.load(tmp_path / "False", model).update(more)
    loaded = ddu.load(tmp_path / "True", model)
    loaded.update(more)
    detector.update(more)
    assert torch.equal(loaded.predict(x).epistemic, detector.predict(x).epistemic)


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
    where = "1" if by == "name" else model[1]
    detector = ddu.DDU(model, features=where, view="raw", energy=False).fit_features(features, batches()[0][1])
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
