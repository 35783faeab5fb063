import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy

from ddu.errors import DDUError, InputError, NotSupportedError
from ddu.layers import (
    POWER_STEPS,
    AvgPoolShortcut,
    GaussianProcessHead,
    RBFHead,
    SpectralBatchNorm2d,
    SpectralConv2d,
    SpectralLinear,
    spectral_norm,
)
from ddu.layers.spectral import SpectralNorm
from ddu.models import MLP, Layers, ResNet, WideResNet, create_model, list_models
from ddu.models._factory import _choose_stem
from ddu.models._layers import choose_layers
from ddu.models.resnet import BasicBlock
from ddu.models.wide_resnet import PreActivationBlock
from ddu.surgery import regularise


def _kinds(model: nn.Module) -> set[type[nn.Module]]:
    kinds = (nn.ReLU, nn.LeakyReLU, AvgPoolShortcut, SpectralConv2d, SpectralBatchNorm2d)
    return {kind for module in model.modules() for kind in kinds if isinstance(module, kind)}


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({}, {nn.LeakyReLU, AvgPoolShortcut, SpectralConv2d}),
        ({"spectral_batch_norm": True}, {nn.LeakyReLU, AvgPoolShortcut, SpectralConv2d, SpectralBatchNorm2d}),
        ({"sensitive": False}, {nn.ReLU, SpectralConv2d}),
        ({"spectral_norm": None}, {nn.LeakyReLU, AvgPoolShortcut}),
        ({"spectral_norm": None, "sensitive": False}, {nn.ReLU}),
    ],
)
def test_options_choose_the_layers(options: dict[str, Any], kinds: set[type[nn.Module]]):
    assert _kinds(create_model("resnet18", width=0.05, **options)) == kinds


def test_sensitive_activation_is_leaky_relu_with_slope_one_hundredth():
    model = create_model("vgg16", width=0.05)
    slopes = {module.negative_slope for module in model.modules() if isinstance(module, nn.LeakyReLU)}
    assert slopes == {0.01}


def test_bound_and_power_steps_reach_every_layer():
    torch.manual_seed(0)
    model = create_model("resffn4_128", spectral_norm=0.65, power_steps=5)
    model(torch.randn(8, 2))
    hidden = [module for module in model.modules() if isinstance(module, SpectralLinear)]
    norms = torch.stack([torch.linalg.matrix_norm(layer.weight, 2) for layer in hidden])
    assert len(norms) == 5
    # Kaiming's uniform start has norms above 1, so the bound is met by all, to the accuracy of the singular vectors.
    torch.testing.assert_close(norms, torch.full((5,), 0.65), rtol=0.02, atol=0)
    steps = {module.power_steps for module in model.modules() if isinstance(module, SpectralNorm)}
    assert steps == {5}


@pytest.mark.parametrize(
    "function", [create_model, choose_layers, regularise, spectral_norm, SpectralConv2d, SpectralLinear]
)
def test_power_steps_have_one_default(function: Callable[..., object]):
    assert inspect.signature(function).parameters["power_steps"].default is POWER_STEPS


def test_norms_of_nearly_all_layers_keep_their_bound_through_the_first_steps_of_training():
    torch.manual_seed(0)
    model = create_model("resnet18", width=0.05, spectral_norm=1.0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    prototypes = torch.randn(10, 3, 8, 8)
    norms = []
    for _ in range(15):
        labels = torch.randint(10, (32,))
        loss = cross_entropy(model(prototypes[labels] + torch.randn(32, 3, 8, 8)), labels)
        norms += _norms(model)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    norms = torch.tensor(norms)
    assert (norms > 0.99).float().mean() > 0.8  # most layers are held back by the bound
    # A third of them is above 1.02 with one power step, a tenth with two
    assert (norms > 1.02).float().mean() < 0.07
    assert norms.max() < 1.2


def _norms(model: nn.Module) -> list[float]:
    """The largest singular value of the matrix of each convolution, with the weight of the last forward pass."""
    found = []
    model.eval()
    for layer in model.modules():
        if isinstance(layer, SpectralConv2d):
            shape = layer.get_buffer("parametrizations.weight.0.v").shape[1:]
            pixels = torch.eye(shape.numel()).view(-1, *shape)
            with torch.no_grad():
                matrix = conv2d(pixels, layer.weight, stride=layer.stride, padding=layer.padding).flatten(1)
            gram = matrix @ matrix.T if len(matrix) < matrix.shape[1] else matrix.T @ matrix
            found.append(torch.linalg.eigvalsh(gram)[-1].sqrt().item())
    model.train()
    return found


def test_networks_take_any_layers():
    model = ResNet(BasicBlock, (1, 1, 1, 1), width=0.1, layers=Layers(norm=nn.InstanceNorm2d, activation=nn.SiLU))
    assert sum(isinstance(module, nn.SiLU) for module in model.modules()) == 9
    assert sum(isinstance(module, nn.InstanceNorm2d) for module in model.modules()) == 12
    assert model(torch.zeros(2, 3, 16, 16)).shape == (2, 10)


@pytest.mark.parametrize(
    ("in_channels", "input_size", "stem"),
    [
        (1, None, "mnist"),
        (3, None, None),
        (None, None, None),
        (3, 28, "mnist"),
        (1, 32, "cifar"),
        (3, (32, 64), "cifar"),
        (3, (120, 400), "cifar"),
        (3, 224, "imagenet"),
        (1, 512, "imagenet"),
    ],
)
def test_stem_follows_the_size_and_then_the_channels(in_channels: Any, input_size: Any, stem: str | None):
    assert _choose_stem(in_channels, input_size) == stem


def test_networks_of_imagenet_have_its_stem_by_default():
    x = torch.zeros(1, 3, 64, 64)
    for name, side in (("resnet50", 64), ("wide_resnet50_2", 16)):
        model = create_model(name, width=0.05).eval()
        assert isinstance(model, ResNet)
        assert model.stem(x).shape[2:] == (side, side)


def test_vector_networks_call_their_axis_channels_too():
    x = torch.zeros(1, 5)
    assert create_model("resffn4_128", in_features=5)(x).shape == (1, 10)
    assert create_model("resffn4_128", in_channels=5)(x).shape == (1, 10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lenet", {"stem": "mnist"}, "lenet has no option 'stem'; it takes in_channels."),
        ("resnet18", {"in_features": 3}, "resnet18 has no option 'in_features'; it takes in_channels, stem."),
        ("resnet18", {"dropout": 0.1}, "resnet18 has no option 'dropout'; it takes in_channels, stem."),
        (
            "fc_net4_128",
            {"in_features": 2, "in_channels": 2},
            "fc_net4_128 has no option 'in_channels'; it takes in_features, dropout.",
        ),
        (
            "vgg16",
            {"stem": "svhn"},
            "The 'stem' parameter must be 'mnist', 'cifar' or 'imagenet'. Got 'svhn' instead.",
        ),
        (
            "resffn4_128",
            {"head": "rbf"},
            "The 'head' parameter must be 'linear', 'duq' or 'sngp'. Got 'rbf' instead.",
        ),
        (
            "resffn4_128",
            {"head_options": {"length_scale": 1.0}},
            "A head of the kind 'linear' has no option 'length_scale'; it takes none.",
        ),
        (
            "resffn4_128",
            {"head": "duq", "head_options": {"sigma": 1.0}},
            "A head of the kind 'duq' has no option 'sigma'; it takes embedding_size, length_scale, momentum, "
            "initial_count.",
        ),
        ("vgg16", {"width": 0}, "The 'width' parameter must be a positive number. Got 0 instead."),
        ("vgg16", {"num_classes": 0}, "The 'num_classes' parameter must be at least 1. Got 0 instead."),
    ],
)
def test_wrong_option_is_named(name: str, options: dict[str, Any], message: str):
    with pytest.raises(InputError) as caught:
        create_model(name, **options)
    assert str(caught.value) == message


def test_spectral_batch_norm_needs_a_bound():
    with pytest.raises(NotSupportedError) as caught:
        create_model("resnet18", spectral_norm=None, spectral_batch_norm=True)
    assert str(caught.value) == (
        "spectral_batch_norm=True takes its bound from spectral_norm, which is None: give both, or neither."
    )


@pytest.mark.parametrize(("head", "kind"), [("duq", RBFHead), ("sngp", GaussianProcessHead)])
def test_a_head_takes_the_place_of_the_linear_one(head: Any, kind: type[torch.nn.Module]):
    model = create_model("resnet18", num_classes=7, width=0.1, head=head, head_options={"length_scale": 0.7})
    assert type(model.head) is kind
    x = torch.randn(2, 3, 32, 32)
    model.eval()(x)  # the first batch settles the spectral norms
    assert model(x).shape == (2, 7)
    assert torch.equal(model(x), model.head(model.forward_features(x)))
    assert "length_scale=0.7" in repr(model.head)


# Names


def test_list_models_is_sorted_and_complete():
    assert list_models() == [
        "densenet121",
        "fc_net4_128",
        "lenet",
        "resffn4_128",
        "resnet110",
        "resnet18",
        "resnet50",
        "vgg16",
        "wide_resnet28_10",
        "wide_resnet50_2",
    ]


def test_list_models_filters_with_wildcards():
    assert list_models("*resnet50*") == ["resnet50", "wide_resnet50_2"]
    assert list_models("transformer*") == []


def test_families_answer_to_every_size():
    small = create_model("wide_resnet10_2", width=0.5)
    assert isinstance(small, WideResNet)
    assert small.num_features == 64
    blocks = [module for module in small.modules() if isinstance(module, PreActivationBlock)]
    assert len(blocks) == 3
    tall = create_model("resffn7_12", in_features=3)
    assert isinstance(tall, MLP)
    assert (tall.num_features, len(tall.blocks)) == (12, 7)


def test_exact_name_comes_before_the_family_that_it_resembles():
    assert isinstance(create_model("wide_resnet50_2", width=0.0625), ResNet)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "wideresnet",
            "There is no model 'wideresnet'. The closest names are 'wide_resnet50_2', 'wide_resnet28_10', 'resnet50'; "
            "list_models() gives them all.",
        ),
        (
            "WRN-28-10",
            "There is no model 'WRN-28-10'. The closest names are 'wide_resnet28_10', 'resnet110'; "
            "list_models() gives them all.",
        ),
        ("xyz", "There is no model 'xyz'. list_models() gives them all."),
        ("", "There is no model ''. list_models() gives them all."),
    ],
)
def test_unknown_name_answers_with_the_closest_ones(name: str, message: str):
    with pytest.raises(InputError) as caught:
        create_model(name)
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DDUError)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wide_resnet29_10", "The depth of a wide ResNet is 6n + 4. Got 29; the nearest are 28 and 34."),
        ("wide_resnet8_1", "The depth of a wide ResNet is 6n + 4. Got 8; the smallest is 10."),
    ],
)
def test_impossible_depth_of_a_wide_resnet_names_the_nearest(name: str, message: str):
    with pytest.raises(InputError) as caught:
        create_model(name)
    assert str(caught.value) == message
