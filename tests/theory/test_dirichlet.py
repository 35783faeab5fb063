"""Dirichlet moments of the entropy, against Monte Carlo, quadrature and scipy."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special, stats

from ddu.errors import InputError
from ddu.theory import entropy_covariance, entropy_variance, expected_entropy, fit_dirichlet, mutual_information

ALPHAS = [(1.0, 2.0, 3.0), (0.3, 0.3, 0.3, 0.3), (2.0, 0.5), (5.0, 0.1, 1.0), (30.0, 20.0, 10.0, 5.0, 1.0)]
DRAWS = 200_000


def draws(alpha) -> np.ndarray:
    """Draws that are never exactly 0, so that p log p is 0 there and log p finite."""
    return np.random.default_rng(0).dirichlet(alpha, DRAWS).clip(1e-300)


def entropies(alpha) -> np.ndarray:
    return special.entr(draws(alpha)).sum(1)


def within_chance(estimates: np.ndarray, value: float) -> bool:
    """Whether the mean of independent estimates is within four standard errors of a value."""
    return abs(estimates.mean() - value) < 4 * estimates.std() / math.sqrt(len(estimates))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_expected_entropy_is_that_of_draws(alpha):
    assert within_chance(entropies(alpha), float(expected_entropy(torch.tensor(alpha))))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_variance_of_the_entropy_is_that_of_draws(alpha):
    found = entropies(alpha)
    assert within_chance((found - found.mean()) ** 2, float(entropy_variance(torch.tensor(alpha))))


@pytest.mark.parametrize("alpha", [(2.0, 0.5), (1.0, 1.0), (0.2, 3.0)])
def test_two_classes_agree_with_quadrature_over_the_beta_distribution(alpha):
    beta = stats.beta(*alpha)

    def moment(power: int) -> float:
        value, _ = integrate.quad(
            lambda p: (special.entr(p) + special.entr(1 - p)) ** power * beta.pdf(p), 0, 1, limit=200
        )
        return value

    given = torch.tensor(alpha)
    assert float(expected_entropy(given)) == pytest.approx(moment(1), rel=1e-7)
    assert float(entropy_variance(given)) == pytest.approx(moment(2) - moment(1) ** 2, rel=1e-6)


@pytest.mark.parametrize(("i", "j", "n", "m"), [(0, 1, 1, 2), (0, 1, 2, 1), (2, 0, 1, 1), (1, 1, 1, 1), (1, 1, 1, 2)])
@pytest.mark.parametrize("alpha", [(1.0, 2.0, 3.0), (0.7, 0.4, 1.5)])
def test_covariances_of_powers_are_those_of_draws(alpha, i, j, n, m):
    p = draws(alpha)
    x, y = p[:, i] ** n * np.log(p[:, i]), p[:, j] ** m * np.log(p[:, j])
    products = (x - x.mean()) * (y - y.mean())
    assert within_chance(products, float(entropy_covariance(torch.tensor(alpha), i, j, n, m)))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_variance_is_the_sum_of_all_covariances(alpha):
    given, classes = torch.tensor(alpha), range(len(alpha))
    total = sum(float(entropy_covariance(given, i, j)) for i in classes for j in classes)
    assert float(entropy_variance(given)) == pytest.approx(total, rel=1e-7)


def test_a_class_that_never_occurs_changes_nothing():
    two, three = torch.tensor([2.0, 0.5]), torch.tensor([2.0, 0.0, 0.5])
    for moment in (expected_entropy, entropy_variance, mutual_information):
        torch.testing.assert_close(moment(three), moment(two), rtol=1e-12, atol=0)


def test_moments_of_a_batch_are_those_of_its_entries():
    alpha = torch.rand(4, 3, 5, generator=torch.Generator().manual_seed(0)) * 3
    for moment in (expected_entropy, entropy_variance, mutual_information):
        torch.testing.assert_close(moment(alpha)[2, 1], moment(alpha[2, 1]), rtol=1e-12, atol=0)


def test_the_variance_vanishes_where_all_draws_are_alike():
    totals = torch.tensor([1e-6, 1e3, 1e6])
    found = entropy_variance(totals[:, None] * torch.tensor([0.2, 0.3, 0.5]))
    assert found[0] < 1e-5  # one-hot, all of them
    assert 50 < found[1] / found[2] < 2000  # falls like 1 / α₀
    assert found[2] > 0


@pytest.mark.parametrize("share", [1e-6, 0.01, 0.5, 0.99, 1 - 1e-6])
def test_the_fitted_dirichlet_has_the_mean_and_the_mutual_information(share):
    mean = torch.tensor([[0.2, 0.3, 0.5], [0.9, 0.05, 0.05], [0.999, 0.001, 0.0]], dtype=torch.float64)
    wanted = share * torch.special.entr(mean).sum(1)
    alpha = fit_dirichlet(mean, wanted)
    torch.testing.assert_close(alpha / alpha.sum(1, keepdim=True), mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(mutual_information(alpha), wanted, rtol=1e-9, atol=1e-14)


def test_the_fit_agrees_with_a_root_of_scipy():
    mean, information = np.array([0.25, 0.75]), 0.1
    entropy = special.entr(mean).sum()
    total = optimize.brentq(
        lambda a: special.digamma(a + 1) - (mean * special.digamma(a * mean + 1)).sum() - entropy + information,
        1e-3,
        1e3,
    )
    found = fit_dirichlet(torch.from_numpy(mean), torch.tensor(information, dtype=torch.float64))
    assert found.tolist() == pytest.approx((total * mean).tolist(), rel=1e-9)


@pytest.mark.parametrize(
    ("information", "words"), [(0.0, "with 0 and 0.693 nats"), (math.log(2), "with 0.693 and 0.693")]
)
def test_there_is_no_dirichlet_at_the_ends(information, words):
    with pytest.raises(InputError, match=f"^A Dirichlet distribution needs a mutual information above 0 .* {words}"):
        fit_dirichlet(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0.1, information], dtype=torch.float64))


@pytest.mark.parametrize("alpha", [(-1.0, 2.0), (0.0, 0.0), (math.nan, 1.0), (math.inf, 1.0)])
def test_concentrations_that_are_none_are_refused(alpha):
    with pytest.raises(InputError, match=r"^Concentrations must be finite and not negative"):
        entropy_variance(torch.tensor(alpha))


def test_the_mutual_information_is_that_of_draws():
    for alpha in ALPHAS:
        entropy_of_mean = special.entr(np.array(alpha) / sum(alpha)).sum()
        assert within_chance(entropy_of_mean - entropies(alpha), float(mutual_information(torch.tensor(alpha))))


@pytest.mark.parametrize("total", [1e-300, 1e-12, 1e12, 1e200, 1e300])
def test_moments_of_extreme_concentrations_are_those_of_the_limit(total):
    alpha = total * torch.tensor([0.25, 0.75], dtype=torch.float64)
    assert float(entropy_variance(alpha)) == pytest.approx(0, abs=1e-11)
    limit = 0.0 if total < 1 else special.entr([0.25, 0.75]).sum()
    assert float(expected_entropy(alpha)) == pytest.approx(limit, abs=1e-11)


def test_the_variance_keeps_its_digits_up_to_a_million_where_it_falls_slowly():
    # The delta method: Var[H] → Var[log p] under the mean, divided by α₀
    mean = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    limit = (mean * mean.log() ** 2).sum() - (mean * mean.log()).sum() ** 2
    assert float(1e6 * entropy_variance(1e6 * mean)) == pytest.approx(float(limit), rel=1e-4)


def test_classes_may_be_counted_from_the_end_and_are_refused_outside():
    alpha = torch.tensor([1.0, 2.0])
    assert entropy_covariance(alpha, 0, -2) == entropy_covariance(alpha, 0, 0)
    assert entropy_covariance(alpha, -1, 0) == entropy_covariance(alpha, 1, 0)
    with pytest.raises(InputError, match=r"^Classes must be from -2 to 1\. Got 0 and 2\.$"):
        entropy_covariance(alpha, 0, 2)


def test_covariances_of_high_powers_are_finite_and_those_of_quadrature():
    assert entropy_covariance(torch.tensor([1.0, 2.0]), 0, 1, 200, 200).isfinite()
    a, b, n, m = 1.5, 2.5, 12, 9
    beta = stats.beta(a, b)

    def mean(function) -> float:
        return integrate.quad(lambda p: function(p) * beta.pdf(p), 0, 1, limit=200, epsabs=1e-15)[0]

    def x(p):
        return -(p ** (n - 1)) * special.entr(p)

    def y(p):
        return -((1 - p) ** (m - 1)) * special.entr(1 - p)

    expected = mean(lambda p: x(p) * y(p)) - mean(x) * mean(y)
    assert float(entropy_covariance(torch.tensor([a, b]), 0, 1, n, m)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_concentrations_without_classes_are_refused(shape):
    with pytest.raises(InputError, match=r"^Concentrations are \(\.\.\., class\), of at least one class\."):
        entropy_variance(torch.ones(shape))


@pytest.mark.parametrize("mean", [[-0.5, 1.5], [math.nan, 0.5], [0.0, 0.0]])
def test_means_that_are_none_are_refused(mean):
    with pytest.raises(InputError, match=r"^Mean predictions \(\.\.\., class\) must be finite and not negative"):
        fit_dirichlet(torch.tensor(mean), torch.tensor(0.1))


def test_means_of_no_class_are_refused():
    with pytest.raises(InputError, match=r"with a positive sum\. Got the shape \(3, 0\)\.$"):
        fit_dirichlet(torch.ones(3, 0), torch.ones(3))


def test_means_without_a_mutual_information_each_are_refused():
    with pytest.raises(InputError, match=r"Got the shapes \(3, 2\) and \(2,\)\.$"):
        fit_dirichlet(torch.full((3, 2), 0.5), torch.tensor([0.1, 0.2]))


def test_powers_below_one_are_refused():
    with pytest.raises(InputError, match=r"^Both powers must be at least 1\. Got 0 and 1\.$"):
        entropy_covariance(torch.ones(3), 0, 1, n=0)
