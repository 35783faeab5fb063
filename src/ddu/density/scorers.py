"""Log-densities of many points under one Gaussian per class: whitened once, scored with matrix products only.

A scorer is an `nn.Module` whose buffers are everything it needs, in the dtype and on the device it scores in. None of
them solves a linear system or forms a d × d matrix it was not given, so they can be exported as they are.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

LOG_2PI = math.log(2 * math.pi)

# Whitened coordinates that decide which classes are worth the rest
_BOUND_ROWS = 64


class Scorer(nn.Module, ABC):
    """Scores points under all classes."""

    log_prior: Tensor
    log_norm: Tensor

    def __init__(self, log_prior: Tensor, **buffers: Tensor):
        super().__init__()
        self.register_buffer("log_prior", log_prior)
        for name, value in buffers.items():
            self.register_buffer(name, value)

    @abstractmethod
    def mahalanobis(self, z: Tensor) -> Tensor:
        """Squared Mahalanobis distance (z - μ_c)ᵀ Σ_c⁻¹ (z - μ_c), (batch, class)."""

    def class_log_density(self, z: Tensor) -> Tensor:
        """log p(z | c), (batch, class)."""
        return self.log_norm - 0.5 * self.mahalanobis(z)

    def log_density(self, z: Tensor) -> Tensor:
        """log Σ_c π_c p(z | c), (batch,)."""
        return torch.logsumexp(self.class_log_density(z) + self.log_prior, dim=1)

    def forward(self, z: Tensor) -> Tensor:
        """The log-density, without shortcuts that depend on the data: this is what gets exported."""
        return Scorer.log_density(self, z)


class DiagonalScorer(Scorer):
    """Independent features: Σ_c = diag(v_c)."""

    mean: Tensor
    inverse_std: Tensor

    def __init__(self, log_prior: Tensor, mean: Tensor, variance: Tensor):
        log_norm = -0.5 * (variance.log().sum(1) + mean.shape[1] * LOG_2PI)
        super().__init__(log_prior, mean=mean, inverse_std=variance.rsqrt(), log_norm=log_norm)

    def mahalanobis(self, z: Tensor) -> Tensor:
        pairs = zip(self.mean, self.inverse_std, strict=True)
        return torch.stack([((z - mean) * scale).square().sum(1) for mean, scale in pairs], dim=1)


class SharedScorer(Scorer):
    """One covariance for all classes: after one whitening, distances to the class means are Euclidean."""

    centre: Tensor
    whitening: Tensor
    mean: Tensor

    def __init__(self, log_prior: Tensor, mean: Tensor, covariance: Tensor):
        factor = _cholesky(covariance)
        whitening = _inverse_of_triangular(factor)
        centre = mean.mean(0)
        log_norm = -factor.diagonal().log().sum() - 0.5 * mean.shape[1] * LOG_2PI
        super().__init__(
            log_prior,
            centre=centre,
            whitening=whitening,
            mean=(mean - centre) @ whitening.T,
            log_norm=log_norm.expand(len(mean)).clone(),
        )

    def mahalanobis(self, z: Tensor) -> Tensor:
        white = (z - self.centre) @ self.whitening.T
        # |a - b|² by differences: |a|² - 2ab + |b|² would cancel
        return torch.cdist(white, self.mean, compute_mode="donot_use_mm_for_euclid_dist").square()


class LowRankScorer(Scorer):
    """Σ_c = U diag(λ) Uᵀ + σ² (I - U Uᵀ): r principal directions and an isotropic rest, never a d × d matrix."""

    mean: Tensor
    directions: Tensor
    inverse_std: Tensor
    inverse_rest: Tensor

    def __init__(self, log_prior: Tensor, mean: Tensor, directions: Tensor, variances: Tensor, rest: Tensor):
        dim, rank = directions.shape[1:]
        log_det = variances.log().sum(1) + (dim - rank) * rest.log()
        super().__init__(
            log_prior,
            mean=mean,
            directions=directions,
            inverse_rest=1 / rest,
            inverse_std=variances.rsqrt(),
            log_norm=-0.5 * (log_det + dim * LOG_2PI),
        )

    def mahalanobis(self, z: Tensor) -> Tensor:
        distances = []
        for mean, basis, scale, inverse in zip(
            self.mean, self.directions, self.inverse_std, self.inverse_rest, strict=True
        ):
            delta = z - mean
            along = delta @ basis
            # The rest as a vector: |delta|² - |along|² would cancel
            across = torch.addmm(delta, along, basis.T, alpha=-1)
            distances.append((along * scale).square().sum(1) + across.square().sum(1) * inverse)
        return torch.stack(distances, dim=1)


class FullScorer(Scorer):
    """A covariance for every class.

    Points are first mapped by A to coordinates in which the pooled covariance is the identity and the spread of the
    class means is diagonal, largest first. In them every class has a lower-triangular whitening W_c = L_c⁻¹, and the
    first k rows of W_c see the first k coordinates only:

        |W_c (Az - Aμ_c)|² ≥ |W_c[:k, :k] (Az - Aμ_c)[:k]|²,

    at a (k/d)² of the cost. The class means differ in their first C - 1 coordinates alone, so the bound is sharp, and
    `log_density` leaves out the classes whose share of the sum it proves to be below rounding.
    """

    centre: Tensor
    basis: Tensor
    mean: Tensor
    whitening: Tensor

    def __init__(self, log_prior: Tensor, mean: Tensor, covariance: Tensor):
        centre = log_prior.exp() @ mean
        basis, log_det_basis = _discriminant_basis(mean - centre, covariance, log_prior.exp())
        whitening = torch.empty_like(covariance)
        log_norm = torch.empty_like(log_prior)
        for label, sigma in enumerate(covariance):
            factor = _cholesky(basis @ sigma @ basis.T)
            whitening[label] = _inverse_of_triangular(factor)
            log_norm[label] = log_det_basis - factor.diagonal().log().sum() - 0.5 * mean.shape[1] * LOG_2PI
        super().__init__(
            log_prior,
            centre=centre,
            basis=basis,
            mean=(mean - centre) @ basis.T,
            whitening=whitening,
            log_norm=log_norm,
        )

    def mahalanobis(self, z: Tensor) -> Tensor:
        return self._distances((z - self.centre) @ self.basis.T)

    def log_density(self, z: Tensor) -> Tensor:
        num_classes, dim = self.mean.shape
        x = (z - self.centre) @ self.basis.T
        offset = self.log_norm + self.log_prior
        if dim < 2 * _BOUND_ROWS or num_classes < 3:
            return torch.logsumexp(offset - 0.5 * self._distances(x), dim=1)

        bound = offset - 0.5 * self._distances(x, _BOUND_ROWS)  # above the true value
        joint = torch.full_like(bound, -math.inf)
        likeliest = torch.nn.functional.one_hot(bound.argmax(1), num_classes).bool()
        self._fill(joint, x, offset, likeliest)
        # C terms below eps / C of the largest cannot change the sum
        margin = math.log(num_classes) - math.log(torch.finfo(x.dtype).eps)
        contender = bound > joint.amax(1, keepdim=True) - margin
        self._fill(joint, x, offset, contender & ~likeliest)
        return torch.logsumexp(joint, dim=1)

    def _distances(self, x: Tensor, rows: int | None = None) -> Tensor:
        """Squared lengths of the first `rows` whitened coordinates, (batch, class)."""
        x, mean, whitening = x[:, :rows], self.mean[:, :rows], self.whitening[:, :rows, :rows]
        pairs = zip(mean, whitening, strict=True)
        return torch.stack([((x - centre) @ white.T).square().sum(1) for centre, white in pairs], dim=1)

    def _fill(self, joint: Tensor, x: Tensor, offset: Tensor, wanted: Tensor) -> None:
        for label in wanted.any(0).nonzero().flatten().tolist():
            index = wanted[:, label].nonzero().flatten()
            white = (x[index] - self.mean[label]) @ self.whitening[label].T
            joint[index, label] = offset[label] - 0.5 * white.square().sum(1)


def _discriminant_basis(mean: Tensor, covariance: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A and log |det A| with A P Aᵀ = I for the pooled covariance P, and A B Aᵀ diagonal, descending, for the means."""
    pooled = torch.tensordot(weight, covariance, dims=1)
    factor = _cholesky(pooled)
    white_mean = torch.linalg.solve_triangular(factor, mean.T, upper=False) * weight.sqrt()
    rotation = torch.linalg.svd(white_mean, full_matrices=True).U
    basis = torch.linalg.solve_triangular(factor.T, rotation, upper=True).T
    return basis, -factor.diagonal().log().sum()


def _cholesky(matrix: Tensor) -> Tensor:
    factor, info = torch.linalg.cholesky_ex(matrix)
    if info.any():
        raise ArithmeticError("the matrix is not positive definite")
    return factor


def _inverse_of_triangular(factor: Tensor) -> Tensor:
    identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, identity, upper=False)
