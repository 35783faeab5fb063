"""Scores of classes with a whole covariance each."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ddu.density.scorers.coordinates import (
    cholesky,
    completed_basis,
    discriminant_basis,
    in_basis,
    inverse_of_triangular,
)
from ddu.density.scorers.packed import bound_rows, pack, packed_size, row_strips
from ddu.density.scorers.pruning import PruningScorer, class_blocks, rounding_margin
from ddu.density.scorers.scorer import LOG_2PI, squared_lengths, squared_norms

# Numbers of differences to class means that are held at a time for the bounds: fewer than for the distances, since
# their small products take twice as long where differences are read from outside the cache
_CACHED = 2**18


class FullScorer(PruningScorer):
    """A covariance for every class.

    Points are first mapped by an invertible A. Its first k rows B span the directions in which the class means differ
    most, and map the pooled covariance to the identity. The others are orthonormal and orthogonal to those. They are
    chosen such that they take two products with k columns, and not one with all d:

        A z = [B z; z[k:] - F G z].

    In these coordinates every class has a lower-triangular whitening W_c = L_c⁻¹, and its first k rows see the first k
    coordinates only:

        |W_c (Az - Aμ_c)|² ≥ |W_c[:k, :k] (Az - Aμ_c)[:k]|²,

    at a (k/d)² of the cost. Where classes lie apart the bound is sharp, and `log_density` leaves out the classes whose
    share of the sum it proves to be below rounding.
    """

    centre: Tensor
    basis: Tensor  # B and G, (2k, feature)
    fold: Tensor  # F
    mean: Tensor
    whitening: Tensor  # (class, number), in strips of rows without the zeros behind them

    def __init__(self, log_prior: Tensor, mean: Tensor, covariance: Tensor):
        num_classes, dim = mean.shape
        rows = bound_rows(num_classes, dim)
        centre = log_prior.exp() @ mean
        basis, fold, log_det_basis = mean.new_empty(0, dim), mean.new_empty(dim, 0), mean.new_zeros(())
        if rows:
            pooled = cholesky(torch.tensordot(log_prior.exp(), covariance, dims=1))
            directions, _ = discriminant_basis(mean - centre, pooled, log_prior.exp())
            basis, fold, log_det_basis = completed_basis(directions[:rows])
        whitening = mean.new_empty(num_classes, packed_size(num_classes, dim))
        log_norm = torch.empty_like(log_prior)
        for label, sigma in enumerate(covariance):
            factor = cholesky(in_basis(in_basis(sigma, basis, fold).T, basis, fold))  # A Σ Aᵀ
            pack(inverse_of_triangular(factor), whitening[label], rows)
            log_norm[label] = log_det_basis - factor.diagonal().log().sum() - 0.5 * dim * LOG_2PI
        super().__init__(
            log_prior,
            centre=centre,
            basis=basis,
            fold=fold,
            mean=in_basis(mean - centre, basis, fold),
            whitening=whitening,
            log_norm=log_norm,
        )

    def mahalanobis(self, z: Tensor) -> Tensor:
        return self._distances(self._mapped(z))

    def graph_mahalanobis(self, z: Tensor) -> Tensor:
        delta = self._mapped(z) - self.mean[:, None]
        return squared_lengths(self._whitened(slice(None), delta)).T

    def log_density(self, z: Tensor) -> Tensor:
        x = self._mapped(z)
        offset = self.log_norm + self.log_prior
        if not self.bound_rows:
            return torch.logsumexp(offset - 0.5 * self._distances(x), dim=1)

        bound = offset[:, None] - 0.5 * self._first_distances(x)  # above the true value
        highest, margin = bound.amax(0), rounding_margin(len(bound), x.dtype)
        wanted = bound >= highest - margin  # No value is above the largest bound, so that these are certain to count
        if 2 * wanted.count_nonzero() <= wanted.numel():
            joint = torch.full_like(bound, -math.inf)
            # One value for each point shows how much the bounds are above the values
            self._fill_in(x, joint, bound == highest)
            wanted = (bound >= joint.amax(0) - margin) & joint.isneginf()
            if 2 * wanted.count_nonzero() <= wanted.numel():
                self._fill_in(x, joint, wanted)
                return torch.logsumexp(joint, dim=0)
        return torch.logsumexp(offset - 0.5 * self._distances(x), dim=1)

    @property
    def bound_rows(self) -> int:
        """How many whitened coordinates decide which classes are worth the rest."""
        return len(self.basis) // 2

    def _mapped(self, z: Tensor) -> Tensor:
        """A (z - centre)."""
        return in_basis(z - self.centre, self.basis, self.fold)

    def _distances_to(self, labels: list[int], deltas: Sequence[Tensor]) -> Tensor:
        strips = row_strips(self.whitening, self.bound_rows, self.mean.shape[1])
        pairs = zip(labels, deltas, strict=True)
        whitened = [torch.cat([delta[:, :end] @ strip[label] for end, strip in strips], 1) for label, delta in pairs]
        return squared_norms(torch.cat(whitened))

    def _distances(self, x: Tensor) -> Tensor:
        """Squared lengths of the whitened differences to the class means, (batch, class)."""
        blocks = class_blocks(self.mean, x.numel())
        return torch.cat([squared_norms(self._whitened(block, x - self.mean[block, None])) for block in blocks]).T

    def _whitened(self, block: slice, delta: Tensor) -> Tensor:
        """W δ of some classes, (class, batch, feature)."""
        strips = row_strips(self.whitening[block], self.bound_rows, delta.shape[-1])
        return torch.cat([delta[..., :end] @ strip for end, strip in strips], dim=-1)

    def _first_distances(self, x: Tensor) -> Tensor:
        """Squared lengths of the first whitened coordinates alone, (class, batch)."""
        rows = self.bound_rows
        x, mean, whitening = x[:, :rows], self.mean[:, :rows], self.whitening[:, : rows**2].unflatten(1, (rows, rows))
        blocks = class_blocks(mean, x.numel(), _CACHED)
        return torch.cat([squared_norms((x - mean[block, None]) @ whitening[block]) for block in blocks])
