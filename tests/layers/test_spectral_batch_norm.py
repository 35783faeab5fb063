from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ddu.errors import InputError
from ddu.layers import SpectralBatchNorm1d, SpectralBatchNorm2d
from ddu.layers.spectral_batch_norm import bounded_scale

positive = st.floats(1e-4, 1e4)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), positive), min_size=1, max_size=6),
    st.floats(0.1, 10),
)
def test_bounded_scale_never_stretches_beyond_coeff_and_is_never_scaled_up(
    channels: list[tuple[float, float]], coeff: float
) -> None:
    scale, variance = torch.tensor(channels, dtype=torch.float64).T
    bounded = bounded_scale(scale, variance, 1e-5, coeff)
    stretch = (bounded / (variance + 1e-5).sqrt()).abs().max()
    assert stretch <= coeff * (1 + 1e-12)
    assert (bounded.abs() <= scale.abs()).all()
    if (scale / (variance + 1e-5).sqrt()).abs().max() <= coeff:
        assert torch.equal(bounded, scale)


def jacobian_norm(layer: nn.Module, x: Tensor) -> float:
    jacobian = torch.autograd.functional.jacobian(layer, x)
    assert isinstance(jacobian, Tensor)
    return torch.linalg.matrix_norm(jacobian.reshape(x.numel(), x.numel()), 2).item()


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (SpectralBatchNorm2d(3, coeff=0.7), torch.randn(2, 3, 2, 2)),
        (SpectralBatchNorm1d(3, coeff=0.7), torch.randn(2, 3)),
        (SpectralBatchNorm1d(3, coeff=0.7), torch.randn(2, 3, 4)),
    ],
    ids=["2d", "1d", "sequence"],
)
def test_lipschitz_constant_in_eval_mode_is_coeff(layer: nn.Module, x: Tensor) -> None:
    layer.get_buffer("running_var").copy_(torch.tensor([0.01, 1.0, 4.0]))
    assert jacobian_norm(layer.eval(), x) == pytest.approx(0.7, rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("spectral", "plain", "shape"),
    [(SpectralBatchNorm2d, nn.BatchNorm2d, (8, 3, 2, 2)), (SpectralBatchNorm1d, nn.BatchNorm1d, (8, 3))],
)
def test_below_the_bound_it_is_plain_batch_norm(
    spectral: type[nn.Module], plain: type[nn.Module], shape: tuple[int, ...], training: bool
) -> None:
    ours, reference = (
        make(3).train(training) for make in (partial(spectral, coeff=1e3), partial(plain, momentum=0.01))
    )
    for _ in range(3):
        x = torch.randn(shape)
        assert torch.equal(ours(x), reference(x))
    for name, value in reference.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)


def test_training_mode_uses_the_running_variance_before_the_batch() -> None:
    ours, plain = SpectralBatchNorm2d(2, coeff=0.5), nn.BatchNorm2d(2)
    ours.get_buffer("running_var").copy_(torch.tensor([0.25, 1.0]) - ours.eps)  # L = 2: four times the bound
    x = torch.randn(8, 2, 3, 3)
    torch.testing.assert_close(ours(x), plain(x) / 4)


def test_gradient_flows_through_the_bound() -> None:
    layer = SpectralBatchNorm1d(2, coeff=0.5).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([2.0, 1.0]))
    # The output is coeff · (x₁, x₂ γ₂ / γ₁), since γ₁ is the larger and both variances are equal.
    layer(torch.tensor([[1.0, 3.0]])).sum().backward()
    torch.testing.assert_close(layer.weight.grad, 0.5 * 3 * torch.tensor([-1 / 4, 1 / 2]))


def test_state_dict_is_that_of_plain_batch_norm() -> None:
    plain = nn.BatchNorm2d(3)
    plain(torch.randn(4, 3, 2, 2))
    ours = SpectralBatchNorm2d(3)
    ours.load_state_dict(plain.state_dict())
    assert list(ours.state_dict()) == list(plain.state_dict())


def test_wrong_number_of_dimensions_is_refused_as_by_plain_batch_norm() -> None:
    with pytest.raises(ValueError, match="expected 4D input"):
        SpectralBatchNorm2d(3)(torch.randn(4, 3))


def test_coeff_must_be_positive() -> None:
    with pytest.raises(InputError) as error:
        SpectralBatchNorm1d(3, coeff=0)
    assert str(error.value) == "The 'coeff' parameter of SpectralBatchNorm1d must be a positive number. Got 0 instead."
