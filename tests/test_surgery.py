from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddu.errors import InputError
from ddu.layers import AvgPoolShortcut, bake
from ddu.models import create_model
from ddu.surgery import Change, regularise


def _torchvision(name: str, **options: Any) -> nn.Module:
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    return torchvision.models.get_model(name, weights=None, **options)


def _images(size: int = 64) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def _count(model: nn.Module, kind: type[nn.Module]) -> int:
    return sum(isinstance(module, kind) for module in model.modules())


def test_regularised_torchvision_resnet18_computes_what_ours_does():
    theirs = _torchvision("resnet18", num_classes=5)
    report = regularise(theirs, coeff=0.5)
    ours = create_model("resnet18", num_classes=5, stem="imagenet", spectral_norm=0.5)
    # Both hold the same tensors in the same order, under other names; no layer has seen a batch.
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    x = _images(size=65)
    torch.testing.assert_close(theirs(x), ours(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(theirs.eval()(x), ours.eval()(x), rtol=1e-4, atol=1e-4)
    assert (len(report.spectral_norms), len(report.activations), len(report.shortcuts)) == (17, 9, 3)
    assert report.left == (Change("fc", "Linear(512, 5)", "unchanged: the head"),)


def test_resnet50_keeps_the_projection_that_sees_every_pixel():
    model = _torchvision("resnet50")
    report = regularise(model)
    assert len(report.spectral_norms) == 50  # 53, and three pooled
    assert [change.layer for change in report.shortcuts] == [f"layer{i}.0.downsample" for i in (2, 3, 4)]
    assert report.shortcuts[0] == Change(
        "layer2.0.downsample",
        "Conv2d(256, 512, 1x1, stride 2) + BatchNorm2d",
        "AvgPoolShortcut(256, 512, stride=2)",
    )
    assert isinstance(model.get_submodule("layer1.0.downsample"), nn.Sequential)
    assert (_count(model, nn.ReLU), _count(model, nn.LeakyReLU), _count(model, AvgPoolShortcut)) == (0, 17, 3)


@pytest.mark.parametrize(("name", "shortcuts"), [("resnet18", 3), ("resnet18d", 0), ("resnetv2_18", 3)])
def test_timm_network_keeps_shapes_and_trains(name: str, shortcuts: int):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=4)
    sizes = [tuple(z.shape) for z in (model.forward_features(_images()), model(_images()))]
    report = regularise(model)
    assert len(report.shortcuts) == shortcuts
    assert _count(model, nn.ReLU) == 0
    logits = model(_images())
    assert [tuple(model.forward_features(_images()).shape), tuple(logits.shape)] == sizes
    logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert report.left[-1].now == "unchanged: the head"


def test_weights_of_every_remaining_layer_are_kept():
    model = _torchvision("resnet18", num_classes=5)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    regularise(model, coeff=1e6)  # a bound that never binds: the raw weights are the effective ones
    model(_images())
    after = bake(model.eval()).state_dict()
    assert {key.rpartition(".downsample.")[1] for key in before.keys() - after.keys()} == {".downsample."}
    weights = [key for key, _ in model.named_parameters()]
    assert len(weights) == 53
    for key in weights:
        torch.testing.assert_close(after[key], before[key], rtol=1e-6, atol=0, msg=key)


def test_second_call_changes_nothing_more():
    model = _torchvision("resnet18", num_classes=5)
    regularise(model)
    again = regularise(model)
    assert again.spectral_norms == again.activations == again.shortcuts == ()
    assert again.left[0] == Change(
        "conv1", "Conv2d(3, 64, 7x7, stride 2)", "unchanged: its weight is parametrised already"
    )
    assert len(again.left) == 18


def test_shared_activation_stays_shared_and_modes_are_kept():
    relu = nn.ReLU(inplace=True)
    model = nn.Sequential(nn.Linear(2, 3), relu, nn.Linear(3, 3), relu, nn.Linear(3, 2)).eval()
    report = regularise(model)
    assert [change.layer for change in report.activations] == ["1", "3"]
    assert isinstance(model[1], nn.LeakyReLU)
    assert model[1] is model[3]
    assert model[1].inplace
    assert not any(module.training for module in model.modules())


class _Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        class OwnConv(nn.Conv2d):
            def forward(self, input: Tensor) -> Tensor:
                return super().forward(input) * 2

        self.own = OwnConv(3, 4, 3)
        self.up = nn.ConvTranspose2d(4, 4, 2)
        self.mirrored = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.attention = nn.MultiheadAttention(4, 2)
        self.shortcut = nn.Conv2d(4, 2, 1, stride=2)
        self.head = nn.Linear(2, 2)


def test_what_cannot_be_changed_is_left_with_the_reason():
    report = regularise(_Odd())
    assert report.left == (
        Change("own", "OwnConv(3, 4, 3x3)", "unchanged: it computes with its weight in a way of its own"),
        Change("up", "ConvTranspose2d(4, 4, 2x2)", "unchanged: it computes with its weight in a way of its own"),
        Change("mirrored", "Conv2d(4, 4, 3x3)", "unchanged: its padding is 'reflect', not zeros"),
        Change("attention.out_proj", "Linear(4, 4)", "unchanged: the attention around it reads its weight past it"),
        Change("head", "Linear(2, 2)", "unchanged: the head"),
    )
    # Pooling cannot drop channels, so this projection stays a convolution.
    assert report.spectral_norms == (Change("shortcut", "Conv2d(4, 2, 1x1, stride 2)", "spectral norm at most 3"),)
    assert report.shortcuts == ()


def test_head_can_be_named():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3))
    report = regularise(model, head="0")
    assert [change.layer for change in report.spectral_norms] == ["1"]
    assert report.left == (Change("0", "Linear(2, 3)", "unchanged: the head"),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            "The network has no nn.Linear and no 1x1 convolution to be its head: name the layer that gives the logits, "
            "head=...",
        ),
        ({"head": "fc"}, "The network has no layer 'fc' to be its head; its last layer is '1'."),
        ({"head": "1", "coeff": 0}, "The 'coeff' parameter of spectral_norm must be a positive number. Got 0 instead."),
    ],
)
def test_wrong_argument_is_named_and_nothing_is_changed(options: dict[str, Any], message: str):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    before = str(model)
    with pytest.raises(InputError) as caught:
        regularise(model, **options)
    assert str(caught.value) == message
    assert str(model) == before


def test_report_prints_as_a_table():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    assert str(regularise(model)).splitlines() == [
        "spectral norms: 1, activations: 1, shortcuts: 0, left as they were: 1",
        "",
        "layer  was                now",
        "0      Conv2d(3, 8, 3x3)  spectral norm at most 3",
        "1      ReLU               LeakyReLU(0.01)",
        "4      Linear(8, 2)       unchanged: the head",
    ]
