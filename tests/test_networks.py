"""Networks by name, their weights, and preprocessing as other packages write it."""

import importlib

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image
from torch import nn
from torchvision import models, transforms
from torchvision.transforms import v2

from ddu.data import Preprocessing
from ddu.data.preprocessing import IMAGENET_SCALE
from ddu.errors import ArtifactError, InputError, LayerError
from ddu.features import LogitsTap
from ddu.networks import find_function, first_batch, load_weights, open_network, read_preprocessing

SCALE = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3)}
CUBIC = transforms.InterpolationMode.BICUBIC


def steps(*first, normalise=True):
    return transforms.Compose([*first, transforms.ToTensor(), *([transforms.Normalize(**SCALE)] if normalise else [])])


RESIZE, CROP = transforms.Resize(40), transforms.CenterCrop(32)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (steps(RESIZE, CROP), Preprocessing((3, 32, 32), **SCALE, kept=0.8)),
        (steps(transforms.Resize(40, CUBIC), CROP), Preprocessing((3, 32, 32), **SCALE, kept=0.8, resizing="bicubic")),
        (steps(RESIZE, CROP, normalise=False), Preprocessing((3, 32, 32), (0,) * 3, (1,) * 3, 0.8)),
        (steps(transforms.Grayscale(), RESIZE, CROP, normalise=False), Preprocessing((1, 32, 32), (0,), (1,), 0.8)),
        (
            v2.Compose(
                [v2.Resize(32), v2.CenterCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, True), v2.Normalize(**SCALE)]
            ),
            Preprocessing((3, 32, 32), **SCALE),
        ),
        (
            models.ResNet18_Weights.DEFAULT.transforms(),
            Preprocessing((3, 224, 224), **IMAGENET_SCALE, kept=0.875),
        ),
        (
            {"input_size": (3, 32, 32), "interpolation": "bicubic", **SCALE, "crop_pct": 0.8, "crop_mode": "center"},
            Preprocessing((3, 32, 32), **SCALE, kept=0.8, resizing="bicubic"),
        ),
        (Preprocessing((3, 32, 32), **SCALE).to_json(), Preprocessing((3, 32, 32), **SCALE)),
        (Preprocessing((2,)), Preprocessing((2,))),
    ],
)
def test_a_preprocessing_of_other_packages_is_read(transform, expected):
    assert read_preprocessing(transform) == expected


@pytest.mark.parametrize("config", [{"crop_pct": 0.875}, {"interpolation": "bicubic", "crop_pct": 0.95}])
@pytest.mark.parametrize("size", [(300, 400), (230, 224), (100, 80)])
def test_what_is_read_does_to_an_image_what_the_transform_does(config, size, tmp_path):
    config = {
        "input_size": (3, 224, 224),
        "interpolation": "bilinear",
        **IMAGENET_SCALE,
        "crop_mode": "center",
    } | config
    transform = timm.data.create_transform(**config)
    y, x = np.mgrid[0 : 1 : size[0] * 1j, 0 : 1 : size[1] * 1j]
    waves = np.stack([np.sin(9 * x + 5 * y), np.cos(7 * y * x), np.sin(12 * x)], axis=-1)
    image = Image.fromarray((127.5 + 127.5 * waves).astype(np.uint8))
    for given in (config, transform):
        ours = read_preprocessing(given)(image)[0]
        # Where half a pixel is to be cut off, one of the two cuts it off at the other side
        assert (ours - transform(image)).abs().max() < 0.2


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (steps(transforms.Resize((40, 40)), CROP), "Resize((40, 40)) and CenterCrop((32, 32)), where only squares can"),
        (steps(CROP), "no Resize to one number followed by CenterCrop, so that its size is unknown"),
        (steps(RESIZE, CROP, transforms.RandomHorizontalFlip()), "This preprocessing has RandomHorizontalFlip, which"),
        (steps(RESIZE, RESIZE, CROP), "This preprocessing has a second Resize, which ddu does not do"),
        (steps(transforms.Resize(20), CROP), "a crop of 32 out of 20 pixels"),
        (
            steps(transforms.Resize(40, transforms.InterpolationMode.NEAREST), CROP),
            "This preprocessing has nearest resizing, which ddu does not do: return a ddu.data.Preprocessing instead.",
        ),
        ({"input_size": (3, 32, 32), **SCALE, "crop_mode": "squash"}, "the crop mode 'squash'"),
        (
            lambda image: image,
            "A preprocessing is a ddu.data.Preprocessing, or a transform of torchvision or timm. Got",
        ),
    ],
)
def test_a_preprocessing_that_ddu_does_not_do_is_refused_by_name(transform, message):
    with pytest.raises(InputError) as caught:
        read_preprocessing(transform)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["timm:resnet10t", "torchvision:squeezenet1_0"])
def test_a_network_of_a_library_is_its_name_its_options_and_its_weights(name, tmp_path):
    library, _, architecture = name.partition(":")
    torch.manual_seed(3)
    make = timm.create_model if library == "timm" else models.get_model
    theirs = make(architecture, num_classes=5).eval()
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    network = open_network(name, weights=tmp_path / "weights.safetensors", options={"num_classes": 5})
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(network.model(x), theirs(x))
    assert network.is_of_library
    assert network.preprocessing is not None
    assert network.preprocessing.shape[0] == 3
    with pytest.raises(InputError, match="does not have the weights of"):
        open_network(name, weights=tmp_path / "weights.safetensors")  # with 1,000 classes


def test_weights_of_another_network_are_refused_with_one_name_of_each_kind(tmp_path):
    other = models.get_model("squeezenet1_0", num_classes=5).state_dict()
    safetensors.torch.save_file(other, tmp_path / "weights.safetensors")
    with pytest.raises(InputError) as caught:
        open_network("timm:resnet10t", weights=tmp_path / "weights.safetensors")
    assert str(caught.value) == (
        f"{tmp_path / 'weights.safetensors'} does not have the weights of timm:resnet10t: Missing key(s) in "
        'state_dict: "conv1.0.weight" and 71 more; Unexpected key(s) in state_dict: "classifier.1.bias" and 51 more.'
    )


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("timm:resnet18", {}, "timm:resnet18 has random weights: give the trained ones, a safetensors file, with"),
        ("timm:resnet18", {"weights": "w.pt"}, "w.pt would have to be unpickled"),
        ("timm:resnet18", {"weights": "w.safetensors"}, "There is no file w.safetensors with the weights of timm:"),
        ("timm:resnt18", {"weights": "w.safetensors"}, "timm has no network 'resnt18'. Did you mean 'resnet18'?"),
        ("timm:hf-hub:a/b", {"weights": "w.safetensors"}, "timm has no network 'hf-hub:a/b'."),
        ("torchvision:resnet19", {"weights": "w.safetensors"}, "torchvision has no classifier 'resnet19'. Did you"),
        ("timm:resnet18", {"weights": "w.safetensors", "options": {"colour": 1}}, "cannot be made with {'colour': 1}"),
        ("json:loads", {"weights": "w.safetensors"}, "Weights and options are for timm:NAME and torchvision:NAME."),
        ("a network", {}, "A network is named module:function, timm:NAME or torchvision:NAME. Got 'a network'"),
        ("json:", {}, "A network is named module:function"),
        ("json.nothing:make", {}, "There is no module 'json.nothing' in the working folder"),
    ],
)
def test_a_name_without_a_network_is_answered_with_the_way_out(name, given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        open_network(name, **given)
    assert message in str(caught.value)


def test_a_module_that_cannot_be_imported_says_why(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "needs_more.py").write_text("import package_that_is_not_here")
    (tmp_path / "half_written.py").write_text("def make(:")
    importlib.invalidate_caches()
    with pytest.raises(InputError, match="The module needs_more cannot be imported: No module named 'package_that_"):
        find_function("needs_more:make")
    with pytest.raises(InputError, match="The module half_written cannot be imported: SyntaxError"):
        find_function("half_written:make")


def test_damaged_weights_are_refused(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"not safe")
    with pytest.raises(ArtifactError, match="is truncated, or no safetensors file"):
        load_weights(nn.Linear(1, 1), tmp_path / "w.safetensors", "a layer")


class Raises(nn.Module):
    """A network whose forward pass ends in an error."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        raise self.error


@pytest.mark.parametrize(
    ("error", "shape", "whose", "message"),
    [
        (
            RuntimeError("mat1 and mat2 do not fit.\nMore of it"),
            (3, 32, 32),
            "cifar10's",
            "my_models:make cannot take cifar10's inputs of 3 x 32 x 32: mat1 and mat2 do not fit. Give others.",
        ),
        (AssertionError(), (9,), "", "my_models:make cannot take inputs of 9 numbers: AssertionError. Give others."),
    ],
)
def test_inputs_that_a_network_cannot_take_are_named_in_one_sentence(error, shape, whose, message):
    with pytest.raises(InputError) as caught:
        first_batch(
            LogitsTap(Raises(error)), torch.zeros(1, *shape), "my_models:make", whose=whose, way_out="Give others."
        )
    assert str(caught.value) == message
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [AttributeError("shape"), torch.OutOfMemoryError("of 3 GB"), LayerError("no layer")])
def test_what_is_not_about_the_inputs_stays_what_it_was(error):
    with pytest.raises(type(error)) as caught:
        first_batch(LogitsTap(Raises(error)), torch.zeros(1, 9), "my_models:make", way_out="Give others.")
    assert caught.value is error
