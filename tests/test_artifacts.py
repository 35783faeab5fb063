"""A saved detector is whole and genuine, or it is refused in words."""

import ast
import contextlib
import copy
import json
import math
import platform
import re
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ddu
from ddu import artifacts
from ddu.detectors import DUQ, SNGP, Energy, Ensemble, Mahalanobis, Softmax, load_members
from ddu.errors import (
    ArtifactError,
    CalibrationWarning,
    DDUError,
    DDUWarning,
    FeatureError,
    InputError,
    LabelWarning,
    LayerError,
    NotFittedError,
)
from ddu.layers import GaussianProcessHead, RBFHead


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


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def detector(model):
    return fitted(model)


@pytest.fixture(scope="module")
def newer(model):
    return ddu.DDU(model).fit(batches(seed=5))


@pytest.fixture(scope="module")
def saved(detector, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "detector"
    detector.save(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "detector")


def file_of(folder):
    return folder / "detector.safetensors"


def manifest_of(folder):
    with safetensors.safe_open(file_of(folder), "pt") as file:
        return json.loads(file.metadata()["ddu-detector"])


def refusal(folder, model):
    with pytest.raises(ArtifactError) as caught:
        ddu.load(folder, model)
    return str(caught.value)


def rewrite(folder, manifest, tensors=None):
    """Writes a file as it is given: the checksums are those in the manifest."""
    tensors = safetensors.torch.load_file(file_of(folder)) if tensors is None else tensors
    safetensors.torch.save_file(tensors, file_of(folder), {"ddu-detector": json.dumps(manifest)})


def sign(folder, manifest, tensors=None):
    """Writes a file with the checksums that belong to it: not tampered with, but written by another hand."""
    if tensors is not None:
        manifest["tensors"] = artifacts.fingerprint(tensors)
    manifest["sha256"] = artifacts._manifest_digest(manifest)
    rewrite(folder, manifest, tensors)


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


def test_a_detector_is_one_plain_safetensors_file(folder):
    assert [path.name for path in folder.iterdir()] == ["detector.safetensors"]
    assert safetensors.torch.load_file(file_of(folder))["count"].tolist() == [100, 100, 100]


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
        f"There is no detector in {path}: it has no detector.safetensors. Give the folder that save() wrote."
    )


def test_a_folder_without_a_detector_is_refused(model, tmp_path):
    assert refusal(tmp_path / "nowhere", model) == (
        f"There is no detector in {tmp_path / 'nowhere'}: it has no detector.safetensors. Give the folder that save() "
        "wrote."
    )


CHANGED = (
    "{} was changed after it was saved: its checksum does not match its content. Copy it again, or save the detector "
    "again."
)


@pytest.mark.parametrize("left", [0, 4, 8, 300, -1])
def test_a_truncated_file_is_refused(folder, model, left):
    path = file_of(folder)
    path.write_bytes(path.read_bytes()[:left])
    message = refusal(folder, model)
    assert message.startswith(f"{path} is truncated or not written by ddu (Error while deserializing: ")
    assert message.endswith("). Copy it again, or save the detector again.")


def test_a_flipped_bit_in_the_tensors_is_refused(folder, model):
    path = file_of(folder)
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    for position in (begin, (begin + len(data)) // 2, len(data) - 1):
        flipped = bytearray(data)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        assert refusal(folder, model) == CHANGED.format(path)


@pytest.mark.parametrize(
    ("key", "value"), [("density_threshold", -1e9), ("temperature", 2.0), ("class_names", ["x", "y", "z"])]
)
def test_an_edited_manifest_is_refused(folder, model, key, value):
    manifest = manifest_of(folder)
    manifest["content"][key] = value
    rewrite(folder, manifest)
    assert refusal(folder, model) == CHANGED.format(file_of(folder))


def test_no_flipped_bit_in_the_header_goes_unnoticed(folder, model, detector):
    """A header that still loads says the same: what changed was white space."""
    path = file_of(folder)
    data = path.read_bytes()
    for position in range(0, 8 + int.from_bytes(data[:8], "little"), 7):
        flipped = bytearray(data)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        try:
            loaded = ddu.load(folder, model)
        except ArtifactError:
            continue
        assert (loaded.calibration, loaded.class_names) == (detector.calibration, detector.class_names)
        assert torch.equal(loaded.density.moments_.mean, detector.density.moments_.mean)


def test_a_newer_format_is_refused(folder, model):
    sign(folder, manifest_of(folder) | {"format_version": 2})
    assert refusal(folder, model) == (
        f"{file_of(folder)} has format version 2, and ddu {ddu.__version__} reads up to 1: install the newer "
        "ddu that wrote it, or a later one."
    )


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"ddu-detector": "[]"}, {"ddu-detector": "3"}])
def test_another_safetensors_file_is_refused(folder, model, metadata):
    safetensors.torch.save_file({"weight": torch.zeros(2)}, file_of(folder), metadata)
    assert refusal(folder, model) == f"{file_of(folder)} does not hold a ddu detector."


def test_an_unknown_detector_is_refused(folder, model):
    manifest = manifest_of(folder)
    manifest["content"]["detector"] = "oracle"
    sign(folder, manifest)
    assert refusal(folder, model) == (
        f"{folder} holds a detector 'oracle', and this ddu knows ddu, softmax, energy, mahalanobis, ensemble, sngp, "
        "duq."
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


# Content that is wrong under checksums that are right


def head_models():
    """Small networks by the name of the detector that they are for, and what makes it."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        rbf = nn.Sequential(nn.Linear(4, 8), RBFHead(8, 3, embedding_size=4))
        process = nn.Sequential(nn.Linear(4, 8), GaussianProcessHead(8, 3, num_features=16))
        members = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
    plain = make_model()
    low_rank = ddu.GaussianDensity("low_rank", rank=1, background=True)
    return {
        "ddu": (plain, ddu.DDU),
        "ddu low rank": (plain, partial(ddu.DDU, density=low_rank)),
        "ddu pca": (plain, partial(ddu.DDU, density=ddu.GaussianDensity(shrinkage="oas", standardize=True, pca=0.9))),
        "mahalanobis": (plain, partial(Mahalanobis, layers=["0", "3"], relative=True)),
        "softmax": (plain, Softmax),
        "energy": (plain, Energy),
        "ensemble": (members, Ensemble),
        "sngp": (process, SNGP),
        "duq": (rbf, DUQ),
    }


DETECTORS = ("ddu", "ddu low rank", "ddu pca", "mahalanobis", "softmax", "energy", "ensemble", "sngp", "duq")
LEARNED = ("ddu", "ddu low rank", "ddu pca", "mahalanobis", "sngp")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A folder and a model for each of `DETECTORS`."""
    found = {}
    for name, (model, make) in head_models().items():
        folder = tmp_path_factory.mktemp("library")
        with warnings.catch_warnings():  # some networks are not trained
            for category in (CalibrationWarning, LabelWarning):
                warnings.simplefilter("ignore", category)
            detector = make(model, class_names=["ant", "bee", "cat"]).fit(batches())
            detector.calibrate(batches(seed=1), 0.05).save(folder)
        found[name] = folder, model
    return found


@pytest.fixture
def corrupt(library, tmp_path):
    """Changes the content and the tensors of a saved detector, signs them, and gives what `load` says."""

    def change_and_load(name, change):
        folder, model = library[name]
        copied = shutil.copytree(folder, tmp_path / "corrupt")
        manifest, tensors = manifest_of(copied), safetensors.torch.load_file(file_of(copied))
        change(manifest["content"], tensors)
        sign(copied, manifest, tensors)
        message = refusal(copied, model)
        start = f"{copied} does not hold a {name.split()[0]} detector that works. "
        assert message.startswith(start)
        assert message.endswith(" Save it again.")
        return message.removeprefix(start).removesuffix(" Save it again.")

    return change_and_load


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("temperature", 0.0, "The 'temperature' of a calibration must be a finite float above 0. Got 0.0 instead."),
        ("temperature", -2.0, "The 'temperature' of a calibration must be a finite float above 0. Got -2.0 instead."),
        (
            "temperature",
            math.nan,
            "The 'temperature' of a calibration must be a finite float above 0. Got nan instead.",
        ),
        (
            "temperature",
            math.inf,
            "The 'temperature' of a calibration must be a finite float above 0. Got inf instead.",
        ),
        ("temperature", "1", "The 'temperature' of a calibration must be a finite float above 0. Got '1' instead."),
        (
            "epistemic_threshold",
            math.nan,
            "The 'epistemic_threshold' of a calibration must be a finite float. Got nan instead.",
        ),
        (
            "epistemic_threshold",
            -math.inf,
            "The 'epistemic_threshold' of a calibration must be a finite float. Got -inf instead.",
        ),
        (
            "entropy_threshold",
            math.nan,
            "The 'entropy_threshold' of a calibration must be a finite float. Got nan instead.",
        ),
        (
            "entropy_threshold",
            [1.0],
            "The 'entropy_threshold' of a calibration must be a finite float. Got [1.0] instead.",
        ),
        ("false_alarm_rate", 0.0, "The false-alarm rate must be a float between 0 and 1. Got 0.0 instead."),
        ("false_alarm_rate", 1.5, "The false-alarm rate must be a float between 0 and 1. Got 1.5 instead."),
        ("false_alarm_rate", math.nan, "The false-alarm rate must be a float between 0 and 1. Got nan instead."),
        ("tmperature", 1.0, "There must be no entry 'tmperature' in the calibration. Did you mean 'temperature'?"),
    ],
)
def test_a_calibration_that_cannot_be_is_refused(corrupt, name, entry, value, message):
    assert corrupt(name, lambda content, _: content["calibration"].update({entry: value})) == message


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_a_number_that_no_float_holds_is_refused(corrupt, number):
    assert corrupt("softmax", lambda content, _: content["calibration"].update(epistemic_threshold=number)) == (
        f"The 'epistemic_threshold' of a calibration must be a finite float. Got {number} instead."
    )


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("options", ["entropy"], "There must be a dictionary for the options of {}. Got ['entropy'] instead."),
        ("options", {"colour": 3}, "There must be no entry 'colour' in the options of {}. "),
        ("model", 3, "There must be a dictionary for the model. Got 3 instead."),
        ("model", {"class": "Net", "fingerprint": 7}, "The model must have a class and a fingerprint that are text."),
        ("class_names", "ab", "The class names must be None or a list of text. Got 'ab' instead."),
        ("class_names", [1, 2, 3], "The class names must be None or a list of text. Got [1, 2, 3] instead."),
        ("calibration", [], "There must be a dictionary for the calibration. Got [] instead."),
        (
            "calibration",
            {"temperature": 1.0},
            "There must be an entry 'epistemic_threshold' in the calibration. Got 'temperature' instead.",
        ),
    ],
)
def test_content_of_another_kind_is_refused(corrupt, name, entry, value, message):
    short = name.split()[0]
    kind = {"ddu": "DDU", "duq": "DUQ", "sngp": "SNGP"}.get(short, short.capitalize())
    assert corrupt(name, lambda content, _: content.update({entry: value})).startswith(message.format(kind))


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        (
            "softmax",
            "score",
            "luck",
            "The 'score' parameter of Softmax must be 'entropy' or 'confidence'. Got 'luck' instead.",
        ),
        ("ensemble", "score", ["entropy"], "The 'score' parameter of Ensemble must be 'mutual_information', "),
        ("ddu", "features", {"kind": "weights", "layer": "3"}, "A described feature layer has a 'kind' ('input', "),
        ("ddu", "features", 3, "features= must be a layer's name, a module of the model, a callable, "),
        ("ddu", "density", "full", "There must be a dictionary for the density. Got 'full' instead."),
        ("ddu", "density", {"rnak": 3}, "There must be no entry 'rnak' in the density. Did you mean 'rank'?"),
        ("mahalanobis", "layers", 3, "The 'layers' parameter of Mahalanobis must be a list of layers. Got 3 instead."),
        ("mahalanobis", "layers", ["3"], "There must be no layer '1' in the learned tensors. There are 0."),
        (
            "mahalanobis",
            "relative",
            "no",
            "The 'relative' parameter of Mahalanobis must be True or False. Got 'no' instead.",
        ),
        (
            "mahalanobis",
            "perturbation",
            math.nan,
            "The 'perturbation' parameter of Mahalanobis must be a float of at least 0. ",
        ),
        (
            "mahalanobis",
            "perturbation",
            "1",
            "The 'perturbation' parameter of Mahalanobis must be a float of at least 0. ",
        ),
        ("sngp", "samples", 0, "The 'samples' parameter of SNGP must be an integer of at least 1. Got 0 instead."),
        (
            "sngp",
            "seed",
            2**64,
            "The 'seed' parameter of SNGP must be an integer of 64 bits. Got 18446744073709551616 instead.",
        ),
        ("sngp", "factor", -1.0, "The 'factor' parameter of SNGP must be a float of at least 0. Got -1.0 instead."),
        ("sngp", "ridge", "1", "The 'ridge' parameter of LaplacePosterior must be positive. Got '1' instead."),
        ("sngp", "ridge", math.inf, "The 'ridge' parameter of LaplacePosterior must be positive. Got inf instead."),
    ],
)
def test_an_option_that_cannot_be_is_refused(corrupt, name, option, value, message):
    assert corrupt(name, lambda content, _: content["options"].update({option: value})).startswith(message)


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("rank", 2**31, "an integer of at least 1 and below 2³¹. Got 2147483648 instead."),
        ("normalize", "no", "True or False. Got 'no' instead."),
        ("background", 2, "True or False. Got 2 instead."),
        ("regularization", 10**400, f"a finite float of at least 0. Got {10**400} instead."),
        ("covariance", ["full"], "one of 'full', 'shared', 'diagonal', 'low_rank'. Got ['full'] instead."),
    ],
)
def test_a_density_that_cannot_be_is_refused(corrupt, option, value, wanted):
    message = corrupt("ddu", lambda content, _: content["options"]["density"].update({option: value}))
    assert message == f"The '{option}' parameter of GaussianDensity must be {wanted}"


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_learned_tensors_that_are_not_finite_are_refused(corrupt, name, value):
    def change(content, tensors):
        tensor = next(tensor for key, tensor in tensors.items() if key.endswith("scatter"))
        tensor.view(-1)[:2] = value

    pattern = r"The learned tensor 'scatter' has 2 of \d+ values that are not finite\."
    assert re.fullmatch(pattern, corrupt(name, change))


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensor: tensor.float(),
            r"must be torch\.float64 of shape (.*)\. Got torch\.float32 of shape \1 instead\.",
        ),
        (
            lambda tensor: tensor[..., :-1],
            r"must be torch\.float64 of shape .*\. Got torch\.float64 of shape .* instead\.",
        ),
    ],
    ids=["dtype", "shape"],
)
def test_learned_tensors_of_another_type_or_shape_are_refused(corrupt, name, change, message):
    def change_all(content, tensors):
        for key, tensor in tensors.items():
            if key.endswith("scatter"):
                tensors[key] = change(tensor).contiguous()

    assert re.fullmatch(f"The learned tensor 'scatter' {message}", corrupt(name, change_all))


@pytest.mark.parametrize(
    ("name", "key", "tensor", "message"),
    [
        (
            "ddu",
            "mean",
            torch.zeros(4, 8).double(),
            "The learned tensor 'mean' must have the shape (3, features). Got (4, 8) instead.",
        ),
        (
            "ddu",
            "mean",
            torch.zeros(3).double(),
            "The learned tensor 'mean' must have the shape (3, features). Got (3,) instead.",
        ),
        (
            "ddu",
            "mean",
            torch.zeros(3, 9).double(),
            "The learned tensor 'squares' must be torch.float64 of shape (3, 9). Got torch.float64 of shape "
            "(3, 8) instead.",
        ),
        (
            "ddu",
            "count",
            torch.tensor([100, 100]),
            "The learned tensor 'count' must be torch.int64 of shape (3,). Got torch.int64 of shape (2,) instead.",
        ),
        (
            "ddu",
            "count",
            torch.tensor([100, -1, 100]),
            "The learned tensors 'count' and 'squares' must not be negative, nor the counts above 2⁵³.",
        ),
        (
            "ddu",
            "count",
            torch.tensor([2**62, 2**62, 2**62]),
            "The learned tensors 'count' and 'squares' must not be negative, nor the counts above 2⁵³.",
        ),
        (
            "ddu",
            "secret",
            torch.zeros(1),
            "There must be no entry 'secret' in the learned tensors. There are count, mean, squares, scatter.",
        ),
        ("ddu", "scatter", -1e3 * torch.eye(8).double().repeat(3, 1, 1), "A covariance of 8 features is singular, "),
        (
            "ddu low rank",
            "test_matrix",
            torch.zeros(8, 3).double(),
            "The learned tensor 'test_matrix' must be torch.float64 of shape (8, 8). ",
        ),
        (
            "mahalanobis",
            "2.mean",
            torch.zeros(3, 8),
            "There must be no layer '2' in the learned tensors. There are 0, 1.",
        ),
        ("mahalanobis", "{", torch.zeros(1), "There must be no layer '{' in the learned tensors. There are 0, 1."),
        (
            "mahalanobis",
            "1.mean",
            torch.zeros(0, 8).double(),
            "The learned tensor 'mean' must have the shape (classes, features). Got (0, 8) instead.",
        ),
        (
            "sngp",
            "scatter",
            -9.0 * torch.eye(16).double(),
            "The precision of 16 features, with the ridge 1.0, is not positive definite.",
        ),
        (
            "sngp",
            "scatter",
            torch.zeros(8, 8).double(),
            "The learned tensor 'scatter' must be torch.float64 of shape (16, 16). Got torch.float64 of "
            "shape (8, 8) instead.",
        ),
    ],
)
def test_learned_tensors_that_cannot_be_are_refused(corrupt, name, key, tensor, message):
    assert corrupt(name, lambda _, tensors: tensors.update({key: tensor})).startswith(message)


@pytest.mark.parametrize("name", LEARNED)
def test_a_learned_tensor_that_is_missing_is_named(corrupt, name):
    def change(content, tensors):
        del tensors[next(key for key in tensors if key.endswith("scatter"))]

    assert corrupt(name, change).startswith("There must be an entry 'scatter' in the learned tensors. Got ")


def test_a_layer_that_the_model_does_not_have_is_named(folder, model):
    manifest = manifest_of(folder)
    manifest["content"]["options"]["features"]["layer"] = "9"
    sign(folder, manifest)
    with pytest.raises(LayerError, match=r"^Sequential has no layer '9'\."):
        ddu.load(folder, model)


def test_too_few_class_names_are_noticed_when_predicting(folder, model):
    manifest = manifest_of(folder)
    manifest["content"]["class_names"] = ["ant", "bee"]
    sign(folder, manifest)
    with pytest.raises(InputError) as caught:
        ddu.load(folder, model).predict(batches()[0][0])
    assert str(caught.value) == "There are 2 class names for 3 classes: give one for each."


def test_layers_of_another_width_are_noticed_when_predicting(library):
    folder, model = library["mahalanobis"]
    loaded = ddu.load(folder, model)
    del loaded.densities[1]
    with pytest.raises(FeatureError) as caught:
        loaded.predict(batches()[0][0])
    assert str(caught.value) == (
        "The densities were fitted on 8 features, these have 16. Use features of the same layers of the same network, "
        "or fit again."
    )


@pytest.mark.parametrize("content", [None, [], "text", {"detector": "ddu"}])
def test_content_that_is_none_is_refused(folder, model, content):
    sign(folder, manifest_of(folder) | {"content": content})
    message = refusal(folder, model)
    assert message.startswith(f"{file_of(folder)} was not written by this ddu. There must be ")
    assert message.endswith(" Save the detector again.")


@pytest.mark.parametrize("depth", [17, 500, 100_000])
def test_a_manifest_without_end_is_refused(folder, model, depth):
    text = '{"format": ' * depth + "0" + "}" * depth
    safetensors.torch.save_file({}, file_of(folder), {"ddu-detector": text})
    message = refusal(folder, model)
    assert message.startswith(f"{file_of(folder)} is truncated or not written by ddu (")
    assert message.endswith("). Copy it again, or save the detector again.")


def test_a_number_without_end_is_refused(folder, model):
    safetensors.torch.save_file({}, file_of(folder), {"ddu-detector": '{"format": ' + "1" * 5000 + "}"})
    assert refusal(folder, model).startswith(f"{file_of(folder)} is truncated or not written by ddu (Exceeds the limit")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"9": torch.zeros(3)}, "The members in {} are not of this architecture: "),
        ({"weight": torch.zeros(3)}, "{} holds a tensor 'weight', which is of no member: save the ensemble again."),
        ({"1.weight": torch.full((3, 4), math.nan)}, "The weight 'weight' of member 1 in {} is not finite: "),
    ],
)
def test_members_that_cannot_be_are_refused(library, tmp_path, change, message):
    folder = shutil.copytree(library["ensemble"][0], tmp_path / "members")
    sign(folder, manifest_of(folder), safetensors.torch.load_file(file_of(folder)) | change)
    with pytest.raises(ArtifactError) as caught:
        load_members(folder, lambda: nn.Linear(4, 3))
    assert str(caught.value).startswith(message.format(folder))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def containers(content):
    """All dictionaries and lists in some JSON, outermost first."""
    if isinstance(content, dict | list):
        yield content
        for value in content.values() if isinstance(content, dict) else content:
            yield from containers(value)


def change_json(data, content):
    container = data.draw(st.sampled_from([found for found in containers(content) if found]))
    key = data.draw(st.sampled_from(list(container if isinstance(container, dict) else range(len(container)))))
    match data.draw(st.sampled_from(["replace", "delete", "add"])):
        case "replace":
            container[key] = data.draw(json_values)
        case "delete":
            del container[key]
        case "add" if isinstance(container, dict):
            container[data.draw(st.text(max_size=3))] = data.draw(json_values)
        case _:
            container.append(data.draw(json_values))


def change_tensors(data, tensors):
    name = data.draw(st.sampled_from(sorted(tensors)))
    tensor = tensors[name]
    match data.draw(st.sampled_from(["value", "dtype", "shape", "delete", "rename", "scale"])):
        case "value":
            number = data.draw(st.integers(-(2**63), 2**63 - 1) if tensor.dtype == torch.int64 else st.floats())
            tensor.view(-1)[data.draw(st.integers(0, tensor.numel() - 1))] = torch.tensor(number)
        case "dtype":
            kinds = [torch.float32, torch.float16, torch.int64, torch.bool, torch.bfloat16, torch.uint8]
            tensors[name] = tensor.to(data.draw(st.sampled_from(kinds)))
        case "shape":
            tensors[name] = tensor.new_zeros(data.draw(st.lists(st.integers(0, 4), max_size=3)))
        case "delete":
            del tensors[name]
        case "rename":
            tensors[data.draw(st.text(st.characters(codec="ascii"), max_size=3))] = tensors.pop(name)
        case "scale":
            tensors[name] = tensor * data.draw(st.sampled_from([0, -1, 10**9]))


def check_any_change(library, data):
    """What was changed and signed loads and predicts, or is refused by an error of ours."""
    folder, model = library[data.draw(st.sampled_from(DETECTORS))]
    content = file_of(folder).read_bytes()
    manifest, tensors = manifest_of(folder), safetensors.torch.load_file(file_of(folder))
    if tensors and data.draw(st.booleans()):
        change_tensors(data, tensors)
    else:
        change_json(data, manifest["content"])
    try:
        sign(folder, manifest, tensors)
        with contextlib.suppress(DDUError):
            ddu.load(folder, model, strict=False).predict(batches(samples=6)[0][0])
    finally:
        file_of(folder).write_bytes(content)


@pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")
@settings(derandomize=True, deadline=None, max_examples=50)
@given(data=st.data())
def test_whatever_is_changed_and_signed_works_or_is_refused(library, data):
    check_any_change(library, data)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")
@settings(derandomize=True, deadline=None, max_examples=1500)
@given(data=st.data())
def test_whatever_else_is_changed_and_signed_works_or_is_refused(library, data):
    check_any_change(library, data)


# Saving again


def test_a_new_version_replaces_the_old_one_and_leaves_nothing_behind(folder, newer, model):
    (folder / ".detector.safetensors.0123456789abcdef.tmp").write_text("of a process that was killed")
    (folder / "README").write_text("mine")
    newer.save(folder)
    assert ddu.load(folder, model).class_names is None
    assert sorted(path.name for path in folder.iterdir()) == ["README", "detector.safetensors"]


def test_a_crash_while_saving_leaves_the_old_detector(folder, detector, newer, model, monkeypatch):
    x = batches(seed=2)[0][0]

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr("os.fsync", full_disk)
        with pytest.raises(OSError, match="No space left on device"):
            newer.save(folder)
    assert torch.equal(ddu.load(folder, model).predict(x).epistemic, detector.predict(x).epistemic)
    assert not list(folder.glob(".*"))
    newer.save(folder)
    assert torch.equal(ddu.load(folder, model).predict(x).epistemic, newer.predict(x).epistemic)


def test_threads_that_save_and_load_at_the_same_time_do_not_disturb_each_other(tmp_path, detector, newer, model):
    scores = {one.class_names: one.density.moments_.mean for one in (detector, newer)}
    detector.save(tmp_path)

    def save_or_load(turn):
        if turn % 3 < 2:
            (detector, newer)[turn % 3].save(tmp_path)
        else:
            loaded = ddu.load(tmp_path, model)
            assert torch.equal(loaded.density.moments_.mean, scores[loaded.class_names])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(save_or_load, range(60)))
    assert [path.name for path in tmp_path.iterdir()] == ["detector.safetensors"]


# Processes with threads that save two detectors and load what is there, all at the same time.
_CROWD = """
import os, sys, traceback
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn
import ddu

torch.manual_seed(0)
torch.set_num_threads(1)
folder, processes, threads, turns = sys.argv[1], *map(int, sys.argv[2:])
model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
x = torch.randn(400, 4)
y = model(x).argmax(1)  # as good as trained
detectors = [ddu.DDU(model, class_names=names).fit([(x * scale, y)]) for names, scale in (("ab", 1), ("cd", 2))]
scores = {detector.class_names: detector.predict(x).epistemic for detector in detectors}
detectors[0].save(folder)

def work(turn):
    detectors[turn % 2].save(folder)
    loaded = ddu.load(folder, model)
    assert torch.equal(loaded.predict(x).epistemic, scores[loaded.class_names])

children = []
for _ in range(processes):
    child = os.fork()
    if child == 0:
        try:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, range(turns)))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * processes
assert os.listdir(folder) == ["detector.safetensors"], os.listdir(folder)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_thousand_saves_and_loads_by_processes_and_threads_are_all_whole(tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", _CROWD, str(tmp_path / "detector"), "5", "4", "200"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


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
    halfway += len(list(folder.iterdir())) > 1
    loaded = ddu.load(folder, model)
    assert torch.equal(loaded.predict(x).epistemic, scores[loaded.class_names])
    outcomes.add(loaded.class_names)
detectors[1].save(folder)
print(halfway, len(outcomes), len(list(folder.iterdir())))
"""


@pytest.mark.slow
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
    assert files == 1


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
            only_the_error = [name.name for name in node.names] == ["UnpicklingError"]
            found += [node.module] * ((node.module or "").split(".")[0] in _UNSAFE_MODULES and not only_the_error)
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
        ("from pickle import UnpicklingError", []),
        ("from pickle import UnpicklingError, load", ["pickle"]),
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
