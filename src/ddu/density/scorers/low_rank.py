"""Scores of classes that vary along a few directions, and evenly in all others."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ddu.density.scorers.pruning import PruningScorer, class_blocks, rounding_margin
from ddu.density.scorers.scorer import LOG_2PI, squared_lengths, squared_norms

# Reading the directions of a class takes as long as multiplying so many points by them
_READING = 32


class LowRankScorer(PruningScorer):
    """Σ_c = U diag(λ) Uᵀ + σ² (I - U Uᵀ): r principal directions and an isotropic rest, never a d × d matrix.

    A distance is |λ^-½ Uᵀδ|² + |δ - U Uᵀδ|² / σ² with δ = z - μ_c. The vector in the second term is half of the work.
    Its length is known from |δ|² - |Uᵀδ|² but for rounding, so `log_density` works it out for those classes alone that
    could, within rounding, change the sum: at once where that is most of them, otherwise at the end.
    """

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
        blocks = class_blocks(self.mean, z.numel())
        return torch.cat([self._distances(block, z - self.mean[block, None]) for block in blocks]).T

    def log_density(self, z: Tensor) -> Tensor:
        num_classes, dim = self.mean.shape
        offset, margin = (self.log_norm + self.log_prior)[:, None], rounding_margin(num_classes, z.dtype)
        # |δ|² = |z|² + |μ|² - 2 zμ about the mean of the means. Rounding adds to it, and takes off |Uᵀδ|², no more than
        # moves a log-density by `slack`
        centre = self.mean.mean(0)
        points, means = z - centre, self.mean - centre
        sizes = squared_norms(means)[:, None] + squared_norms(points)
        lengths = torch.addmm(sizes, means, points.T, alpha=-2)
        slack = (4 * math.sqrt(dim) * torch.finfo(z.dtype).eps * self.inverse_rest)[:, None] * sizes
        bound = torch.empty_like(lengths)
        joint = torch.full_like(lengths, -math.inf)
        best, all_scored = joint[0], True
        for block in class_blocks(self.mean, z.numel()):
            delta = z - self.mean[block, None]
            along, near = self._along(block, delta)
            rest = (lengths[block] - squared_norms(along)) * self.inverse_rest[block, None]
            middle = offset[block] - 0.5 * (near + rest)
            bound[block] = torch.minimum(middle + slack[block], offset[block] - 0.5 * near)
            best = torch.maximum(best, (middle - slack[block]).amax(0))
            counts = (bound[block] >= best - margin).sum(1)
            # Later, each class that is still wanted has its directions read again
            if 2 * (counts.sum() + _READING * counts.count_nonzero()) > len(counts) * len(z):
                joint[block] = offset[block] - 0.5 * (near + self._rest(block, delta, along))
                bound[block] = -math.inf
            else:
                all_scored = False
        if all_scored:
            return torch.logsumexp(joint, dim=0)
        # No value is above the largest bound, so these are needed whatever the values are
        likely = bound >= torch.maximum(bound, joint).amax(0) - margin
        self._fill_in(z, joint, likely)
        self._fill_in(z, joint, (bound >= joint.amax(0) - margin) & ~likely)
        return torch.logsumexp(joint, dim=0)

    def _distances_to(self, labels: list[int], deltas: Sequence[Tensor]) -> Tensor:
        pairs = zip(labels, deltas, strict=True)
        return torch.cat([self._distances(slice(label, label + 1), delta[None])[0] for label, delta in pairs])

    def _distances(self, block: slice, delta: Tensor) -> Tensor:
        """Squared distances to some classes, (class, batch), from δ, (class, batch, feature)."""
        along, near = self._along(block, delta)
        return near + self._rest(block, delta, along)

    def _along(self, block: slice, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Uᵀδ of some classes, (class, batch, direction), and the part of the distances along the directions."""
        along = delta @ self.directions[block]
        return along, squared_norms(along * self.inverse_std[block, None])

    def _rest(self, block: slice, delta: Tensor, along: Tensor) -> Tensor:
        """|δ - U Uᵀδ|² / σ², (class, batch): as the length of a vector, since |δ|² - |Uᵀδ|² would cancel. Ends δ."""
        across = delta.baddbmm_(along, self.directions[block].mT, alpha=-1)
        return squared_norms(across) * self.inverse_rest[block, None]

    def graph_mahalanobis(self, z: Tensor) -> Tensor:
        delta = z - self.mean[:, None]  # (class, batch, feature)
        along = delta @ self.directions
        across = delta - along @ self.directions.mT
        rest = squared_lengths(across) * self.inverse_rest.double()[:, None]
        return (squared_lengths(along * self.inverse_std[:, None]) + rest).T
