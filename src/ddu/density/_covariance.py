"""The covariance models: from moments and shrinkage coefficients to something that scores."""

from typing import Literal, get_args

import torch
from torch import Tensor

from ddu.density._moments import ClassMoments
from ddu.density._scatter import FullScatter, NoScatter, PooledScatter, ScatterForm, SketchedScatter
from ddu.density._scorers import DiagonalScorer, FullScorer, LowRankScorer, Scorer, SharedScorer
from ddu.density._shrinkage import Blend, ScatterSummary
from ddu.errors import FeatureError

Covariance = Literal["full", "shared", "diagonal", "low_rank"]
COVARIANCES: tuple[str, ...] = get_args(Covariance)

# A sketch of 4 r columns finds r directions to well below the noise of estimating them.
SKETCH_OVERSAMPLING = 4


def scatter_form(covariance: Covariance, dim: int, rank: int, pca: bool) -> ScatterForm:
    """What the moments have to keep for a covariance model; PCA needs whole matrices."""
    if covariance == "shared":
        return PooledScatter()
    if covariance == "full" or pca:
        return FullScatter()
    if covariance == "diagonal":
        return NoScatter()
    return SketchedScatter.of_size(dim, SKETCH_OVERSAMPLING * rank)


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
        _squared_norm(form, moments.scatter, moments.squares),
        moments.quarts,
        moments.dim,
    )
    pooled = ScatterSummary(
        freedom,
        trace.sum()[None],
        _squared_norm(form, pooled_scatter, pooled_squares),
        None,
        moments.dim,
    )
    return classes, pooled


def make_scorer(covariance: Covariance, moments: ClassMoments, blend: Blend, log_prior: Tensor, rank: int) -> Scorer:
    """Factorises the covariances once, for scoring."""
    try:
        scorer = _factorised(covariance, moments, blend, log_prior, rank)
        if torch.isfinite(scorer.log_norm).all():
            return scorer
    except ArithmeticError:
        pass
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
    if covariance == "diagonal":
        return torch.diag_embed(_mix(blend, moments.squares)) + blend.ridge[:, None, None] * identity
    return _mix(blend, moments.scatter) + blend.ridge[:, None, None] * identity


def _low_rank(moments: ClassMoments, blend: Blend, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Principal directions, their variances, and the variance of each remaining direction."""
    directions, variances = principal_directions(moments.form, _mix(blend, moments.scatter), rank)
    total = _mix(blend, moments.squares).sum(1)
    rest = total - variances.sum(1)
    # Where the principal directions explain everything, the difference is rounding
    rest = torch.where(rest > 1e-12 * total, rest, 0.0) / max(moments.dim - variances.shape[1], 1)
    if variances.shape[1] == moments.dim:
        rest = total / moments.dim  # of no direction: any scale will do
    return directions, variances + blend.ridge[:, None], rest + blend.ridge


def principal_directions(form: ScatterForm, scatter: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The leading `rank` eigenvectors (class, feature, rank) and eigenvalues (class, rank) of what a form keeps.

    Of a sketch Y = SΩ they are those of Nyström's approximation Y (ΩᵀY)⁺ Yᵀ, which equals S where its rank allows.
    """
    if isinstance(form, FullScatter):
        values, vectors = torch.linalg.eigh(scatter)
        return vectors[..., -rank:].flip(-1), values[..., -rank:].flip(-1).clamp(min=0)
    assert isinstance(form, SketchedScatter)
    core = form.test_matrix.to(scatter.device).T @ scatter
    values, vectors = torch.linalg.eigh((core + core.mT) / 2)
    # Directions that rounding alone gave a positive eigenvalue are left out
    genuine = values > values[..., -1:] * 1e-12
    root = torch.where(genuine, values, torch.inf).rsqrt()
    factor = scatter @ (vectors * root[..., None, :])
    left, singular, _ = torch.linalg.svd(factor, full_matrices=False)
    return left[..., :rank], singular[..., :rank].square()


def _mix(blend: Blend, kept: Tensor) -> Tensor:
    """own_c · kept_c + pooled_c · Σ kept, for anything linear in the scatter."""
    shape = (-1,) + (1,) * (kept.ndim - 1)
    return blend.own.view(shape) * kept + blend.pooled.view(shape) * kept.sum(0)


def _squared_norm(form: ScatterForm, scatter: Tensor, squares: Tensor) -> Tensor:
    """|S|² of each matrix behind what a form keeps."""
    if isinstance(form, NoScatter):
        return squares.square().sum(1)
    if isinstance(form, SketchedScatter):
        values = principal_directions(form, scatter, scatter.shape[-1])[1]
        rest = (squares.sum(1) - values.sum(1)).clamp(min=0)
        return values.square().sum(1) + rest.square() / max(squares.shape[1] - values.shape[1], 1)
    return scatter.square().sum((1, 2))
