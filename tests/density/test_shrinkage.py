"""Shrinkage: coefficients as scikit-learn finds them, and what they make of the covariance."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf, oas
from torch import Tensor
from torch.testing import assert_close

from ddu.density import GaussianDensity

Blobs = Callable[..., tuple[Tensor, Tensor]]
REFERENCES = {"oas": oas, "ledoit_wolf": ledoit_wolf}

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.FewSamplesWarning")


@pytest.mark.parametrize("kind", REFERENCES)
@given(
    count=st.integers(2, 60),
    dim=st.integers(2, 40),
    seed=st.integers(0, 99),
    offset=st.sampled_from([0.0, 1e3]),
    decay=st.sampled_from([0.0, 1.0, 3.0]),
)
@settings(derandomize=True, deadline=None, max_examples=30)
def test_coefficients_and_covariances_equal_scikit_learns(
    kind: Any, count: int, dim: int, seed: int, offset: float, decay: float
) -> None:
    spectrum = np.arange(1, dim + 1) ** -decay
    z = np.random.default_rng(seed).normal(size=(count, dim)) * spectrum + offset
    density = GaussianDensity(shrinkage=kind, regularization=0.0)
    density.update(z, np.zeros(count, dtype=int))
    matrix, coefficient = REFERENCES[kind](z)
    if coefficient < 1e-9 or (coefficient * np.trace(matrix) / dim) < 1e-12 * np.trace(matrix):
        return  # singular: nothing to compare
    # A mean of 1e3 deviations costs scikit-learn digits
    np.testing.assert_allclose(density.shrinkage_[0], coefficient, rtol=1e-9 if offset == 0 else 1e-5)
    # scikit-learn divides by the number of samples
    unbiased = matrix * count / (count - 1)
    np.testing.assert_allclose(density.covariances_[0], unbiased, rtol=0, atol=1e-5 * np.abs(unbiased).max())


@pytest.mark.parametrize("kind", REFERENCES)
def test_every_class_has_its_own_coefficient_after_merging_and_forgetting(blobs: Blobs, kind: Any) -> None:
    z, y = blobs(classes=3, per_class=30, dim=10)
    z = z * (1 + 5 * y[:, None])
    density = GaussianDensity(shrinkage=kind).fit(z[:40], y[:40])
    density.merge(GaussianDensity(shrinkage=kind).update(z[40:], y[40:])).downdate(z[70:], y[70:])
    expected = [REFERENCES[kind](z[:70][y[:70] == label].numpy())[1] for label in range(3)]
    np.testing.assert_allclose(density.shrinkage_, expected, rtol=1e-9)


@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_a_number_blends_the_class_covariance_with_its_mean_variance(blobs: Blobs, share: float) -> None:
    z, y = blobs(dim=5)
    density = GaussianDensity(shrinkage=share, regularization=0.0).fit(z, y)
    for label in range(3):
        own = torch.from_numpy(np.cov(z[y == label].numpy().T))
        isotropic = own.diagonal().mean() * torch.eye(5, dtype=torch.float64)
        assert_close(density.covariances_[label], (1 - share) * own + share * isotropic, rtol=1e-10, atol=1e-12)
    assert density.shrinkage_.tolist() == [share] * 3


def test_shared_shrinks_the_pooled_covariance(blobs: Blobs) -> None:
    z, y = blobs(dim=5)
    density = GaussianDensity("shared", shrinkage=0.3, regularization=0.0).fit(z, y)
    own = np.stack([np.cov(z[y == label].numpy().T) for label in range(3)])
    pooled = torch.from_numpy(own.mean(0))
    expected = 0.7 * pooled + 0.3 * pooled.diagonal().mean() * torch.eye(5, dtype=torch.float64)
    assert_close(density.covariances_[0], expected, rtol=1e-10, atol=1e-12)


def test_auto_is_the_class_covariance_with_d_pseudo_samples_of_the_pooled_one(blobs: Blobs) -> None:
    dim = 6
    z, y = blobs(classes=2, per_class=25, dim=dim)
    density = GaussianDensity(regularization=0.0).fit(z, y)
    scatter = torch.stack([torch.from_numpy(np.cov(z[y == label].numpy().T)) * 24 for label in range(2)])
    pooled = scatter.sum(0) / 48
    identity = torch.eye(dim, dtype=torch.float64)
    # Chen et al. (2010), equation 23, with the pooled degrees of freedom for the number of samples
    square, trace = pooled.square().sum(), pooled.trace()
    rho = (square / dim**2 + (trace / dim) ** 2) / (49 * (square / dim**2 - (trace / dim) ** 2 / dim))
    target = (1 - rho) * pooled + rho * trace / dim * identity
    assert_close(density.covariances_, (scatter + dim * target) / (24 + dim), rtol=1e-10, atol=1e-12)
    assert_close(density.shrinkage_, torch.full((2,), dim / (dim + 24), dtype=torch.float64))


def test_auto_fades_as_samples_come_in(blobs: Blobs) -> None:
    shares = [float(GaussianDensity().fit(*blobs(per_class=count)).shrinkage_[0]) for count in (2, 20, 200, 2000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(4 / 5)
    assert shares[-1] < 0.003


@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal", "low_rank"])
def test_regularisation_adds_its_share_of_the_mean_variance(blobs: Blobs, covariance: Any) -> None:
    z, y = blobs()
    bare = GaussianDensity(covariance, shrinkage=None, regularization=0.0, rank=2).fit(z, y)
    regular = GaussianDensity(covariance, shrinkage=None, regularization=0.1, rank=2).fit(z, y)
    ridge = 0.1 * bare.covariances_.diagonal(dim1=1, dim2=2).mean()
    assert regular.regularization_ == pytest.approx(float(ridge), rel=1e-12)
    expected = bare.covariances_ + ridge * torch.eye(4, dtype=torch.float64)
    assert_close(regular.covariances_, expected.expand_as(regular.covariances_), rtol=1e-10, atol=1e-12)
