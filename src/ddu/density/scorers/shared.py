"""Scores of classes that share one covariance."""

import torch
from torch import Tensor

from ddu.density.scorers.coordinates import cholesky, discriminant_basis, inverse_of_triangular
from ddu.density.scorers.scorer import LOG_2PI, Scorer, squared_lengths


class SharedScorer(Scorer):
    """One covariance for all classes: after one whitening, distances to the class means are Euclidean.

    With a background, the Gaussian of covariance Σ + B with B the covariance of the class means, points are whitened by
    the A that has A Σ Aᵀ = I and A B Aᵀ = diag(b), largest first. Beyond the first C - 1 coordinates b is zero and all
    means are equal, so that classes and background cancel there: differences between them need the first ones alone.
    """

    centre: Tensor
    whitening: Tensor
    mean: Tensor
    inverse_std: Tensor
    background_log_norm: Tensor

    def __init__(self, log_prior: Tensor, mean: Tensor, covariance: Tensor, *, background: bool = False):
        factor = cholesky(covariance)
        log_norm = -factor.diagonal().log().sum() - 0.5 * mean.shape[1] * LOG_2PI
        weight = log_prior.exp()
        # The mean of the background, so that the background lies at the origin
        centre = weight @ mean
        buffers = {}
        if background:
            whitening, variance = discriminant_basis(mean - centre, factor, weight)
            spread = 1 + variance[: len(mean) - 1]
            buffers = {"inverse_std": spread.rsqrt(), "background_log_norm": log_norm - 0.5 * spread.log().sum()}
        else:
            whitening = inverse_of_triangular(factor)
        super().__init__(
            log_prior,
            centre=centre,
            whitening=whitening,
            mean=(mean - centre) @ whitening.T,
            log_norm=log_norm.expand(len(mean)).clone(),
            **buffers,
        )

    def mahalanobis(self, z: Tensor) -> Tensor:
        return _squared_distances((z - self.centre) @ self.whitening.T, self.mean)

    def background_mahalanobis(self, z: Tensor) -> Tensor:
        white = (z - self.centre) @ self.whitening.T
        differing = len(self.inverse_std)
        return (white[:, :differing] * self.inverse_std).square().sum(1) + white[:, differing:].square().sum(1)

    def background_log_density(self, z: Tensor) -> Tensor:
        return self.background_log_norm - 0.5 * self.background_mahalanobis(z)

    def relative_mahalanobis(self, z: Tensor) -> Tensor:
        differing = len(self.inverse_std)
        white = (z - self.centre) @ self.whitening[:differing].T
        background = (white * self.inverse_std).square().sum(1, keepdim=True)
        return _squared_distances(white, self.mean[:, :differing]) - background

    def relative_log_density(self, z: Tensor) -> Tensor:
        offset = self.log_norm + self.log_prior - self.background_log_norm
        return torch.logsumexp(offset - 0.5 * self.relative_mahalanobis(z), dim=1)

    def graph_mahalanobis(self, z: Tensor) -> Tensor:
        return _expanded_distances((z - self.centre) @ self.whitening.T, self.mean)

    def graph_relative_mahalanobis(self, z: Tensor) -> Tensor:
        differing = len(self.inverse_std)
        white = (z - self.centre) @ self.whitening[:differing].T
        background = squared_lengths(white * self.inverse_std)[:, None]
        return _expanded_distances(white, self.mean[:, :differing]) - background

    def _background_log_norm(self) -> Tensor:
        return self.background_log_norm


def _squared_distances(points: Tensor, means: Tensor) -> Tensor:
    """|a - b|² by differences, (batch, class): |a|² - 2ab + |b|² would cancel."""
    return torch.cdist(points, means, compute_mode="donot_use_mm_for_euclid_dist").square()


def _expanded_distances(points: Tensor, means: Tensor) -> Tensor:
    """|a|² - 2ab + |b|², (batch, class): by one product, in double precision, where what cancels leaves enough."""
    a, b = points.double(), means.double()
    distances = squared_lengths(a)[:, None] - 2 * a @ b.T + b.square().sum(1)
    return torch.where(distances.isnan(), torch.inf, distances).clamp(min=0)
