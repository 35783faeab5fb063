"""The covariance models: from moments and shrinkage coefficients to something that scores."""

from contextlib import suppress
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from ddu.density.moments import ClassMoments, FullScatter, NoScatter, PooledScatter, ScatterForm, SketchedScatter
from ddu.density.scorers import DiagonalScorer, FullScorer, LowRankScorer, Scorer, SharedScorer
from ddu.density.shrinkage import Blend, ScatterSummary
from ddu.errors import FeatureError

Covariance = Literal["full", "shared", "diagonal", "low_rank"]
COVARIANCES: tuple[str, ...] = get_args(Covariance)


def sketch_size(rank: int) -> int:
    """Columns of the sketch for `rank` directions; of a slowly falling spectrum the last few come out some % low."""
    return 2 * rank + 8


def scatter_form(covariance: Covariance, dim: int, rank: int, pca: bool) -> ScatterForm:
    """What the moments have to keep for a covariance model; PCA needs whole matrices."""
    if covariance == "shared":
        return PooledScatter()
    if covariance == "full" or pca:
        return FullScatter()
    if covariance == "diagonal":
        return NoScatter()
    return SketchedScatter.of_size(dim, sketch_size(rank))


def summarise(covariance: Covariance, moments: ClassMoments) -> tuple[ScatterSummary, ScatterSummary]:
    """The numbers that shrinkage needs, of the classes' scatter and of the pooled scatter."""
    # PCA keeps whole matrices, whatever a diagonal covariance needs of them
    form = NoScatter() if covariance == "diagonal" else moments.form
    trace = moments.squares.sum(1)
    freedom = (moments.count.sum() - moments.num_classes).clamp(min=1)[None]
    pooled_scatter = moments.scatter.sum(0, keepdim=True)
    pooled_squares = moments.squares.sum(0, keepdim=True)
    classes = ScatterSummary(
        moments.count,
        trace,
        partial(_squared_norm, form, moments.scatter, moments.squares),
        moments.quarts,
        moments.dim,
    )
    pooled = ScatterSummary(
        freedom,
        trace.sum()[None],
        partial(_squared_norm, form, pooled_scatter, pooled_squares),
        None,
        moments.dim,
    )
    return classes, pooled


def make_scorer(covariance: Covariance, moments: ClassMoments, blend: Blend, log_prior: Tensor, rank: int) -> Scorer:
    """Factorises the covariances once, for scoring."""
    with suppress(ArithmeticError):
        scorer = _factorised(covariance, moments, blend, log_prior, rank)
        if torch.isfinite(scorer.log_norm).all():
            return scorer
    raise FeatureError(
        f"A covariance of {moments.dim} features is singular, from {int(moments.count.min())} samples in class "
        f"{int(moments.count.argmin())}, the smallest: some direction has no variance. Use shrinkage='auto', or a "
        "regularization above 0."
    )


def _factorised(covariance: Covariance, moments: ClassMoments, blend: Blend, log_prior: Tensor, rank: int) -> Scorer:
    mean = moments.mean
    if covariance == "diagonal":
        return DiagonalScorer(log_prior, mean, _mix(blend, moments.squares) + blend.ridge[:, None])
    if covariance == "shared":
        return SharedScorer(log_prior, mean, dense_covariances(covariance, moments, blend, rank)[0])
    if covariance == "full":
        return FullScorer(log_prior, mean, dense_covariances(covariance, moments, blend, rank))
    return LowRankScorer(log_prior, mean, *_low_rank(moments, blend, rank))


def dense_covariances(covariance: Covariance, moments: ClassMoments, blend: Blend, rank: int) -> Tensor:
    """Σ_c as matrices, (class, feature, feature)."""
    identity = torch.eye(moments.dim, dtype=torch.float64, device=moments.device)
    if covariance == "low_rank":
        directions, variances, rest = _low_rank(moments, blend, rank)
        excess = (directions * (variances - rest[:, None])[:, None]) @ directions.mT
        return excess + rest[:, None, None] * identity
    if covariance == "shared":
        shared = blend.pooled[0] * moments.scatter.sum(0) + blend.ridge[0] * identity
        return shared.expand(moments.num_classes, -1, -1)
    if covariance == "diagonal":
        return torch.diag_embed(_mix(blend, moments.squares)) + blend.ridge[:, None, None] * identity
    return _mix(blend, moments.scatter) + blend.ridge[:, None, None] * identity


def _low_rank(moments: ClassMoments, blend: Blend, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Principal directions, their variances, and the variance of each remaining direction."""
    pooled = moments.scatter.sum(0)
    directions = moments.mean.new_zeros(moments.num_classes, moments.dim, min(rank, moments.dim))
    variances = directions.new_zeros(directions.shape[::2])
    # One class at a time: the sketches of a thousand classes are large
    for label, (own, common) in enumerate(zip(blend.own, blend.pooled, strict=True)):
        vectors, values = principal_directions(moments.form, own * moments.scatter[label] + common * pooled, rank)
        directions[label, :, : len(values)] = vectors
        variances[label, : len(values)] = values
    total = _mix(blend, moments.squares).sum(1)
    found = variances > 0
    rest = total - variances.sum(1)
    # Where the principal directions explain everything, the difference is rounding
    rest = torch.where(rest > 1e-12 * total, rest, 0.0) / (moments.dim - found.sum(1)).clamp(min=1)
    if variances.shape[1] == moments.dim:
        rest = total / moments.dim  # no direction is left, so its scale does not matter
    # Where a class has fewer directions than `rank`, the missing ones are zero vectors that belong to the rest
    variances = torch.where(found, variances, rest[:, None])
    return directions, variances + blend.ridge[:, None], rest + blend.ridge


def principal_directions(form: ScatterForm, scatter: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The leading eigenvectors (feature, direction) and eigenvalues (direction,) of one scatter matrix, at most `rank`.

    Of a sketch Y = SΩ they are those of Nyström's approximation Y (ΩᵀY)⁺ Yᵀ, which equals S where its rank allows.
    """
    if isinstance(form, SketchedScatter):
        core = form.test_matrix.T @ scatter
        values, vectors = _positive_eigenpairs((core + core.T) / 2)
        factor = scatter @ (vectors * values.rsqrt())
        # S = F Fᵀ has the eigenvalues of Fᵀ F
        values, vectors = _positive_eigenpairs(factor.T @ factor)
        vectors = factor @ (vectors * values.rsqrt())
    else:
        values, vectors = _positive_eigenpairs(scatter)
    return vectors[:, :rank], values[:rank]


def _positive_eigenpairs(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, largest first, and eigenvectors, without those that are positive by rounding alone."""
    values, vectors = torch.linalg.eigh(matrix)
    genuine = values > values[-1:] * len(matrix) * torch.finfo(matrix.dtype).eps
    return values[genuine].flip(0), vectors[:, genuine].flip(1)


def _mix(blend: Blend, kept: Tensor) -> Tensor:
    """own_c · kept_c + pooled_c · Σ kept, for anything linear in the scatter."""
    shape = (-1,) + (1,) * (kept.ndim - 1)
    return blend.own.view(shape) * kept + blend.pooled.view(shape) * kept.sum(0)


def _squared_norm(form: ScatterForm, scatter: Tensor, squares: Tensor) -> Tensor:
    """|S|² of each matrix behind what a form keeps."""
    if isinstance(form, NoScatter):
        return squares.square().sum(1)
    if isinstance(form, SketchedScatter):
        return torch.stack([_sketched_norm(form, *pair) for pair in zip(scatter, squares, strict=True)])
    return scatter.square().sum((1, 2))


def _sketched_norm(form: SketchedScatter, scatter: Tensor, squares: Tensor) -> Tensor:
    """|S|² with what the sketch does not show spread evenly."""
    _, values = principal_directions(form, scatter, scatter.shape[1])
    rest = (squares.sum() - values.sum()).clamp(min=0)
    return values.square().sum() + rest.square() / max(len(squares) - len(values), 1)
