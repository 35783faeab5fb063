"""What every registered network promises, whatever its family."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddu.models import MLP, Classifier, create_model, list_models

IMAGE_MODELS = [name for name in list_models() if name not in ("fc_net4_128", "resffn4_128")]
BATCH_NORM_MODELS = [name for name in IMAGE_MODELS if name != "lenet"]
PLAIN = {"spectral_norm": None, "sensitive": False}


def _small(name: str, **options: Any) -> Classifier:
    """The architecture in its full depth, narrow enough to be quick."""
    torch.manual_seed(0)
    return create_model(name, width=0.0625 if name in IMAGE_MODELS else 0.125, num_classes=3, **options)


def _channels(model: Classifier) -> int:
    """The second axis of the first weight, which is that of the input, be it an image or a vector."""
    return next(parameter.shape[1] for parameter in model.parameters() if parameter.dim() > 1)


def _inputs(model: Classifier, batch: int = 4, size: tuple[int, int] = (33, 47)) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (batch, _channels(model)) if isinstance(model, MLP) else (batch, _channels(model), *size)
    return torch.randn(shape, generator=generator)


def _backward(model: Classifier) -> Tensor:
    logits = model(_inputs(model))
    nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0])).backward()
    return logits


@pytest.fixture(scope="module", params=list_models())
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(name: str) -> Classifier:
    """A network in eval mode that has seen a training step on images of odd size; tests leave it as it is."""
    model = _small(name)
    _backward(model)
    return model.eval()


def _check_gradients(model: Classifier) -> None:
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.any(), key


def test_every_parameter_gets_a_gradient(model: Classifier):
    _check_gradients(model)


def test_every_parameter_of_a_plain_network_gets_a_gradient(name: str):
    model = _small(name, **PLAIN)
    logits = _backward(model)
    assert logits.shape == (4, 3)
    assert logits.isfinite().all()
    _check_gradients(model)


def test_forward_is_the_head_of_the_features(model: Classifier):
    x = _inputs(model)
    z = model.forward_features(x)
    assert z.shape == (4, model.num_features)
    assert torch.equal(model(x), model.forward_head(z))
    assert torch.equal(model.forward_head(z), nn.functional.linear(z, model.head.weight, model.head.bias))


def test_head_is_the_last_module(model: Classifier):
    assert list(model.modules())[-1] is model.head


def test_evaluation_leaves_nothing_behind(model: Classifier):
    before = {key: value.clone() for key, value in model.state_dict().items()}
    names = [set(vars(module)) for module in model.modules()]
    first, second = model(_inputs(model)), model(_inputs(model))
    assert torch.equal(first, second)
    assert [set(vars(module)) for module in model.modules()] == names
    for module in model.modules():
        assert not any(isinstance(value, Tensor) for value in vars(module).values())
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_evaluation_treats_each_sample_alone(model: Classifier):
    x = _inputs(model, batch=2)
    alone = torch.cat([model(sample[None]) for sample in x])
    torch.testing.assert_close(alone, model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", BATCH_NORM_MODELS, indirect=True, scope="module")
def test_training_mode_uses_the_statistics_of_the_batch(model: Classifier):
    x = _inputs(model)
    twin = copy.deepcopy(model).train()
    assert not torch.allclose(twin(x), model(x), rtol=1e-2)


def test_state_dict_moves_a_trained_network_into_a_fresh_one(name: str, model: Classifier):
    fresh = _small(name)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.add_(1)
    fresh.load_state_dict(model.state_dict())
    x = _inputs(model)
    assert torch.equal(fresh.eval()(x), model(x))


def test_deepcopy_after_a_training_step_is_independent(model: Classifier):
    x = _inputs(model)
    expected = model(x)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1)
    assert torch.equal(model(x), expected)
    assert not torch.equal(twin(x), expected)


@pytest.mark.parametrize("name", IMAGE_MODELS, indirect=True, scope="module")
@pytest.mark.parametrize("size", [(32, 32), (64, 35)], ids=str)
def test_image_of_another_size_fits_after_training(model: Classifier, size: tuple[int, int]):
    logits = model(_inputs(model, batch=2, size=size))
    assert logits.shape == (2, 3)
    assert logits.isfinite().all()


def test_width_scales_the_features_and_the_parameters(name: str):
    with torch.device("meta"):
        full, half = create_model(name), create_model(name, width=0.5)
    assert half.num_features == full.num_features / 2
    ratio = sum(p.numel() for p in half.parameters()) / sum(p.numel() for p in full.parameters())
    assert 0.2 < ratio < 0.35


@pytest.mark.parametrize("stem", ["mnist", "cifar", "imagenet"])
@pytest.mark.parametrize("family", ["densenet121", "resnet18", "resnet50", "vgg16", "wide_resnet10_10"])
def test_every_stem_fits_its_own_images(family: str, stem: Any):
    model = create_model(family, width=0.0625, stem=stem, **PLAIN).eval()
    side = {"mnist": 28, "cifar": 32, "imagenet": 96}[stem]
    assert _channels(model) == (1 if stem == "mnist" else 3)
    assert model(_inputs(model, batch=2, size=(side, side))).isfinite().all()


@pytest.mark.parametrize("family", ["densenet121", "resnet18", "resnet50", "wide_resnet10_10"])
def test_a_single_pixel_is_an_image(family: str):
    model = create_model(family, width=0.0625).eval()
    assert model(_inputs(model, batch=1, size=(1, 1))).isfinite().all()
