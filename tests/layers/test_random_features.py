"""Random features approximate a kernel, the posterior is that of Bayesian linear regression, the mean an integral."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import chi, kstest, norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct
from sklearn.metrics.pairwise import rbf_kernel
from torch import nn

from ddu.errors import InputError
from ddu.layers import (
    GaussianProcessHead,
    LaplacePosterior,
    RandomFourierFeatures,
    mean_field_logits,
    monte_carlo_logits,
)
from ddu.measures import entropy


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def features(num_features, seed=0, dim=6, **options):
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return RandomFourierFeatures(dim, num_features, **options).double()


def kernel_error(num_features, seed, *, orthogonal, length_scale=2.0, amplitude=1.5):
    layer = features(num_features, seed, orthogonal=orthogonal, length_scale=length_scale, amplitude=amplitude)
    x = 2 * normal(60, 6)
    phi = layer(x).numpy()
    return phi @ phi.T - amplitude**2 * rbf_kernel(x.numpy(), gamma=0.5 / length_scale**2)


# The kernel


@pytest.mark.parametrize("orthogonal", [False, True])
def test_products_approach_the_kernel_as_features_grow(orthogonal):
    error = {
        count: np.mean([np.abs(kernel_error(count, seed, orthogonal=orthogonal)).mean() for seed in range(4)])
        for count in (64, 1024, 16384)
    }
    # Sixteen times the features, a quarter of the error
    assert error[1024] == pytest.approx(error[64] / 4, rel=0.35)
    assert error[16384] == pytest.approx(error[64] / 16, rel=0.35)
    assert error[16384] < 0.02


def test_the_approximation_is_unbiased():
    errors = np.stack([kernel_error(48, seed, orthogonal=True) for seed in range(300)])
    standard_error = errors.std(0) / math.sqrt(len(errors))
    assert np.mean(np.abs(errors.mean(0)) < 3 * standard_error + 1e-12) > 0.98


def test_orthogonal_frequencies_err_less():
    """In what the phases add on average, mean cos(wᵀδ) ≈ exp(-‖δ‖² / 2)."""
    delta = nn.functional.normalize(normal(40, 6))
    error = {}
    for orthogonal in (True, False):
        means = [torch.cos(features(60, seed, orthogonal=orthogonal).weight @ delta.T).mean(0) for seed in range(100)]
        error[orthogonal] = float((torch.stack(means) - math.exp(-0.5)).square().mean())
    assert error[True] < 0.5 * error[False]


def test_orthogonal_frequencies_are_at_right_angles_and_as_long_as_gaussian_ones():
    weight = features(1000, dim=8).weight
    for block in weight.split(8):
        angles = nn.functional.normalize(block) @ nn.functional.normalize(block).T
        np.testing.assert_allclose(angles, np.eye(8), atol=1e-6)  # drawn in single precision
    assert kstest(weight.norm(dim=1), chi(8).cdf).pvalue > 0.01


def test_by_default_the_cosines_are_left_as_they_are():
    layer = features(50, length_scale=3.0)
    x = normal(7, 6)
    np.testing.assert_allclose(layer(x), torch.cos(x @ layer.weight.T / 3 + layer.bias), rtol=1e-12)


def test_nothing_in_them_is_trained_and_all_is_saved():
    layer, other = features(50, seed=0), features(50, seed=1)
    assert not list(layer.parameters())
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(normal(7, 6)), other(normal(7, 6)))


@pytest.mark.parametrize("name", ["num_features", "length_scale", "amplitude"])
def test_values_that_are_not_positive_are_refused(name):
    with pytest.raises(InputError) as caught:
        GaussianProcessHead(4, 3, **{name: 0})
    assert str(caught.value) == f"The '{name}' parameter of random features must be positive. Got 0 instead."


def test_the_head_is_linear_in_its_features_without_a_bias():
    head = GaussianProcessHead(6, 3, num_features=50)
    z = normal(7, 6).float()
    torch.testing.assert_close(head(z), head.features(z) @ head.output.weight.T)
    assert [name for name, _ in head.named_parameters()] == ["output.weight"]


# The posterior


@pytest.mark.parametrize("samples", [0, 3, 200], ids=["no data", "fewer than features", "more"])
@pytest.mark.parametrize("ridge", [0.01, 1.0, 30.0])
def test_the_variance_is_that_of_bayesian_linear_regression(samples, ridge):
    phi, new = normal(samples, 10), normal(20, 10, seed=1)
    posterior = LaplacePosterior(10, ridge)
    posterior.update(phi)
    dense = np.linalg.inv((phi.T @ phi).numpy() + ridge * np.eye(10))
    np.testing.assert_allclose(posterior.variance(new), np.diag(new.numpy() @ dense @ new.numpy().T), rtol=1e-9)


def test_the_variance_is_that_of_a_gaussian_process_with_the_same_kernel():
    """The same by way of the samples' kernel matrix, and by another library."""
    phi, new = normal(30, 10), normal(20, 10, seed=1)
    posterior = LaplacePosterior(10)
    posterior.update(phi)
    process = GaussianProcessRegressor(DotProduct(sigma_0=0.0, sigma_0_bounds="fixed"), alpha=1.0, optimizer=None)
    _, covariance = process.fit(phi.numpy(), np.zeros(30)).predict(new.numpy(), return_cov=True)
    np.testing.assert_allclose(posterior.variance(new), np.diag(covariance), rtol=1e-7)


def test_pieces_add_up_and_every_sample_makes_it_surer():
    phi, new = normal(90, 10), normal(20, 10, seed=1)
    whole, pieces = LaplacePosterior(10), LaplacePosterior(10)
    whole.update(phi)
    before = pieces.variance(new)
    np.testing.assert_allclose(before, new.square().sum(1), rtol=1e-12)  # the prior
    for part in phi.split(7):
        pieces.update(part)
        assert (pieces.variance(new) < before).all()
        before = pieces.variance(new)
    np.testing.assert_allclose(before, whole.variance(new), rtol=1e-9)


def test_sums_in_double_precision_keep_what_single_precision_drops():
    """A thousand features alike but for one part in 10⁴: their scatter has a condition of 10¹¹."""
    phi = 1 + 1e-4 * normal(1000, 3).float()
    posterior = LaplacePosterior(3, ridge=1e-3)
    posterior.update(phi)
    exact = phi.double().numpy()
    dense = np.linalg.inv(exact.T @ exact + 1e-3 * np.eye(3))
    new = phi[:5]
    expected = np.einsum("ni,ij,nj->n", new.double().numpy(), dense, new.double().numpy())
    np.testing.assert_allclose(posterior.variance(new), expected, rtol=1e-4)
    assert posterior.variance(new).dtype == torch.float32


def test_a_ridge_that_is_not_positive_is_refused():
    with pytest.raises(InputError) as caught:
        LaplacePosterior(3, ridge=0.0)
    assert str(caught.value) == "The 'ridge' parameter of LaplacePosterior must be positive. Got 0.0 instead."


# The mean of the softmax


def integral(difference, variance):
    """E[softmax] of two logits that differ by N(difference, 2 variance), by quadrature."""
    scale = math.sqrt(2 * variance)
    return quad(lambda t: expit(t) * norm.pdf(t, difference, scale), difference - 9 * scale, difference + 9 * scale)[0]


@pytest.mark.parametrize("difference", [0.0, 1.0, -4.0])
@pytest.mark.parametrize("variance", [0.01, 1.0, 25.0])
def test_monte_carlo_converges_to_the_integral(difference, variance):
    logits = torch.tensor([[difference, 0.0]], dtype=torch.float64)
    found = monte_carlo_logits(logits, torch.tensor([variance], dtype=torch.float64), normal(200_000, 2))
    expected = integral(difference, variance)
    # The standard error of a mean of values in [0, 1] is at most 0.5 / √200,000
    assert float(found.exp()[0, 0]) == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(200_000))
    both = torch.tensor([expected, 1 - expected], dtype=torch.float64)
    assert float(entropy(found)[0]) == pytest.approx(float(entropy(both.log())), abs=0.02)


def test_without_variance_it_is_the_softmax_and_with_much_it_is_nearly_uniform():
    logits, noise = 3 * normal(20, 5), normal(1000, 5)
    known = monte_carlo_logits(logits, torch.zeros(20).double(), noise)
    np.testing.assert_allclose(known, torch.log_softmax(logits, 1), rtol=1e-9)
    unknown = monte_carlo_logits(logits, torch.full((20,), 1e8).double(), noise)
    assert (entropy(unknown) > 0.995 * math.log(5)).all()


def test_a_prediction_does_not_depend_on_its_batch():
    logits, variance, noise = normal(20, 5), normal(20).square(), normal(30, 5)
    whole = monte_carlo_logits(logits, variance, noise)
    np.testing.assert_allclose(monte_carlo_logits(logits[7:8], variance[7:8], noise), whole[7:8], rtol=1e-12)


@pytest.mark.parametrize("variance", [0.1, 1.0, 10.0])
def test_the_mean_field_approximates_the_integral(variance):
    """Two logits of variance v differ by one of 2v, which is what the factor is for."""
    logits = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    found = mean_field_logits(logits, torch.tensor([2 * variance], dtype=torch.float64))
    assert float(torch.softmax(found, 1)[0, 0]) == pytest.approx(integral(2.0, variance), abs=0.02)
