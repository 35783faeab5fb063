"""Parameters and spectrally normalised layers at the paper's sizes, as literals."""

from typing import Any

import pytest
import torch

from ddu.layers import SpectralConv2d, SpectralLinear
from ddu.models import Classifier, create_model


def _parameters(model: Classifier) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _spectral_layers(model: Classifier) -> int:
    return sum(isinstance(module, SpectralConv2d | SpectralLinear) for module in model.modules())


# name, options, features, (sensitive, plain) parameters, (sensitive, plain) spectrally normalised layers
PAPER = [
    ("vgg16", {"in_channels": 3}, 512, (14_724_042, 14_724_042), (13, 13)),
    ("vgg16", {"in_channels": 1}, 512, (14_722_890, 14_722_890), (13, 13)),
    ("resnet18", {"in_channels": 3}, 512, (11_000_138, 11_173_962), (17, 20)),
    ("resnet18", {"in_channels": 1}, 512, (10_998_986, 11_172_810), (17, 20)),
    ("resnet50", {"in_channels": 3}, 2048, (20_744_266, 23_520_842), (49, 53)),
    ("resnet110", {"in_channels": 3}, 2048, (43_087_946, 45_864_522), (109, 113)),
    ("wide_resnet28_10", {"in_channels": 3}, 640, (36_220_634, 36_479_194), (25, 28)),
    # Not in the authors' code. DenseNet: 1 + 2·58 + 3 convolutions. ResFFN: 2·128+128 + 4·(128²+128) + 128·2+2.
    ("densenet121", {"in_channels": 3}, 1024, (6_956_298, 6_956_298), (120, 120)),
    ("resffn4_128", {"in_features": 2, "num_classes": 2}, 128, (66_690, 66_690), (5, 5)),
    ("fc_net4_128", {"in_features": 2, "num_classes": 2}, 128, (66_690, 66_690), (5, 5)),
]
# The plain ImageNet networks are torchvision's, parameter for parameter (VGG apart); the projections that
# `sensitive=True` removes have 16,896 + 132,096 + 526,336 + 2,101,248 parameters in networks of bottlenecks.
IMAGENET = [
    ("resnet18", 512, (11_515_688, 11_689_512), (17, 20)),
    ("resnet50", 2048, (22_780_456, 25_557_032), (49, 53)),
    ("wide_resnet50_2", 2048, (66_106_664, 68_883_240), (49, 53)),
    ("densenet121", 1024, (7_978_856, 7_978_856), (120, 120)),
]
SIZES = PAPER + [(name, {"num_classes": 1000, "stem": "imagenet"}, *sizes) for name, *sizes in IMAGENET]


@pytest.mark.parametrize("sensitive", [True, False], ids=["sensitive", "plain"])
@pytest.mark.parametrize(("name", "options", "features", "parameters", "spectral"), SIZES)
def test_size_is_the_papers(
    name: str,
    options: dict[str, Any],
    features: int,
    parameters: tuple[int, int],
    spectral: tuple[int, int],
    sensitive: bool,
):
    column = 0 if sensitive else 1
    with torch.device("meta"):
        model = create_model(name, sensitive=sensitive, **options)
        ordinary = create_model(name, sensitive=sensitive, spectral_norm=None, **options)
    assert model.num_features == model.head.in_features == features
    assert _parameters(model) == _parameters(ordinary) == parameters[column]
    assert _spectral_layers(model) == spectral[column]
    assert _spectral_layers(ordinary) == 0


def test_lenet_of_the_paper_is_plain():
    model = create_model("lenet", spectral_norm=None, sensitive=False)
    assert model.num_features == 84
    assert _parameters(model) == 44_426
    assert _spectral_layers(model) == 0


def test_head_is_never_spectrally_normalised():
    for name in ("lenet", "resffn4_128", "resnet18"):
        assert type(create_model(name, width=0.1).head) is torch.nn.Linear
