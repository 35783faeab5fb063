"""Log-densities of many points under one Gaussian per class: whitened once, scored with matrix products only.

A scorer is an `nn.Module` whose buffers are everything it needs, in the dtype and on the device it scores in. None of
them solves a linear system or forms a d × d matrix it was not given. Called as a module, it computes the same in steps
that do not depend on the data, as an exported graph does.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

LOG_2PI = math.log(2 * math.pi)

# A full covariance is bounded by at most so many whitened coordinates, and by no more than an eighth of all. With fewer
# features the bound is no longer cheap beside the distance itself
_MOST_BOUND_ROWS = 64
_FEATURES_PER_BOUND_ROW = 8
_FEWEST_FEATURES = 256

# Numbers of differences to class means that are held at a time: many, since every block costs some 20 calls
_BLOCK = 2**21

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
    def _distances_to(self, label: int, delta: Tensor) -> Tensor:
        """Squared distances to one class, (batch,), from the differences to its mean."""

    def _sum_of_contenders(self, x: Tensor, joint: Tensor, bound: Tensor) -> Tensor:
        """log Σ_c exp(joint), (batch,), where `joint` still lacks some classes.

        Args:
            x: Points, from which the class means are subtracted.
            joint: log π_c p(x | c) where that is known, elsewhere -∞, (class, batch); is filled in.
            bound: No less than what is not known, -∞ where it is.
        """
        margin = _margin(len(joint), joint.dtype)
        # No value is above the largest bound, so these are needed whatever the values are
        likely = bound >= torch.maximum(bound, joint).amax(0) - margin
        # Its loop is that of other classes for every batch, which the compiler would compile anew each time
        fill: Any = torch.compiler.disable(self._fill) if torch.compiler.is_compiling() else self._fill
        fill(x, joint, likely)
        fill(x, joint, (bound >= joint.amax(0) - margin) & ~likely)
        return torch.logsumexp(joint, dim=0)

    def _fill(self, x: Tensor, joint: Tensor, wanted: Tensor) -> None:
        """Works out what is wanted of `joint`, (class, batch)."""
        labels, rows = wanted.nonzero(as_tuple=True)
        if not len(labels):
            return
        step = max(_GATHERED // x.shape[1], 1)
        # One gather for many classes: of a small batch, most of them want a point or two
        for label, row in zip(labels.split(step), rows.split(step), strict=True):
            present, counts = label.unique_consecutive(return_counts=True)
            delta = (x[row] - self.mean[label]).split(counts.tolist())
            distances = torch.cat([self._distances_to(*one) for one in zip(present.tolist(), delta, strict=True)])
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
        return self._sum_of_contenders(z, joint, bound)

    def _distances_to(self, label: int, delta: Tensor) -> Tensor:
        return self._distances(slice(label, label + 1), delta[None])[0]

    def _distances(self, block: slice, delta: Tensor) -> Tensor:
        """Squared distances to some classes, (class, batch), from δ, (class, batch, feature)."""
        along, near = self._along(block, delta)
        return near + self._rest(block, delta, along)

    def _along(self, block: slice, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Uᵀδ of some classes, (class, batch, direction), and the part of the distances along the directions."""
        along = delta @ self.directions[block]
        return along, _squared_norms(along * self.inverse_std[block, None])

    def _rest(self, block: slice, delta: Tensor, along: Tensor) -> Tensor:
        """|δ - U Uᵀδ|² / σ², (class, batch): as the length of a vector, since |δ|² - |Uᵀδ|² would cancel."""
        across = torch.baddbmm(delta, along, self.directions[block].mT, alpha=-1)
        return _squared_norms(across) * self.inverse_rest[block, None]

    def graph_mahalanobis(self, z: Tensor) -> Tensor:
        delta = z - self.mean[:, None]  # (class, batch, feature)
        along = delta @ self.directions
        across = delta - along @ self.directions.mT
        rest = _squared_lengths(across) * self.inverse_rest.double()[:, None]
        return (_squared_lengths(along * self.inverse_std[:, None]) + rest).T


class FullScorer(PruningScorer):
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
        pooled = _cholesky(torch.tensordot(log_prior.exp(), covariance, dims=1))
        basis, _ = _discriminant_basis(mean - centre, pooled, log_prior.exp())
        log_det_basis = -pooled.diagonal().log().sum()
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

    def graph_mahalanobis(self, z: Tensor) -> Tensor:
        x = (z - self.centre) @ self.basis.T
        return _squared_lengths((x - self.mean[:, None]) @ self.whitening.mT).T

    def log_density(self, z: Tensor) -> Tensor:
        num_classes, dim = self.mean.shape
        x = (z - self.centre) @ self.basis.T
        offset = self.log_norm + self.log_prior
        if dim < _FEWEST_FEATURES or num_classes < 3:
            return torch.logsumexp(offset - 0.5 * self._distances(x), dim=1)

        bound = offset[:, None] - 0.5 * self._first_distances(x, self.bound_rows)  # above the true value
        likely = bound >= bound.amax(0) - _margin(num_classes, x.dtype)
        if likely.sum() > likely.numel() / 2:
            return torch.logsumexp(offset - 0.5 * self._distances(x), dim=1)
        return self._sum_of_contenders(x, torch.full_like(bound, -math.inf), bound)

    def _distances_to(self, label: int, delta: Tensor) -> Tensor:
        return _whitened_lengths(delta, self.whitening[label])

    @property
    def bound_rows(self) -> int:
        """How many whitened coordinates decide which classes are worth the rest; the means differ in C - 1."""
        num_classes, dim = self.mean.shape
        return min(max(num_classes - 1, 16), _MOST_BOUND_ROWS, dim // _FEATURES_PER_BOUND_ROW)

    def _distances(self, x: Tensor) -> Tensor:
        """Squared lengths of the whitened differences to the class means, (batch, class)."""
        blocks = _blocks(self.mean, x.numel())
        return torch.cat([_whitened_lengths(x - self.mean[block, None], self.whitening[block]) for block in blocks]).T

    def _first_distances(self, x: Tensor, rows: int) -> Tensor:
        """The same of the first whitened coordinates alone, (class, batch)."""
        x, mean, whitening = x[:, :rows], self.mean[:, :rows], self.whitening[:, :rows, :rows].mT
        blocks = _blocks(mean, x.numel())
        return torch.cat([_squared_norms((x - mean[block, None]) @ whitening[block]) for block in blocks])


def _margin(num_classes: int, dtype: torch.dtype) -> float:
    """How far below the largest of C terms another counts for nothing: C of eps / C are below rounding in the sum."""
    return math.log(num_classes) - math.log(torch.finfo(dtype).eps)


def _blocks(mean: Tensor, points: int) -> Iterator[slice]:
    """The classes, so many at a time that their differences to points of so many numbers fill a block."""
    step = max(_BLOCK // max(points, 1), 1)
    return (slice(start, start + step) for start in range(0, len(mean), step))


def _whitened_lengths(delta: Tensor, whitening: Tensor) -> Tensor:
    """|W δ|² for lower-triangular W, (..., batch): without the quarter of W that holds zeros alone."""
    half = delta.shape[-1] // 2
    upper = delta[..., :half] @ whitening[..., :half, :half].mT
    return _squared_norms(upper) + _squared_norms(delta @ whitening[..., half:, :].mT)


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
