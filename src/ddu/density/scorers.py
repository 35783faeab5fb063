"""Log-densities of many points under one Gaussian per class: whitened once, scored with matrix products only.

A scorer is an `nn.Module` whose buffers are everything it needs, in the dtype and on the device it scores in. None of
them solves a linear system or forms a d × d matrix it was not given. Called as a module, it computes the same in steps
that do not depend on the data, as an exported graph does.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

LOG_2PI = math.log(2 * math.pi)

# A full covariance is bounded by at most so many whitened coordinates, and by no more than an eighth of all. With fewer
# features the bound is no longer cheap beside the distance itself
_MOST_BOUND_ROWS = 64
_FEATURES_PER_BOUND_ROW = 8
_FEWEST_FEATURES = 256

# Triangular matrices of so many features are kept in so many strips of rows, beside those of the bound
_STRIPS = 4

# Numbers of differences to class means that are held at a time: many, since every block costs some 20 calls
_BLOCK = 2**21

# The same for the bounds, whose small products take twice as long where differences are read from outside the cache
_CACHED = 2**18

# Numbers of differences that are gathered at a time for the pairs of points and classes that are not left out
_GATHERED = 2**22

# Reading the directions of a class takes as long as multiplying so many points by them
_READING = 32


class Scorer(nn.Module, ABC):
    """Scores points under all classes, and under a background of one Gaussian if it has one."""

    log_prior: Tensor
    log_norm: Tensor
    background: "Scorer | None"

    def __init__(self, log_prior: Tensor, **buffers: Tensor):
        super().__init__()
        for name, value in {"log_prior": log_prior, **buffers}.items():
            # Products of other layouts differ in the last digit, and files keep none
            self.register_buffer(name, value.contiguous())
        self.background = None

    @classmethod
    def from_buffers(cls, buffers: dict[str, Tensor]) -> "Scorer":
        """A scorer from what `state_dict` gave, without factorising anything."""
        scorer = cls.__new__(cls)
        Scorer.__init__(scorer, **{name: value for name, value in buffers.items() if "." not in name})
        background = {name.removeprefix("background."): value for name, value in buffers.items() if "." in name}
        scorer.background = cls.from_buffers(background) if background else None
        return scorer

    @abstractmethod
    def mahalanobis(self, z: Tensor) -> Tensor:
        """Squared Mahalanobis distance (z - μ_c)ᵀ Σ_c⁻¹ (z - μ_c), (batch, class)."""

    def class_log_density(self, z: Tensor) -> Tensor:
        """log p(z | c), (batch, class)."""
        return self.log_norm - 0.5 * self.mahalanobis(z)

    def log_density(self, z: Tensor) -> Tensor:
        """log Σ_c π_c p(z | c), (batch,)."""
        return torch.logsumexp(self.class_log_density(z) + self.log_prior, dim=1)

    @abstractmethod
    def graph_mahalanobis(self, z: Tensor) -> Tensor:
        """`mahalanobis` as a graph computes it: one product for all classes, and squares that cannot overflow."""

    def graph_relative_mahalanobis(self, z: Tensor) -> Tensor:
        """`relative_mahalanobis` likewise."""
        assert self.background is not None
        return self.graph_mahalanobis(z) - self.background.graph_mahalanobis(z)

    def forward(self, z: Tensor, *, relative: bool = False) -> Tensor:
        """The log-density, or that relative to the background, (batch,), in double precision: what gets exported."""
        offset = (self.log_norm + self.log_prior).double()
        if not relative:
            return torch.logsumexp(offset - 0.5 * self.graph_mahalanobis(z), dim=1)
        offset = offset - self._background_log_norm().double()
        return torch.logsumexp(offset - 0.5 * self.graph_relative_mahalanobis(z), dim=1)

    def _background_log_norm(self) -> Tensor:
        assert self.background is not None
        return self.background.log_norm

    def background_mahalanobis(self, z: Tensor) -> Tensor:
        """Squared Mahalanobis distance to the background, (batch,)."""
        assert self.background is not None
        return self.background.mahalanobis(z).squeeze(1)

    def background_log_density(self, z: Tensor) -> Tensor:
        """log q₀(z) of the background, (batch,)."""
        assert self.background is not None
        return self.background.log_density(z)

    def relative_mahalanobis(self, z: Tensor) -> Tensor:
        """Squared distances to the classes less that to the background, (batch, class)."""
        return self.mahalanobis(z) - self.background_mahalanobis(z)[:, None]

    def relative_log_density(self, z: Tensor) -> Tensor:
        """log Σ_c π_c p(z | c) - log q₀(z), (batch,)."""
        return self.log_density(z) - self.background_log_density(z)


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

    def graph_mahalanobis(self, z: Tensor) -> Tensor:
        return _squared_lengths((z[:, None] - self.mean) * self.inverse_std)


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
        factor = _cholesky(covariance)
        log_norm = -factor.diagonal().log().sum() - 0.5 * mean.shape[1] * LOG_2PI
        weight = log_prior.exp()
        # The mean of the background, so that the background lies at the origin
        centre = weight @ mean
        buffers = {}
        if background:
            whitening, variance = _discriminant_basis(mean - centre, factor, weight)
            spread = 1 + variance[: len(mean) - 1]
            buffers = {"inverse_std": spread.rsqrt(), "background_log_norm": log_norm - 0.5 * spread.log().sum()}
        else:
            whitening = _inverse_of_triangular(factor)
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
        background = _squared_lengths(white * self.inverse_std)[:, None]
        return _expanded_distances(white, self.mean[:, :differing]) - background

    def _background_log_norm(self) -> Tensor:
        return self.background_log_norm


class PruningScorer(Scorer):
    """Works out the distances to those classes alone that a bound does not prove to be below rounding in the sum."""

    mean: Tensor

    @abstractmethod
    def _distances_to(self, labels: list[int], deltas: Sequence[Tensor]) -> Tensor:
        """Squared distances to some classes, (pair,), from differences to the mean of each, (batch, feature)."""

    def _fill_in(self, x: Tensor, joint: Tensor, wanted: Tensor) -> None:
        """Works out what is wanted of `joint`, log π_c p(x | c), (class, batch)."""
        # Its loop is that of other classes for every batch, which the compiler would compile anew each time
        fill: Any = torch.compiler.disable(self._fill) if torch.compiler.is_compiling() else self._fill
        fill(x, joint, wanted)

    def _fill(self, x: Tensor, joint: Tensor, wanted: Tensor) -> None:
        labels, rows = wanted.nonzero(as_tuple=True)
        if not len(labels):
            return
        step = max(_GATHERED // x.shape[1], 1)
        # One gather for many classes: of a small batch, most of them want a point or two
        for label, row in zip(labels.split(step), rows.split(step), strict=True):
            present, counts = label.unique_consecutive(return_counts=True)
            delta = (x[row] - self.mean[label]).split(counts.tolist())
            distances = self._distances_to(present.tolist(), delta)
            joint[label, row] = self.log_norm[label] + self.log_prior[label] - 0.5 * distances


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
        blocks = _blocks(self.mean, z.numel())
        return torch.cat([self._distances(block, z - self.mean[block, None]) for block in blocks]).T

    def log_density(self, z: Tensor) -> Tensor:
        num_classes, dim = self.mean.shape
        offset, margin = (self.log_norm + self.log_prior)[:, None], _margin(num_classes, z.dtype)
        # |δ|² = |z|² + |μ|² - 2 zμ about the mean of the means. Rounding adds to it, and takes off |Uᵀδ|², no more than
        # moves a log-density by `slack`
        centre = self.mean.mean(0)
        points, means = z - centre, self.mean - centre
        sizes = _squared_norms(means)[:, None] + _squared_norms(points)
        lengths = torch.addmm(sizes, means, points.T, alpha=-2)
        slack = (4 * math.sqrt(dim) * torch.finfo(z.dtype).eps * self.inverse_rest)[:, None] * sizes
        bound = torch.empty_like(lengths)
        joint = torch.full_like(lengths, -math.inf)
        best = joint[0]
        for block in _blocks(self.mean, z.numel()):
            delta = z - self.mean[block, None]
            along, near = self._along(block, delta)
            rest = (lengths[block] - _squared_norms(along)) * self.inverse_rest[block, None]
            middle = offset[block] - 0.5 * (near + rest)
            bound[block] = torch.minimum(middle + slack[block], offset[block] - 0.5 * near)
            best = torch.maximum(best, (middle - slack[block]).amax(0))
            counts = (bound[block] >= best - margin).sum(1)
            # Later, each class that is still wanted has its directions read again
            if 2 * (counts.sum() + _READING * counts.count_nonzero()) > len(counts) * len(z):
                joint[block] = offset[block] - 0.5 * (near + self._rest(block, delta, along))
                bound[block] = -math.inf
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
        return along, _squared_norms(along * self.inverse_std[block, None])

    def _rest(self, block: slice, delta: Tensor, along: Tensor) -> Tensor:
        """|δ - U Uᵀδ|² / σ², (class, batch): as the length of a vector, since |δ|² - |Uᵀδ|² would cancel. Ends δ."""
        across = delta.baddbmm_(along, self.directions[block].mT, alpha=-1)
        return _squared_norms(across) * self.inverse_rest[block, None]

    def graph_mahalanobis(self, z: Tensor) -> Tensor:
        delta = z - self.mean[:, None]  # (class, batch, feature)
        along = delta @ self.directions
        across = delta - along @ self.directions.mT
        rest = _squared_lengths(across) * self.inverse_rest.double()[:, None]
        return (_squared_lengths(along * self.inverse_std[:, None]) + rest).T


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
            pooled = _cholesky(torch.tensordot(log_prior.exp(), covariance, dims=1))
            directions, _ = _discriminant_basis(mean - centre, pooled, log_prior.exp())
            basis, fold, log_det_basis = _completed(directions[:rows])
        whitening = mean.new_empty(num_classes, packed_size(num_classes, dim))
        log_norm = torch.empty_like(log_prior)
        for label, sigma in enumerate(covariance):
            factor = _cholesky(_in_basis(_in_basis(sigma, basis, fold).T, basis, fold))  # A Σ Aᵀ
            _pack(_inverse_of_triangular(factor), whitening[label], rows)
            log_norm[label] = log_det_basis - factor.diagonal().log().sum() - 0.5 * dim * LOG_2PI
        super().__init__(
            log_prior,
            centre=centre,
            basis=basis,
            fold=fold,
            mean=_in_basis(mean - centre, basis, fold),
            whitening=whitening,
            log_norm=log_norm,
        )

    def mahalanobis(self, z: Tensor) -> Tensor:
        return self._distances(_in_basis(z - self.centre, self.basis, self.fold))

    def graph_mahalanobis(self, z: Tensor) -> Tensor:
        delta = _in_basis(z - self.centre, self.basis, self.fold) - self.mean[:, None]
        return _squared_lengths(self._whitened(slice(None), delta)).T

    def log_density(self, z: Tensor) -> Tensor:
        x = _in_basis(z - self.centre, self.basis, self.fold)
        offset = self.log_norm + self.log_prior
        if not self.bound_rows:
            return torch.logsumexp(offset - 0.5 * self._distances(x), dim=1)

        bound = offset[:, None] - 0.5 * self._first_distances(x)  # above the true value
        highest, margin = bound.amax(0), _margin(len(bound), x.dtype)
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

    def _distances_to(self, labels: list[int], deltas: Sequence[Tensor]) -> Tensor:
        strips = _strips(self.whitening, self.bound_rows, self.mean.shape[1])
        pairs = zip(labels, deltas, strict=True)
        whitened = [torch.cat([delta[:, :end] @ strip[label] for end, strip in strips], 1) for label, delta in pairs]
        return _squared_norms(torch.cat(whitened))

    def _distances(self, x: Tensor) -> Tensor:
        """Squared lengths of the whitened differences to the class means, (batch, class)."""
        blocks = _blocks(self.mean, x.numel())
        return torch.cat([_squared_norms(self._whitened(block, x - self.mean[block, None])) for block in blocks]).T

    def _whitened(self, block: slice, delta: Tensor) -> Tensor:
        """W δ of some classes, (class, batch, feature)."""
        strips = _strips(self.whitening[block], self.bound_rows, delta.shape[-1])
        return torch.cat([delta[..., :end] @ strip for end, strip in strips], dim=-1)

    def _first_distances(self, x: Tensor) -> Tensor:
        """Squared lengths of the first whitened coordinates alone, (class, batch)."""
        rows = self.bound_rows
        x, mean, whitening = x[:, :rows], self.mean[:, :rows], self.whitening[:, : rows**2].unflatten(1, (rows, rows))
        blocks = _blocks(mean, x.numel(), _CACHED)
        return torch.cat([_squared_norms((x - mean[block, None]) @ whitening[block]) for block in blocks])


def bound_rows(num_classes: int, dim: int) -> int:
    """How many coordinates bound the distances under full covariances; the class means differ in C - 1."""
    if dim < _FEWEST_FEATURES or num_classes < 3:
        return 0
    return min(max(num_classes - 1, 16), _MOST_BOUND_ROWS, dim // _FEATURES_PER_BOUND_ROW)


def packed_size(num_classes: int, dim: int) -> int:
    """How many numbers a packed triangular matrix has."""
    return sum((end - start) * end for start, end in _ends(bound_rows(num_classes, dim), dim))


def diagonal_blocks(packed: Tensor, dim: int) -> list[Tensor]:
    """The square blocks on the diagonals of packed triangular matrices, (class, row, column) each."""
    strips = _strips(packed, bound_rows(len(packed), dim), dim)
    return [strip[..., end - strip.shape[-1] :, :] for end, strip in strips]


def _ends(rows: int, dim: int) -> list[tuple[int, int]]:
    """The first row and the end of each strip; those of the bound are a strip of their own."""
    step = -(-(dim - rows) // _STRIPS) if dim >= _FEWEST_FEATURES else dim
    edges = [*([0] if rows else []), *range(rows, dim, step), dim]
    return list(itertools.pairwise(edges))


def _strips(packed: Tensor, rows: int, dim: int) -> list[tuple[int, Tensor]]:
    """Strips of rows of triangular matrices, each contiguous, and the column at which it ends.

    Products with parts of the rows of a larger matrix would take twice as long, for a few points at a time.
    """
    ends = _ends(rows, dim)
    parts = packed.split([(end - start) * end for start, end in ends], dim=-1)
    return [(end, part.unflatten(-1, (end, end - start))) for (start, end), part in zip(ends, parts, strict=True)]


def _pack(matrix: Tensor, packed: Tensor, rows: int) -> None:
    """Fills in one triangular matrix, (number,)."""
    start = 0
    for end, strip in _strips(packed, rows, len(matrix)):
        strip.copy_(matrix[start:end, :end].T)
        start = end


def _in_basis(z: Tensor, basis: Tensor, fold: Tensor) -> Tensor:
    """A z = [B z; z[k:] - F G z]."""
    rows = len(basis) // 2
    if not rows:
        return z
    first, folded = (z @ basis.T).split(rows, dim=1)
    return torch.cat([first, torch.addmm(z[:, rows:], folded, fold.T, alpha=-1)], dim=1)


def _completed(directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """An invertible A with the rows B = `directions`: [B; G], F and log |det A|.

    Let Q be an orthonormal basis of the rows of B, turned such that its first k columns are a symmetric P with no
    negative eigenvalue, and R the other columns. Then the rows of [-Rᵀ, I - Rᵀ (I + P)⁻¹ R] are orthonormal, and
    orthogonal to Q: F = Rᵀ and G = [I, (I + P)⁻¹ R].
    """
    rows = len(directions)
    orthonormal = torch.linalg.qr(directions.T).Q.T
    left, _, right = torch.linalg.svd(orthonormal[:, :rows])
    turned = (left @ right).T @ orthonormal
    identity = torch.eye(rows, dtype=directions.dtype, device=directions.device)
    folding = torch.linalg.solve(identity + turned[:, :rows], turned[:, rows:])
    log_det = 0.5 * torch.linalg.slogdet(directions @ directions.T).logabsdet
    return torch.cat([directions, torch.cat([identity, folding], dim=1)]), turned[:, rows:].T, log_det


def _margin(num_classes: int, dtype: torch.dtype) -> float:
    """How far below the largest of C terms another counts for nothing: C of eps / C are below rounding in the sum."""
    return math.log(num_classes) - math.log(torch.finfo(dtype).eps)


def _blocks(mean: Tensor, points: int, size: int | None = None) -> Iterator[slice]:
    """The classes, so many at a time that their differences to points of so many numbers fill a block."""
    step = max((size or _BLOCK) // max(points, 1), 1)
    return (slice(start, start + step) for start in range(0, len(mean), step))


def _discriminant_basis(mean: Tensor, factor: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A with A L Lᵀ Aᵀ = I for the factor L of a covariance, and A B Aᵀ = diag(b), descending, for the means; and b."""
    white_mean = torch.linalg.solve_triangular(factor, mean.T, upper=False) * weight.sqrt()
    rotation, singular, _ = torch.linalg.svd(white_mean, full_matrices=True)
    return torch.linalg.solve_triangular(factor.T, rotation, upper=True).T, singular.square()


def _squared_distances(points: Tensor, means: Tensor) -> Tensor:
    """|a - b|² by differences, (batch, class): |a|² - 2ab + |b|² would cancel."""
    return torch.cdist(points, means, compute_mode="donot_use_mm_for_euclid_dist").square()


def _squared_norms(vectors: Tensor) -> Tensor:
    """Σ x² over the last axis."""
    return vectors.square().sum(-1)


def _squared_lengths(vectors: Tensor) -> Tensor:
    """Σ x² over the last axis, in double precision; infinite where single precision has lost its way."""
    squares = vectors.double().square().sum(-1)
    return torch.where(squares.isnan(), torch.inf, squares)


def _expanded_distances(points: Tensor, means: Tensor) -> Tensor:
    """|a|² - 2ab + |b|², (batch, class): by one product, in double precision, where what cancels leaves enough."""
    a, b = points.double(), means.double()
    distances = _squared_lengths(a)[:, None] - 2 * a @ b.T + b.square().sum(1)
    return torch.where(distances.isnan(), torch.inf, distances).clamp(min=0)


def _cholesky(matrix: Tensor) -> Tensor:
    factor, info = torch.linalg.cholesky_ex(matrix)
    if info.any():
        raise ArithmeticError("the matrix is not positive definite")
    return factor


def _inverse_of_triangular(factor: Tensor) -> Tensor:
    identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, identity, upper=False)
