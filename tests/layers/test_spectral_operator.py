import copy
import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from ddu.errors import NotSupportedError
from ddu.layers.spectral import Operator

torch.manual_seed(0)  # of the weights below
CASES = {
    "3x3": (nn.Conv2d(2, 3, 3, padding=1), (5, 4)),
    "valid": (nn.Conv2d(2, 3, (3, 2), padding="valid"), (5, 4)),
    "stride 2, even": (nn.Conv2d(2, 3, 3, stride=2, padding=1), (6, 8)),
    "stride 2, odd": (nn.Conv2d(2, 3, 3, stride=2, padding=1), (7, 5)),
    "stride beyond the kernel": (nn.Conv2d(2, 3, 2, stride=(3, 4)), (7, 7)),
    "dilated": (nn.Conv2d(2, 3, 3, stride=2, padding=2, dilation=2), (6, 7)),
    "grouped": (nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 5)),
    "depthwise": (nn.Conv2d(3, 3, 3, padding=1, groups=3), (4, 4)),
    "more padding than kernel": (nn.Conv2d(2, 3, 2, padding=3), (3, 3)),
    "same": (nn.Conv2d(2, 3, (5, 3), padding="same"), (4, 5)),
    "same, even kernel": (nn.Conv2d(2, 3, (4, 2), padding="same", dilation=(1, 3)), (5, 4)),
    "1x1": (nn.Conv2d(3, 2, 1), (1, 1)),
    "1x1, stride 2": (nn.Conv2d(3, 2, 1, stride=2), (5, 4)),
    "1x1 that reads padding alone": (nn.Conv2d(3, 2, 1, stride=2, padding=1), (1, 1)),
    "1-D": (nn.Conv1d(2, 3, 3, stride=2, padding=1), (8,)),
    "3-D": (nn.Conv3d(1, 2, (3, 2, 1), stride=(2, 1, 2), padding=(1, 0, 0)), (4, 3, 3)),
    "linear": (nn.Linear(4, 3), (1,)),
}


def kernel_of(layer: nn.Module) -> Tensor:
    weight = layer.get_parameter("weight").detach().double()
    return weight.unsqueeze(-1) if isinstance(layer, nn.Linear) else weight


def channels_of(layer: nn.Module) -> int:
    return layer.in_features if isinstance(layer, nn.Linear) else kernel_of(layer).shape[1] * Operator.of(layer).groups


def layer_without_bias(layer: nn.Module, x: Tensor) -> Tensor:
    plain = copy.deepcopy(layer).double()
    plain.register_parameter("bias", None)
    with torch.no_grad():
        return plain(x.squeeze(-1)).unsqueeze(-1) if isinstance(layer, nn.Linear) else plain(x)


def dense_matrix(layer: nn.Module, size: tuple[int, ...]) -> Tensor:
    shape = (channels_of(layer), *size)
    return layer_without_bias(layer, torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)).flatten(1).T


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # a hint of torch on speed
@pytest.mark.parametrize(("layer", "size"), CASES.values(), ids=CASES)
class TestEveryLayer:
    def test_apply_is_the_layer_without_its_bias(self, layer: nn.Module, size: tuple[int, ...]) -> None:
        x = torch.randn(2, channels_of(layer), *size, dtype=torch.float64)
        torch.testing.assert_close(Operator.of(layer).apply(kernel_of(layer), x), layer_without_bias(layer, x))

    def test_adjoint_is_the_transposed_matrix(self, layer: nn.Module, size: tuple[int, ...]) -> None:
        matrix = dense_matrix(layer, size)
        y = layer_without_bias(layer, torch.zeros(1, channels_of(layer), *size, dtype=torch.float64))
        y = torch.randn_like(y)
        x = Operator.of(layer).adjoint(kernel_of(layer), y, size)
        assert x.shape == (1, channels_of(layer), *size)
        torch.testing.assert_close(x.flatten(), matrix.T @ y.flatten())

    def test_most_stretched_vector_attains_the_norm_of_the_matrix(
        self, layer: nn.Module, size: tuple[int, ...]
    ) -> None:
        operator, kernel = Operator.of(layer), kernel_of(layer)
        v = operator.most_stretched(kernel, torch.randn(1, channels_of(layer), *size, dtype=torch.float64), steps=60)
        norm = torch.linalg.matrix_norm(dense_matrix(layer, size), 2)
        torch.testing.assert_close(v.norm(), torch.ones((), dtype=torch.float64))
        # The eigenvector of the Ritz matrix is found to 1/1000 of its eigenvalue, half of that in σ.
        torch.testing.assert_close(operator.apply(kernel, v).norm(), norm, rtol=5e-4, atol=1e-12)


def test_most_stretched_vector_is_stretched_at_least_as_much_as_after_as_many_power_steps() -> None:
    layer, size = nn.Conv2d(8, 8, 3, padding=1), (9, 9)
    operator, kernel = Operator.of(layer), kernel_of(layer)
    v = torch.randn(1, 8, *size, dtype=torch.float64)
    for steps in (1, 2, 4, 8):
        power = v
        for _ in range(steps):
            power = operator.adjoint(kernel, operator.apply(kernel, power), size)
            power = power / power.norm()
        ours = operator.most_stretched(kernel, v, steps)
        assert operator.apply(kernel, ours).norm() >= operator.apply(kernel, power).norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_more_steps_never_stretch_less(dtype: torch.dtype) -> None:
    layer, size = nn.Conv2d(8, 8, 3, padding=1), (8, 8)
    operator, kernel = Operator.of(layer), kernel_of(layer).to(dtype)
    start = torch.randn(1, 8, *size, dtype=dtype)
    stretches = [
        operator.apply(kernel, operator.most_stretched(kernel, start, steps)).norm().item()
        for steps in (1, 4, 16, 60, 100, 200)
    ]
    # 1/1000: how well the eigenvector of the Ritz matrix is resolved.
    assert all(more >= fewer * (1 - 1e-3) for fewer, more in pairwise(stretches))
    assert stretches[-1] == pytest.approx(torch.linalg.matrix_norm(dense_matrix(layer, size), 2).item(), rel=1e-3)


def test_most_stretched_vector_is_the_start_where_the_start_is_an_eigenvector() -> None:
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    start = torch.randn(1, 6, 1, dtype=torch.float64)
    v = Operator.of(nn.Linear(6, 6)).most_stretched(rotation.unsqueeze(-1), start, steps=4)
    torch.testing.assert_close(v, start / start.norm())


@pytest.mark.parametrize("scale", [1e-15, 1e-8, 1e8, 1e15])
def test_most_stretched_vector_does_not_depend_on_the_scale_of_the_kernel(scale: float) -> None:
    operator, kernel = Operator.of(nn.Linear(5, 4)), torch.randn(4, 5, 1)
    start = torch.randn(1, 5, 1)
    v, scaled = (operator.most_stretched(k, start, steps=5) for k in (kernel, kernel * scale))
    torch.testing.assert_close((v * scaled).sum().abs(), torch.ones(()))


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_zero_or_broken_kernel_gives_the_start_back(value: float) -> None:
    start = torch.randn(1, 5, 1)
    v = Operator.of(nn.Linear(5, 4)).most_stretched(torch.full((4, 5, 1), value), start, steps=3)
    torch.testing.assert_close(v, start / start.norm())


def test_layers_without_a_known_operator_are_refused() -> None:
    with pytest.raises(NotSupportedError) as error:
        Operator.of(nn.ConvTranspose2d(1, 1, 3))
    assert str(error.value) == (
        "spectral_norm knows Linear, Conv1d, Conv2d and Conv3d. Got ConvTranspose2d instead; leave this layer as it is."
    )


def test_other_padding_modes_are_refused() -> None:
    with pytest.raises(NotSupportedError) as error:
        Operator.of(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"))
    assert str(error.value) == (
        "spectral_norm knows convolutions padded with zeros. Got padding_mode='reflect'; "
        "use padding_mode='zeros' or leave this layer as it is."
    )
