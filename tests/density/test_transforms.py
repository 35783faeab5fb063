"""Feature transforms: as if scikit-learn's had been fitted first."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from torch import Tensor
from torch.testing import assert_close

from ddu.density import GaussianDensity

Blobs = Callable[..., tuple[Tensor, Tensor]]
# The stubs take a covariance for an integer
gaussian: Any = multivariate_normal
PLAIN: dict[str, Any] = {"shrinkage": None, "regularization": 0.0}

PIPELINES = {
    "normalize": ({"normalize": True}, lambda: make_pipeline(Normalizer())),
    "standardize": ({"standardize": True}, lambda: make_pipeline(StandardScaler())),
    "pca": ({"pca": 4}, lambda: make_pipeline(PCA(4))),
    "share of variance": ({"pca": 0.9}, lambda: make_pipeline(PCA(0.9))),
    "both": ({"standardize": True, "pca": 3}, lambda: make_pipeline(StandardScaler(), PCA(3))),
    "all": (
        {"normalize": True, "standardize": True, "pca": 2},
        lambda: make_pipeline(Normalizer(), StandardScaler(), PCA(2)),
    ),
}


def uneven(blobs: Blobs) -> tuple[np.ndarray, np.ndarray]:
    z, y = blobs(classes=3, per_class=60, dim=6)
    return (z * torch.tensor([1, 2, 5, 0.5, 10, 1]) + 3).numpy(), y.numpy()


@pytest.mark.parametrize("kind", PIPELINES)
def test_transforms_equal_a_scikit_learn_pipeline_before_dense_gaussians(blobs: Blobs, kind: str) -> None:
    params, make = PIPELINES[kind]
    z, y = uneven(blobs)
    points = z[:50] * 1.3
    pipeline = make().fit(z)
    mapped, mapped_points = pipeline.transform(z), pipeline.transform(points)
    classes = np.stack(
        [
            gaussian(mapped[y == label].mean(0), np.cov(mapped[y == label].T)).logpdf(mapped_points)
            for label in range(3)
        ],
        axis=1,
    )
    expected = logsumexp(classes + np.log(1 / 3), axis=1)
    if params.get("standardize"):
        # scikit-learn divides by the number of samples: its features are longer by √(n / (n - 1)) each
        expected += 0.5 * mapped.shape[1] * np.log(len(z) / (len(z) - 1))
    actual = GaussianDensity(**params, **PLAIN).fit(z, y).log_density(points)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9 * np.abs(expected).mean())


@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal", "low_rank"])
@pytest.mark.parametrize("kind", PIPELINES)
def test_transforms_go_with_every_covariance(blobs: Blobs, kind: str, covariance: Any) -> None:
    params, make = PIPELINES[kind]
    z, y = uneven(blobs)
    mapped = make().fit_transform(z)
    inside = GaussianDensity(covariance, rank=2, **params).fit(z, y).log_density(z)
    outside = GaussianDensity(covariance, rank=2).fit(mapped, y).log_density(mapped)
    # Up to the constant that scikit-learn's n instead of n - 1 makes
    assert isinstance(inside, np.ndarray)
    np.testing.assert_allclose(inside - inside.mean(), outside - outside.mean(), rtol=0, atol=1e-8)


def test_transforms_are_fitted_anew_when_samples_arrive_or_leave(blobs: Blobs) -> None:
    z, y = uneven(blobs)
    params: dict[str, Any] = {"standardize": True, "pca": 3}
    streamed = GaussianDensity(**params).fit(z[:50], y[:50]).update(z[50:], y[50:]).downdate(z[:20], y[:20])
    whole = GaussianDensity(**params).fit(z[20:], y[20:])
    np.testing.assert_allclose(streamed.log_density(z), whole.log_density(z), rtol=1e-9, atol=1e-9)


def test_more_components_than_features_keep_all(blobs: Blobs) -> None:
    z, y = blobs()
    many, all_ = GaussianDensity(pca=100).fit(z, y), GaussianDensity(pca=4).fit(z, y)
    assert_close(many.log_density(z), all_.log_density(z), rtol=0, atol=0)


def test_standardised_single_precision_agrees(blobs: Blobs) -> None:
    z, y = uneven(blobs)
    density = GaussianDensity(standardize=True, pca=4).fit(z, y)
    double = density.log_density(z)
    np.testing.assert_allclose(
        density.log_density(z.astype(np.float32)), double, rtol=0, atol=1e-4 * np.abs(np.asarray(double)).mean()
    )
