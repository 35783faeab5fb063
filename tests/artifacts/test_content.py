"""Content that is wrong under checksums that are right is refused in words."""

import contextlib
import math
import re
import shutil
import warnings
from functools import partial

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ddu
from ddu.detectors import DUQ, SNGP, Energy, Ensemble, Mahalanobis, Softmax, load_members
from ddu.errors import (
    ArtifactError,
    CalibrationWarning,
    DDUError,
    FeatureError,
    InputError,
    LabelWarning,
    LayerError,
)
from ddu.layers import GaussianProcessHead, RBFHead
from tests.artifacts.files import batches, file_of, make_model, manifest_of, refusal, sign


def head_models():
    """Small networks by the name of the detector that they are for, and what makes it."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        rbf = nn.Sequential(nn.Linear(4, 8), RBFHead(8, 3, embedding_size=4))
        process = nn.Sequential(nn.Linear(4, 8), GaussianProcessHead(8, 3, num_features=16))
        members = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
    plain = make_model()
    low_rank = ddu.GaussianDensity("low_rank", rank=1, background=True)
    one = partial(ddu.DDU, features=None, view="raw", energy=False)
    return {
        "ddu": (plain, ddu.DDU),
        "ddu low rank": (plain, partial(one, density=low_rank)),
        "ddu pca": (plain, partial(one, density=ddu.GaussianDensity(shrinkage="oas", standardize=True, pca=0.9))),
        "mahalanobis": (plain, partial(Mahalanobis, layers=["0", "3"], relative=True)),
        "softmax": (plain, Softmax),
        "energy": (plain, Energy),
        "ensemble": (members, Ensemble),
        "sngp": (process, SNGP),
        "duq": (rbf, DUQ),
    }


DETECTORS = ("ddu", "ddu low rank", "ddu pca", "mahalanobis", "softmax", "energy", "ensemble", "sngp", "duq")
LEARNED = ("ddu", "ddu low rank", "ddu pca", "mahalanobis", "sngp")
WITH_MOMENTS = ("ddu low rank",)


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
            detector.calibrate(batches(seed=1), 0.05)
            detector.save(folder, **({"moments": True} if name in WITH_MOMENTS else {}))
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
        ("threshold", "luck", "The 'threshold' must be one of 'conformal', 'training_quantile'. Got 'luck' instead."),
        ("threshold", [1], "The 'threshold' must be one of 'conformal', 'training_quantile'. Got [1] instead."),
        ("per_class", 2, "The 'per_class' parameter must be True or False. Got 2 instead."),
        ("confidence", 1.0, "The confidence must be a float between 0 and 1. Got 1.0 instead."),
        ("error_rate", -0.1, "The error rate must be a float between 0 and 1. Got -0.1 instead."),
        ("coverage", None, "The coverage must be a float between 0 and 1. Got None instead."),
        ("false_alarm_rate", 0.0, "The false-alarm rate must be a float between 0 and 1. Got 0.0 instead."),
        ("false_alarm_rate", 1.5, "The false-alarm rate must be a float between 0 and 1. Got 1.5 instead."),
        ("false_alarm_rate", math.nan, "The false-alarm rate must be a float between 0 and 1. Got nan instead."),
        ("tmperature", 1.0, "There must be no entry 'tmperature' in the calibration. Did you mean 'temperature'?"),
    ],
)
def test_a_calibration_that_cannot_be_is_refused(corrupt, name, entry, value, message):
    assert corrupt(name, lambda content, _: content["calibration"].update({entry: value})) == message


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize(
    ("kept", "change", "message"),
    [
        (
            "epistemic",
            lambda tensor: tensor.fill_(math.nan),
            "The 'epistemic' of {n} of {n} held-out inputs is not finite: check them and the model.",
        ),
        (
            "entropy",
            lambda tensor: tensor.index_fill_(0, torch.tensor([2]), math.inf),
            "The 'entropy' of 1 of {n} held-out inputs is not finite: check them and the model.",
        ),
        (
            "label_prob",
            lambda tensor: tensor[:-1],
            "The kept tensor 'label_prob' of a calibration must be torch.float64 of shape (samples,), as many as there "
            "are scores. Got torch.float64 of shape ({less},) instead.",
        ),
        (
            "correct",
            lambda tensor: tensor.long(),
            "The kept tensor 'correct' of a calibration must be torch.bool of shape (samples,), as many as there are "
            "scores. Got torch.int64 of shape ({n},) instead.",
        ),
        ("predicted", lambda tensor: -tensor - 1, "The kept tensor 'predicted' of a calibration must not be negative."),
        ("luck", None, "There must be no entry 'luck' in the kept tensors of the calibration."),
    ],
)
def test_what_a_calibration_keeps_is_checked(corrupt, library, name, kept, change, message):
    def change_kept(_, tensors):
        key = f"calibration.{kept}"
        tensors[key] = torch.zeros(3) if change is None else change(tensors[key]).contiguous()

    n = len(safetensors.torch.load_file(file_of(library[name][0]))["calibration.epistemic"])
    assert corrupt(name, change_kept).startswith(message.format(n=n, less=n - 1))


@pytest.mark.parametrize("kept", ["entropy", "epistemic"])
def test_what_a_calibration_lacks_is_named(corrupt, kept):
    message = corrupt("softmax", lambda _, tensors: tensors.pop(f"calibration.{kept}"))
    assert message.startswith(f"There must be an entry '{kept}' in the kept tensors of the calibration.")


def test_kept_tensors_without_a_calibration_are_refused(corrupt):
    message = corrupt("softmax", lambda content, _: content.update(calibration=None))
    assert message.startswith("There must be no kept tensors without a calibration. Got correct, ")


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_a_number_that_no_float_holds_is_refused(corrupt, number):
    assert corrupt("softmax", lambda content, _: content["calibration"].update(temperature=number)) == (
        f"The 'temperature' of a calibration must be a finite float above 0. Got {number} instead."
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
            "There must be an entry 'false_alarm_rate' in the calibration. Got 'temperature' instead.",
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
        (
            "ddu",
            "features",
            {"kind": "weights", "layer": "3"},
            "A described feature layer has a 'layer', and a 'kind' that ",
        ),
        ("ddu", "features", 3, "features= must be a layer's name, a module of the model, a callable, "),
        ("ddu", "density", "full", "The 'density' parameter of DDU must be a GaussianDensity, or a mapping of its "),
        ("ddu", "density", {"rnak": 3}, "A density has no option 'rnak'. Did you mean 'rank'?"),
        ("ddu", "view", "sharse", "DDU has no view 'sharse'. Did you mean 'shares'?"),
        ("ddu", "view", "raw", "There must be no part '1' in the learned tensors. There are 0."),
        ("ddu", "energy", "no", "The 'energy' parameter of DDU must be True or False. Got 'no' instead."),
        ("ddu", "energy", False, "The learned tensor 'centre' must be torch.float64 of shape (2,). Got "),
        ("ddu", "seed", 10**400, "The 'seed' parameter of DDU must be an integer from 0 to 2⁶³ - 1. Got 1000"),
        (
            "mahalanobis",
            "layers",
            3,
            "The 'layers' parameter of Mahalanobis must be a list of layers or 'stages'. Got 3 instead.",
        ),
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
        ("covariance", ["full"], "one of 'auto', 'full', 'shared', 'diagonal', 'low_rank'. Got ['full'] instead."),
    ],
)
def test_a_density_that_cannot_be_is_refused(corrupt, option, value, wanted):
    message = corrupt("ddu", lambda content, _: content["options"]["density"].update({option: value}))
    assert message == f"The '{option}' parameter of GaussianDensity must be {wanted}"


def largest(name):
    """The largest tensor that a detector learns, as its refusals call it: of moments, or of factors."""
    return "scatter" if name in (*WITH_MOMENTS, "sngp") else "scorer.whitening"


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_learned_tensors_that_are_not_finite_are_refused(corrupt, name, value):
    def change(content, tensors):
        tensor = next(tensor for key, tensor in tensors.items() if key.endswith(largest(name)))
        tensor.view(-1)[:2] = value

    pattern = rf"The learned tensor '{largest(name)}' has 2 of \d+ values that are not finite\."
    assert re.fullmatch(pattern, corrupt(name, change))


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensor: tensor.half(),
            r"must be torch\.float(?:32|64) of shape (.*)\. Got torch\.float16 of shape \1 instead\.",
        ),
        (
            lambda tensor: tensor[..., :-1],
            r"must be (.*) of shape .*\. Got \1 of shape .* instead\.",
        ),
    ],
    ids=["dtype", "shape"],
)
def test_learned_tensors_of_another_type_or_shape_are_refused(corrupt, name, change, message):
    def change_all(content, tensors):
        for key, tensor in tensors.items():
            if key.endswith(largest(name)):
                tensors[key] = change(tensor).contiguous()

    assert re.fullmatch(f"The learned tensor '{largest(name)}' {message}", corrupt(name, change_all))


@pytest.mark.parametrize(
    ("name", "key", "tensor", "message"),
    [
        (
            "ddu",
            "0.factors.scorer.mean",
            torch.zeros(4, 9),
            "The learned tensor 'scorer.log_prior' must be torch.float32 of shape (4,). Got torch.float32 of shape "
            "(3,) instead.",
        ),
        (
            "ddu",
            "0.factors.scorer.mean",
            torch.zeros(3),
            "The learned tensor 'scorer.mean' must have the shape (classes, features). Got (3,) instead.",
        ),
        (
            "ddu",
            "1.factors.scorer.whitening",
            torch.ones(3, 64),
            "The learned tensor 'scorer.whitening' must be triangular, with a diagonal above 0.",
        ),
        (
            "ddu low rank",
            "0.mean",
            torch.zeros(4, 8).double(),
            "The learned tensor 'count' must be torch.int64 of shape (4,). Got torch.int64 of shape (3,) instead.",
        ),
        (
            "ddu low rank",
            "0.mean",
            torch.zeros(3).double(),
            "The learned tensor 'mean' must have the shape (classes, features). Got (3,) instead.",
        ),
        (
            "ddu low rank",
            "0.mean",
            torch.zeros(3, 9).double(),
            "The learned tensor 'squares' must be torch.float64 of shape (3, 9). Got torch.float64 of shape "
            "(3, 8) instead.",
        ),
        (
            "ddu",
            "0.count",
            torch.tensor([100, 100]),
            "The learned tensor 'count' must be torch.int64 of shape (3,). Got torch.int64 of shape (2,) instead.",
        ),
        (
            "ddu",
            "1.count",
            torch.tensor([100, -1, 100]),
            "Every class needs at least 2 samples. Got -1 instead.",
        ),
        (
            "ddu low rank",
            "0.count",
            torch.tensor([100, -1, 100]),
            "The learned tensors 'count' and 'squares' must not be negative, nor the counts above 2⁵³.",
        ),
        (
            "ddu low rank",
            "0.count",
            torch.tensor([2**62, 2**62, 2**62]),
            "The learned tensors 'count' and 'squares' must not be negative, nor the counts above 2⁵³.",
        ),
        (
            "ddu",
            "secret",
            torch.zeros(1),
            "There must be no entry 'secret' in the learned tensors. There are centre, scale.",
        ),
        ("ddu", "0.secret", torch.zeros(1), "There must be no entry 'secret' in the learned tensors. There are count."),
        ("ddu", "7.mean", torch.zeros(1), "There must be no part '7' in the learned tensors. There are 0, 1."),
        (
            "ddu",
            "scale",
            torch.tensor([1.0, 0.0, 1.0]).double(),
            "The learned tensor 'scale' must be above 0. Got [1.0, 0.0, 1.0] instead.",
        ),
        (
            "ddu",
            "centre",
            torch.zeros(4).double(),
            "The learned tensor 'centre' must be torch.float64 of shape (3,). Got torch.float64 of shape (4,) instead.",
        ),
        (
            "ddu low rank",
            "0.test_matrix",
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
            "1.factors.scorer.mean",
            torch.zeros(0, 8),
            "The learned tensor 'scorer.mean' must have the shape (classes, features). Got (0, 8) instead.",
        ),
        (
            "mahalanobis",
            "0.factors.scorer.inverse_std",
            torch.tensor([1.0, -1.0]),
            "The learned tensor 'scorer.inverse_std' must be above 0. Got -1 instead.",
        ),
        ("mahalanobis", "0.count", torch.tensor([9, 1, 9]), "Every class needs at least 2 samples. Got 1 instead."),
        (
            "mahalanobis",
            "0.factors.scorer.log_prior",
            torch.zeros(3),
            "The learned tensor 'scorer.log_prior' must be the logarithm of shares that add up to 1.",
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
        del tensors[next(key for key in tensors if key.endswith(largest(name)))]

    wanted = f"There must be an entry '{largest(name)}' in the learned tensors. Got "
    assert corrupt(name, change).startswith(wanted)


def test_a_layer_that_the_model_does_not_have_is_named(folder, model):
    manifest = manifest_of(folder)
    manifest["content"]["options"]["features"][0]["layer"] = "9"
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
        (
            {"weight": torch.zeros(3)},
            "{} holds a tensor 'weight', which belongs to no member: save the ensemble again.",
        ),
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
    name = data.draw(st.sampled_from(sorted(name for name, tensor in tensors.items() if tensor.numel())))
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
