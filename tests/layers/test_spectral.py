import copy
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input

from ddu.errors import InputError, NotFittedError, NotSupportedError
from ddu.layers import SpectralConv2d, SpectralLinear, spectral_norm, spectral_sigma


def raw(layer: nn.Module) -> Tensor:
    return layer.get_parameter("parametrizations.weight.original").detach()


def effective(layer: nn.Module) -> Tensor:
    layer.eval()
    return layer.get_submodule("parametrizations.weight")()


def vector(layer: nn.Module) -> Tensor:
    return layer.get_buffer("parametrizations.weight.0.v")


def dense_norm(plain: nn.Module, weight: Tensor, shape: tuple[int, ...]) -> float:
    """The largest singular value of the matrix of `plain` with this weight and without its bias."""
    plain = copy.deepcopy(plain).double()
    plain.register_parameter("bias", None)
    plain.register_parameter("weight", nn.Parameter(weight.detach().double()))
    with torch.no_grad():
        columns = plain(torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)).flatten(1)
    return torch.linalg.matrix_norm(columns, 2).item()


def assert_within_two_percent(estimate: float, norm: float) -> None:
    # From below alone: σ = |A v| for a unit vector v. The upper tolerance is float32 rounding.
    assert 0.98 * norm <= estimate <= norm * (1 + 1e-5)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(30, 20), (30,)),
    "1x1": (lambda: nn.Conv2d(16, 12, 1), (16, 5, 5)),
    "1x1, stride and groups": (lambda: nn.Conv2d(16, 12, 1, stride=2, groups=4), (16, 5, 4)),
    "1x1, padded": (lambda: nn.Conv2d(16, 12, 1, padding=1, stride=2), (16, 4, 4)),
    "3x3": (lambda: nn.Conv2d(6, 6, 3, padding=1), (6, 7, 7)),
    "3x3, orthogonal": (lambda: orthogonal(nn.Conv2d(6, 6, 3, padding=1)), (6, 7, 7)),
    "5x5, not square": (lambda: nn.Conv2d(3, 4, 5, padding=2), (3, 10, 7)),
    "stride 2, odd": (lambda: nn.Conv2d(6, 10, 3, stride=2, padding=1), (6, 7, 6)),
    "stride 3, dilated, groups": (lambda: nn.Conv2d(6, 9, 3, 3, 2, dilation=2, groups=3), (6, 8, 7)),
    "same": (lambda: nn.Conv2d(5, 5, 3, padding="same", dilation=2), (5, 8, 8)),
    "valid": (lambda: nn.Conv2d(5, 5, (3, 1), padding="valid"), (5, 8, 8)),
    "1-D": (lambda: nn.Conv1d(8, 8, 5, stride=2, padding=2), (8, 33)),
    "3-D": (lambda: nn.Conv3d(2, 4, 3, padding=1), (2, 4, 5, 6)),
}


def orthogonal(layer: nn.Conv2d) -> nn.Conv2d:
    nn.init.orthogonal_(layer.weight)
    return layer


@pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)
class TestEveryLayer:
    def test_sigma_is_the_norm_of_the_dense_matrix(self, make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
        plain = make()
        layer = spectral_norm(copy.deepcopy(plain)).eval()
        layer(torch.randn(2, *shape))
        assert_within_two_percent(spectral_sigma(layer).item(), dense_norm(plain, raw(layer), shape))

    def test_norm_is_lowered_to_coeff(self, make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
        plain = make()
        coeff = dense_norm(plain, plain.get_parameter("weight"), shape) / 2
        layer = spectral_norm(copy.deepcopy(plain), coeff=coeff)
        layer(torch.randn(2, *shape))
        norm = dense_norm(plain, effective(layer), shape)
        assert coeff * (1 - 1e-5) <= norm <= coeff * 1.02

    def test_norm_below_coeff_is_left_alone(self, make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
        plain = make()
        coeff = dense_norm(plain, plain.get_parameter("weight"), shape) * 1.01
        layer = spectral_norm(copy.deepcopy(plain), coeff=coeff)
        x = torch.randn(2, *shape)
        assert torch.equal(layer(x), plain(x))


def test_sigma_of_a_wide_convolution_agrees_with_200_power_steps() -> None:
    layer = SpectralConv2d(64, 64, 3, padding=1, bias=False).eval()
    layer(torch.randn(1, 64, 16, 16))
    v = torch.randn(1, 64, 16, 16)
    for _ in range(200):
        v = conv2d_input(v.shape, raw(layer), functional.conv2d(v, raw(layer), padding=1), padding=1)
        v = v / v.norm()
    assert_within_two_percent(spectral_sigma(layer).item(), functional.conv2d(v, raw(layer), padding=1).norm().item())


@pytest.mark.parametrize(
    ("make_optimiser", "coeff"),
    [
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), 3.0),
        (partial(torch.optim.SGD, lr=0.01, momentum=0.9), 0.8),  # an active bound keeps many singular values at the top
        (partial(torch.optim.Adam, lr=1e-3), 3.0),
        (partial(torch.optim.Adam, lr=1e-3), 0.8),
    ],
    ids=["SGD", "SGD, bounded", "Adam", "Adam, bounded"],
)
def test_sigma_follows_the_weight_through_50_optimiser_steps(
    make_optimiser: Callable[..., torch.optim.Optimizer], coeff: float
) -> None:
    convolution, linear = nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.Linear(12 * 3 * 3, 16)
    layers = [spectral_norm(copy.deepcopy(layer), coeff) for layer in (convolution, linear)]
    network = nn.Sequential(layers[0], nn.ReLU(), nn.Flatten(), layers[1], nn.ReLU(), nn.Linear(16, 4))
    optimiser = make_optimiser(network.parameters())
    prototypes = torch.randn(4, 3, 6, 6)
    for _ in range(51):
        labels = torch.randint(4, (32,))
        loss = functional.cross_entropy(network(prototypes[labels] + torch.randn(32, 3, 6, 6)), labels)
        for plain, layer, shape in ((convolution, layers[0], (3, 6, 6)), (linear, layers[1], (12 * 3 * 3,))):
            assert_within_two_percent(spectral_sigma(layer).item(), dense_norm(plain, raw(layer), shape))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def test_gradient_is_that_of_the_true_norm() -> None:
    layer = SpectralLinear(6, 5, bias=False, coeff=0.5, power_steps=30).double()
    x = torch.randn(7, 6, dtype=torch.float64)
    layer(x).square().sum().backward()
    weight = raw(layer).clone().requires_grad_()
    functional.linear(x, weight * 0.5 / torch.linalg.matrix_norm(weight, 2)).square().sum().backward()
    gradient = layer.get_parameter("parametrizations.weight.original").grad
    # The gradient is linear in the error of the singular vector, which is the root of that of σ: not all digits.
    torch.testing.assert_close(gradient, weight.grad, rtol=1e-4, atol=1e-6)


def test_eval_mode_changes_no_state() -> None:
    network = nn.Sequential(SpectralConv2d(3, 4, 3), nn.Flatten(), SpectralLinear(4 * 6 * 6, 5, coeff=0.1))
    x = torch.randn(2, 3, 8, 8)
    network(x)
    network.eval()
    before = copy.deepcopy(network.state_dict())
    first, second = network(x), network(x)
    network[0](torch.randn(2, 3, 20, 20))
    assert torch.equal(first, second)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_training_mode_refines_the_singular_vector() -> None:
    layer = SpectralLinear(40, 40, coeff=0.1)
    layer(torch.randn(1, 40))
    with torch.no_grad():
        layer.get_parameter("parametrizations.weight.original").normal_()  # behind its back
    stale = spectral_sigma(layer)
    for _ in range(10):
        layer(torch.randn(1, 40))
    true = torch.linalg.matrix_norm(raw(layer), 2)
    assert stale < 0.9 * true
    assert_within_two_percent(spectral_sigma(layer).item(), true.item())


def test_singular_vector_follows_the_input_size_in_training_mode_alone() -> None:
    plain = nn.Conv2d(4, 6, 3, padding=1)
    layer = spectral_norm(copy.deepcopy(plain))
    for size in ((4, 4), (12, 9), (1, 3)):
        layer.train()(torch.randn(2, 4, *size))
        assert vector(layer).shape == (1, 4, *size)
        assert_within_two_percent(spectral_sigma(layer).item(), dense_norm(plain, raw(layer), (4, *size)))
    layer.eval()(torch.randn(2, 4, 8, 8))
    assert vector(layer).shape == (1, 4, 1, 3)


def test_first_batch_in_eval_mode_finds_the_norm() -> None:
    layer = SpectralConv2d(3, 4, 3, coeff=0.01).eval()
    layer(torch.randn(1, 3, 6, 6))
    assert vector(layer).shape == (1, 3, 6, 6)
    assert layer.weight.norm() < raw(layer).norm() / 10


def test_single_inputs_and_keyword_arguments_are_understood() -> None:
    layer = SpectralConv2d(3, 4, 3)
    layer(input=torch.randn(3, 6, 5))
    assert vector(layer).shape == (1, 3, 6, 5)


def test_an_input_too_small_for_the_kernel_does_no_lasting_harm() -> None:
    layer = SpectralConv2d(3, 4, 3).eval()
    with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
        layer(torch.randn(1, 3, 2, 2))
    layer(torch.randn(1, 3, 6, 6))
    assert vector(layer).shape == (1, 3, 6, 6)


def test_layer_may_be_used_twice_before_backward() -> None:
    layer = SpectralConv2d(3, 3, 3, padding=1, coeff=0.1)
    x = torch.randn(2, 3, 5, 5)
    layer(layer(x)).sum().backward()
    gradient = layer.get_parameter("parametrizations.weight.original").grad
    assert gradient is not None
    assert gradient.isfinite().all()


def test_random_state_is_left_alone() -> None:
    plain, spectral = (nn.Conv2d(3, 4, 3), SpectralConv2d(3, 4, 3))
    x = torch.randn(1, 3, 6, 6)
    states = []
    for layer in (plain, spectral):
        torch.manual_seed(1)
        layer(x)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_zero_weights_stay_finite_and_are_followed_once_they_move() -> None:
    layer = SpectralLinear(20, 20, bias=False, coeff=1.0)
    nn.init.zeros_(layer.weight)
    x = torch.randn(2, 20)
    layer(x).sum().backward()
    weight = layer.get_parameter("parametrizations.weight.original")
    assert weight.grad is not None
    assert torch.equal(weight.grad, x.sum(0).expand(20, 20))
    with torch.no_grad():
        weight.normal_()
    for _ in range(10):
        layer(x)
    assert_within_two_percent(spectral_sigma(layer).item(), torch.linalg.matrix_norm(raw(layer), 2).item())


def test_weights_can_be_initialised_before_the_first_batch_and_assigned_later() -> None:
    layer = SpectralConv2d(3, 4, 1, coeff=1.0)
    nn.init.constant_(layer.weight, 1.0)
    layer(torch.randn(1, 3, 4, 4))
    assert_within_two_percent(spectral_sigma(layer).item(), math.sqrt(12))
    layer.weight = torch.full((4, 3, 1, 1), 2.0)
    layer(torch.randn(1, 3, 4, 4))
    assert_within_two_percent(spectral_sigma(layer).item(), 2 * math.sqrt(12))


def test_deepcopy_after_training_is_equal_and_independent() -> None:
    layer = SpectralConv2d(3, 4, 3, coeff=0.5)
    x = torch.randn(2, 3, 6, 6)
    layer(x).sum().backward()
    twin = copy.deepcopy(layer)
    assert torch.equal(twin.eval()(x), layer.eval()(x))
    layer.train()(torch.randn(2, 3, 9, 9))
    assert vector(twin).shape == (1, 3, 6, 6)


def test_state_dict_restores_weight_and_singular_vector() -> None:
    layer, fresh = SpectralConv2d(3, 4, 3, coeff=0.5), SpectralConv2d(3, 4, 3, coeff=0.5)
    x = torch.randn(2, 3, 6, 6)
    layer(x)
    fresh.load_state_dict(layer.state_dict())
    # An input of another size shows that the vector was restored and not found again.
    other = torch.randn(2, 3, 8, 7)
    assert torch.equal(fresh.eval()(other), layer.eval()(other))
    assert list(layer.state_dict()) == ["bias", "parametrizations.weight.original", "parametrizations.weight.0.v"]


@pytest.mark.parametrize("seen", [False, True], ids=["fresh", "trained"])
@pytest.mark.parametrize("assign", [False, True])
def test_state_dict_of_a_plain_network_can_be_loaded(seen: bool, assign: bool) -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 4 * 4, 5))
    spectral = nn.Sequential(SpectralConv2d(3, 4, 3), nn.Flatten(), SpectralLinear(4 * 4 * 4, 5))
    x = torch.randn(2, 3, 6, 6)
    if seen:
        spectral(x)
    spectral.load_state_dict(plain.state_dict(), assign=assign)
    # At the default coeff of 3 nothing needs to be scaled down.
    assert torch.equal(spectral.eval()(x), plain(x))
    norm = torch.linalg.matrix_norm(plain[2].get_parameter("weight"), 2).item()
    assert_within_two_percent(spectral_sigma(spectral[2]).item(), norm)


def test_state_dict_without_a_weight_is_still_reported() -> None:
    layer = SpectralLinear(3, 2)
    missing = layer.load_state_dict({"bias": torch.zeros(2)}, strict=False).missing_keys
    assert missing == ["parametrizations.weight.original", "parametrizations.weight.0.v"]


def test_sigma_is_float32_under_autocast() -> None:
    plain = nn.Conv2d(6, 6, 3, padding=1)
    layer = spectral_norm(copy.deepcopy(plain), coeff=0.5)
    x = torch.randn(4, 6, 7, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        sigma = spectral_sigma(layer)
    y.float().sum().backward()
    assert (y.dtype, sigma.dtype, vector(layer).dtype) == (torch.bfloat16, torch.float32, torch.float32)
    assert_within_two_percent(sigma.item(), dense_norm(plain, raw(layer), (6, 7, 7)))


@pytest.mark.parametrize(("dtype", "sigma_dtype"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_network_of_another_dtype_is_normalised(dtype: torch.dtype, sigma_dtype: torch.dtype) -> None:
    plain = nn.Conv2d(6, 6, 3, padding=1)
    layer = spectral_norm(copy.deepcopy(plain), coeff=0.5)
    x = torch.randn(4, 6, 7, 7)
    layer(x)
    layer.to(dtype)
    for _ in range(3):
        assert layer(x.to(dtype)).dtype == dtype
    assert spectral_sigma(layer).dtype == sigma_dtype
    assert_within_two_percent(spectral_sigma(layer).item(), dense_norm(plain, raw(layer), (6, 7, 7)))
    assert dense_norm(plain, effective(layer), (6, 7, 7)) == pytest.approx(0.5, rel=0.02)


def test_training_can_follow_a_first_batch_in_inference_mode() -> None:
    layer = SpectralConv2d(3, 4, 3, coeff=0.5)
    x = torch.randn(2, 3, 6, 6)
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    assert not vector(layer).is_inference()


# Both capture the same graphs, forwards and backwards; inductor compiles them, which takes most of a minute
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_layer_agrees_with_eager_in_training_and_evaluation(backend: str) -> None:
    eager = SpectralConv2d(2, 3, 3, coeff=0.5, power_steps=1)
    x = torch.randn(2, 2, 4, 4)
    eager(x)
    layer = copy.deepcopy(eager)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    compiled(x).sum().backward()
    eager(x).sum().backward()
    torch.testing.assert_close(vector(layer), vector(eager))
    for ours, reference in zip(layer.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, reference.grad)
    layer.eval()
    torch.testing.assert_close(compiled(x), eager.eval()(x))


def test_first_batch_may_come_after_compilation() -> None:
    eager = SpectralConv2d(2, 3, 3, coeff=0.5, power_steps=1)
    layer = copy.deepcopy(eager)
    compiled = torch.compile(layer, backend="eager")  # what is captured, without the slow part
    for size in (4, 5):
        x = torch.randn(2, 2, size, size)
        torch.testing.assert_close(compiled(x), eager(x))
    assert torch.equal(vector(layer), vector(eager))


def small_network() -> nn.Module:
    return nn.Sequential(SpectralConv2d(2, 3, 3, coeff=0.5), nn.Flatten(), SpectralLinear(3 * 2 * 2, 2, coeff=0.5))


def test_export_needs_a_first_batch() -> None:
    with pytest.raises(NotFittedError, match="unknown before its first batch"):
        torch.export.export(small_network().eval(), (torch.randn(4, 2, 4, 4),), strict=False)


@pytest.mark.parametrize("strict", [False, True])  # either has been the default
def test_exported_network_agrees_with_eager_at_any_batch_size(strict: bool) -> None:
    network, x = small_network().eval(), torch.randn(4, 2, 4, 4)
    network(x)
    program = torch.export.export(network, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=strict)
    torch.testing.assert_close(program.module()(x[:3]), network(x[:3]))


@pytest.mark.slow
def test_distributed_processes_share_one_norm(tmp_path: Path) -> None:
    script = Path(__file__).with_name("distributed_step.py")
    command = [sys.executable, str(script), str(tmp_path)]
    workers = [subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    errors = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], errors
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    weight, sigma = first["0.parametrizations.weight.original"], first["sigma"].item()
    assert_within_two_percent(sigma, dense_norm(nn.Conv2d(2, 3, 3, padding=1), weight, (2, 6, 6)))


@pytest.mark.parametrize("coeff", [0.0, -1.0, float("nan")])
def test_coeff_must_be_positive(coeff: float) -> None:
    with pytest.raises(InputError) as error:
        spectral_norm(nn.Linear(2, 2), coeff=coeff)
    assert str(error.value) == (
        f"The 'coeff' parameter of spectral_norm must be a positive number. Got {coeff} instead."
    )


def test_power_steps_must_be_positive() -> None:
    with pytest.raises(InputError) as error:
        SpectralLinear(2, 2, power_steps=0)
    assert str(error.value) == "The 'power_steps' parameter of spectral_norm must be 1 or more. Got 0 instead."


def test_layer_is_not_normalised_twice() -> None:
    with pytest.raises(InputError) as error:
        spectral_norm(SpectralLinear(2, 2))
    assert str(error.value) == (
        "spectral_norm needs a layer with a plain weight. The weight of this layer is already parametrised; "
        "remove that with `bake` or `torch.nn.utils.parametrize.remove_parametrizations` first."
    )


def test_refused_layer_is_left_as_it_was() -> None:
    layer = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")
    with pytest.raises(NotSupportedError):
        spectral_norm(layer)
    assert type(layer) is nn.Conv2d
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_sigma_is_unknown_before_the_first_batch() -> None:
    with pytest.raises(NotFittedError) as error:
        spectral_sigma(SpectralLinear(2, 2))
    assert str(error.value) == (
        "The norm of a layer is unknown before its first batch: run one forward pass through the network first."
    )


def test_sigma_of_a_plain_layer_is_refused() -> None:
    with pytest.raises(InputError) as error:
        spectral_sigma(nn.Linear(2, 3))
    assert str(error.value) == (
        "spectral_sigma needs a layer that went through spectral_norm. "
        "Got Linear(in_features=2, out_features=3, bias=True) instead."
    )
