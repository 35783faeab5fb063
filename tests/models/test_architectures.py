"""The networks against independent references: torchvision's, and the paper's map sizes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddu.errors import InputError
from ddu.models import MLP, VGG, DenseNet, ResNet, WideResNet, create_model


def _shapes(stages: nn.Sequential, x: Tensor) -> list[tuple[int, ...]]:
    shapes = []
    for stage in stages:
        x = stage(x)
        shapes.append(tuple(x.shape[1:]))
    return shapes


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "densenet121", "wide_resnet50_2"])
def test_plain_imagenet_network_computes_what_torchvision_computes(name: str):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    theirs = torchvision.models.get_model(name, weights=None, num_classes=7)
    ours = create_model(name, num_classes=7, stem="imagenet", spectral_norm=None, sensitive=False)
    # Both hold the same tensors in the same order, under other names.
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sensitive", [True, False])
def test_resnet_maps_on_odd_sizes_round_up(sensitive: bool):
    model = create_model("resnet18", in_channels=1, width=0.125, sensitive=sensitive)
    assert isinstance(model, ResNet)
    shapes = _shapes(model.stages, model.stem(torch.zeros(2, 1, 28, 28)))
    assert shapes == [(8, 28, 28), (16, 14, 14), (32, 7, 7), (64, 4, 4)]


@pytest.mark.parametrize("sensitive", [True, False])
def test_wide_resnet_maps(sensitive: bool):
    model = create_model("wide_resnet10_2", sensitive=sensitive)
    assert isinstance(model, WideResNet)
    shapes = _shapes(model.groups, model.stem(torch.zeros(2, 3, 27, 33)))
    assert shapes == [(32, 27, 33), (64, 14, 17), (128, 7, 9)]


def test_dense_blocks_lose_no_pixel_of_odd_sizes():
    model = create_model("densenet121", in_channels=1, width=0.125)
    assert isinstance(model, DenseNet)
    shapes = _shapes(model.blocks, model.stem(torch.zeros(2, 1, 28, 28)))
    assert [shape[1:] for shape in shapes[::2]] == [(28, 28), (14, 14), (7, 7), (4, 4)]


@pytest.mark.parametrize(("stem", "size", "sides"), [("cifar", 32, [16, 8, 4, 2, 1]), ("mnist", 28, [28, 14, 7, 3, 1])])
def test_vgg_maps_are_the_papers(stem: Any, size: int, sides: list[int]):
    model = create_model("vgg16", stem=stem, in_channels=3, width=0.0625).eval()
    assert isinstance(model, VGG)
    assert [shape[1] for shape in _shapes(model.stages, torch.zeros(1, 3, size, size))] == sides


@pytest.mark.parametrize(
    ("name", "options", "size", "message"),
    [
        (
            "vgg16",
            {"stem": "cifar"},
            (32, 28),
            "This VGG halves the image 5 times and needs at least 32x32 pixels. Got 32x28: resize the images, or use "
            "stem='mnist', which needs 16x16.",
        ),
        (
            "vgg16",
            {"stem": "mnist", "in_channels": 3},
            (8, 8),
            "This VGG halves the image 4 times and needs at least 16x16 pixels. Got 8x8: resize the images.",
        ),
        (
            "lenet",
            {"in_channels": 3},
            (8, 9),
            "LeNet needs at least 16x16 pixels. Got 8x9: resize the images.",
        ),
    ],
)
def test_image_too_small_is_an_input_error(name: str, options: dict[str, Any], size: Any, message: str):
    model = create_model(name, width=0.1, **options)
    with pytest.raises(InputError) as caught:
        model(torch.zeros(1, 3, *size))
    assert str(caught.value) == message


def test_narrow_wide_resnet_keeps_its_stem_until_the_groups_are_narrower():
    for width, stem, groups in ((0.2, 16, 32), (0.1, 16, 16), (0.05, 8, 8)):
        model = create_model("wide_resnet10_10", width=width)
        assert isinstance(model, WideResNet)
        assert model.stem(torch.zeros(1, 3, 4, 4)).shape[1] == stem
        assert model.num_features == 4 * groups


@pytest.mark.parametrize("spectral_norm", [3.0, None])
def test_wide_resnet_keeps_its_own_momentum_dropout_and_start(spectral_norm: float | None):
    torch.manual_seed(0)
    model = create_model("wide_resnet16_4", spectral_norm=spectral_norm)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    drops = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert {norm.momentum for norm in norms} == {0.01}
    assert [drop.p for drop in drops] == [0.3] * 6
    assert not model.get_parameter("head.bias").any()
    last = convs[-1].weight  # 256·256·9 draws from N(0, 2 / (9·256)): the relative error of the deviation is 1e-3
    assert last.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=5e-3)


def test_resffn_is_fc_net_with_skips():
    torch.manual_seed(0)
    residual = create_model("resffn2_8", spectral_norm=None).eval()
    ordinary = create_model("fc_net2_8", spectral_norm=None).eval()
    assert isinstance(residual, MLP)
    ordinary.load_state_dict(residual.state_dict())
    x = torch.randn(5, 2)
    first = residual.first(x)
    linears = [module for module in residual.blocks.modules() if isinstance(module, nn.Linear)]

    def layer(linear: nn.Linear, z: Tensor) -> Tensor:
        return nn.functional.leaky_relu(z @ linear.weight.T + linear.bias, 0.01)

    z, plain = first, first
    for linear in linears:
        z, plain = z + layer(linear, z), layer(linear, plain)
    torch.testing.assert_close(residual.forward_features(x), z)
    torch.testing.assert_close(ordinary.forward_features(x), plain)
