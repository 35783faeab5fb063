import copy

import pytest
import torch
from torch import nn

from ddu.errors import NotFittedError
from ddu.layers import SpectralBatchNorm1d, SpectralBatchNorm2d, SpectralConv2d, SpectralLinear, bake, spectral_norm


def spectral_network() -> nn.Sequential:
    return nn.Sequential(
        SpectralConv2d(3, 4, 3, coeff=0.5),
        SpectralBatchNorm2d(4, coeff=0.5),
        nn.Flatten(),
        SpectralLinear(4 * 4 * 4, 5, coeff=0.5),
        SpectralBatchNorm1d(5, coeff=0.5),
        spectral_norm(nn.Linear(5, 2), coeff=0.1),
    )


def plain_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 4 * 4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)
    )


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(8, 3, 6, 6)


@pytest.fixture
def network(images: torch.Tensor) -> nn.Sequential:
    network = spectral_network()
    network(images).sum().backward()
    network.zero_grad()
    return network


def test_baked_network_is_plain_and_computes_the_same(network: nn.Sequential, images: torch.Tensor) -> None:
    expected = network.eval()(images)
    baked = bake(network)
    assert baked is network
    assert [type(layer) for layer in baked] == [type(layer) for layer in plain_network()]
    assert not any(layer._forward_pre_hooks or layer._load_state_dict_pre_hooks for layer in baked)
    torch.testing.assert_close(baked(images), expected, rtol=1e-5, atol=1e-6)


def test_baking_in_training_mode_takes_the_weights_of_the_last_step(
    network: nn.Sequential, images: torch.Tensor
) -> None:
    expected = copy.deepcopy(network).eval()(images)
    torch.testing.assert_close(bake(network).eval()(images), expected, rtol=1e-5, atol=1e-6)


def test_baked_state_dict_loads_into_a_plain_network(network: nn.Sequential, images: torch.Tensor) -> None:
    plain = plain_network().eval()
    plain.load_state_dict(bake(copy.deepcopy(network)).state_dict())
    torch.testing.assert_close(plain(images), network.eval()(images), rtol=1e-5, atol=1e-6)


def test_baking_a_copy_leaves_the_original_alone(network: nn.Sequential, images: torch.Tensor) -> None:
    expected = network.eval()(images)
    bake(copy.deepcopy(network))
    assert torch.equal(network(images), expected)
    network.train()(images).sum().backward()


def test_baked_network_keeps_its_parameters(network: nn.Sequential) -> None:
    before = list(network.parameters())
    after = list(bake(network).parameters())
    assert {id(p) for p in before} == {id(p) for p in after}
    assert all(p.is_leaf and p.requires_grad for p in after)


def test_baked_layer_can_be_normalised_again(images: torch.Tensor) -> None:
    layer = SpectralConv2d(3, 4, 3, bias=False, coeff=0.5)
    layer(images)
    baked = bake(layer)(images)
    torch.testing.assert_close(spectral_norm(layer, coeff=0.1)(images), baked / 5, rtol=1e-3, atol=1e-6)


def test_unseen_layers_cannot_be_baked() -> None:
    with pytest.raises(NotFittedError) as error:
        bake(spectral_network())
    assert str(error.value) == (
        "The norm of '0', '3', '5' is unknown before the first batch: "
        "run one forward pass through the network, then bake."
    )


def test_network_without_spectral_layers_is_left_alone() -> None:
    network = plain_network()
    before = copy.deepcopy(network.state_dict())
    assert all(torch.equal(before[name], value) for name, value in bake(network).state_dict().items())
