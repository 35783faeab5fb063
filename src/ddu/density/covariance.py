"""The covariance models: from moments, by shrinkage, to something that scores.

Whatever the model, the covariance of class c becomes

    Σ_c = own_c · S_c + pooled_c · ΣS_k + ridge_c · I

with S the scatter matrices, of which each model keeps what it needs. `blend` finds the three coefficients.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from ddu.density.moments import ClassMoments, FullScatter, NoScatter, PooledScatter, ScatterForm, SketchedScatter
from ddu.density.scorers import (
    DiagonalScorer,
    FullScorer,
    LowRankScorer,
    Scorer,
    SharedScorer,
    bound_rows,
    packed_size,
)
from ddu.errors import FeatureError

Covariance = Literal["full", "shared", "diagonal", "low_rank"]
COVARIANCES: tuple[str, ...] = get_args(Covariance)
Shrinkage = float | Literal["auto", "oas", "ledoit_wolf"] | None


def sketch_size(rank: int) -> int:
    """Columns of the sketch for `rank` directions: so many that their variances err by less than 20 %."""
    return min(3 * rank + 8, 3 * rank // 2 + 56)


def scatter_form(covariance: Covariance, dim: int, rank: int, pca: bool) -> ScatterForm:
    """What the moments have to keep for a covariance model; PCA needs whole matrices."""
    if covariance == "shared":
        return PooledScatter()
    if covariance == "full" or pca:
        return FullScatter()
    if covariance == "diagonal":
        return NoScatter()
    return SketchedScatter.of_size(dim, sketch_size(rank))


# Shrinkage: how much weight a class's own covariance gets


@dataclass(frozen=True)
class ScatterSummary:
    """What shrinkage needs to know of scatter matrices: numbers, never the matrices themselves."""

    count: Tensor  # samples behind each, (class,)
    trace: Tensor  # tr S, (class,)
    norm: Callable[[], Tensor]  # |S|² in the Frobenius norm, (class,); a function, for it may be costly and not needed
    quarts: Tensor | None  # Σ |x|⁴ of the centred samples, (class,); for Ledoit-Wolf
    dim: int


@dataclass(frozen=True)
class Blend:
    """The coefficients of own scatter, pooled scatter and identity, (class,) each, and what led to them.

    Attributes:
        weight: The share of each class's covariance that was not learned from the class itself.
        regularization: The absolute ridge that the relative regularisation came to; part of `ridge`.
    """

    own: Tensor
    pooled: Tensor
    ridge: Tensor
    weight: Tensor
    regularization: float


def oas(summary: ScatterSummary) -> Tensor:
    """Oracle approximating shrinkage towards the mean variance (Chen, Wiesel, Eldar and Hero, 2010)."""
    size, mean = summary.norm() / summary.dim**2, summary.trace / summary.dim
    numerator = size + mean.square()
    denominator = (summary.count + 1) * (size - mean.square() / summary.dim)
    return torch.where(denominator > 0, (numerator / denominator).clamp(max=1.0), 1.0)


def ledoit_wolf(summary: ScatterSummary) -> Tensor:
    """The optimal linear shrinkage towards the mean variance (Ledoit and Wolf, 2004)."""
    assert summary.quarts is not None
    # E|S/n - Σ|² estimated from the samples' own spread, over the distance of S/n to the mean variance
    norm = summary.norm()
    variance = (summary.quarts - norm / summary.count) / summary.count**2
    distance = (norm - summary.trace.square() / summary.dim) / summary.count**2
    return torch.where(distance > 0, (variance / distance).clamp(0.0, 1.0), 1.0)


def blend(
    classes: ScatterSummary,
    pooled: ScatterSummary,
    shrinkage: Shrinkage,
    *,
    shared: bool,
    prior_samples: float,
    regularization: float,
) -> Blend:
    """The coefficients for every class.

    Args:
        classes: Of the classes' own scatter matrices.
        pooled: Of their sum, with N - C degrees of freedom as its count.
        shrinkage: None; a share of the mean variance in [0, 1]; "oas", "ledoit_wolf"; or "auto", the mean of an
            inverse-Wishart posterior: every class starts with `prior_samples` samples' worth of the pooled covariance
            (itself shrunk by OAS), so that few samples give the shared covariance and many give the class's own.
        shared: Whether all classes have the pooled covariance.
        prior_samples: The weight of the pooled covariance under "auto", in samples.
        regularization: Ridge relative to the mean variance over classes and features.
    """
    freedom = classes.count.double() - 1
    pooled_freedom = pooled.count.double()
    pooled_variance = pooled.trace / (pooled_freedom * pooled.dim)
    none = torch.zeros_like(freedom)

    if shared or shrinkage == "auto":
        weight = torch.ones_like(freedom) if shared else prior_samples / (prior_samples + freedom)
        isotropic = _share(pooled, "oas" if shrinkage == "auto" else shrinkage)
        own = (1 - weight) / freedom if not shared else none
        common = weight * (1 - isotropic) / pooled_freedom
        ridge = weight * isotropic * pooled_variance
    else:
        weight = _share(classes, shrinkage)
        own = (1 - weight) / freedom
        common = none
        ridge = weight * classes.trace / (freedom * classes.dim)

    variance = (own * classes.trace + common * pooled.trace) / classes.dim + ridge
    absolute = regularization * float(variance.mean())
    if not float(variance.mean()) > 0:
        raise FeatureError(
            "Every feature is constant within every class, so there is no variance to fit a Gaussian to. Tap an "
            "earlier layer, or check that the network's features differ between inputs."
        )
    return Blend(own, common, ridge + absolute, weight, absolute)


def _share(summary: ScatterSummary, shrinkage: Shrinkage) -> Tensor:
    if shrinkage is None:
        return torch.zeros_like(summary.trace)
    if shrinkage == "oas":
        return oas(summary)
    if shrinkage == "ledoit_wolf":
        return ledoit_wolf(summary)
    return torch.full_like(summary.trace, float(shrinkage))


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


# Factors


def own_precision(covariance: Covariance) -> torch.dtype:
    """In which factors are computed once, for all others to follow from: double, unless a copy of it is costly.

    The directions of a low rank are as large as their moments are, and need no more digits than the features have.
    """
    return torch.float32 if covariance == "low_rank" else torch.float64


def make_scorer(
    covariance: Covariance,
    moments: ClassMoments,
    blend: Blend,
    log_prior: Tensor,
    rank: int,
    *,
    background: bool,
    dtype: torch.dtype = torch.float64,
) -> Scorer:
    """Factorises the covariances once, for scoring in a precision.

    The background is the Gaussian with the mean and the covariance of the mixture Σ π_c N(μ_c, Σ_c),

        Σ₀ = Σ_c π_c Σ_c + Σ_c π_c (μ_c - μ₀)(μ_c - μ₀)ᵀ.

    So it has the shrinkage and the ridge of the classes, and where there is no other variance their distances cancel.
    """
    with suppress(ArithmeticError):
        if covariance == "full" and _is_singular(moments, blend):
            raise ArithmeticError("all classes together do not have variance in every direction")
        scorer = _factorised(covariance, moments, blend, log_prior, rank, dtype, background=background)
        if background and covariance != "shared":  # whose own factors hold the background
            mixture, coefficients = _as_one_class(moments, blend, log_prior.exp())
            scorer.background = _factorised(covariance, mixture, coefficients, log_prior.new_zeros(1), rank, dtype)
        if torch.isfinite(scorer.log_norm).all():
            return scorer.to(dtype)
    raise FeatureError(
        f"A covariance of {moments.dim} features is singular, from {int(moments.count.min())} samples in class "
        f"{int(moments.count.argmin())}, the smallest: some direction has no variance. Use shrinkage='auto', or a "
        "regularization above 0."
    )


# A ridge of this share of the variances is lost in the rounding of factorisations
_ROUNDING = torch.finfo(torch.float64).eps ** 0.5


def _is_singular(moments: ClassMoments, blend: Blend) -> bool:
    """Whether all samples together span too few directions, and what is added to each variance is rounding."""
    degrees = int(moments.count.sum()) - moments.num_classes
    mean_variance = float(moments.squares.sum()) / max(degrees, 1) / moments.dim
    return degrees < moments.dim and float(blend.ridge.max()) < _ROUNDING * mean_variance


def _factorised(
    covariance: Covariance,
    moments: ClassMoments,
    blend: Blend,
    log_prior: Tensor,
    rank: int,
    dtype: torch.dtype,
    *,
    background: bool = False,
) -> Scorer:
    mean = moments.mean
    if covariance == "diagonal":
        return DiagonalScorer(log_prior, mean, _mix(blend, moments.squares) + blend.ridge[:, None])
    if covariance == "shared":
        shared = dense_covariances(covariance, moments, blend, rank)[0]
        return SharedScorer(log_prior, mean, shared, background=background)
    if covariance == "full":
        return FullScorer(log_prior, mean, dense_covariances(covariance, moments, blend, rank))
    return LowRankScorer(log_prior, mean, *_low_rank(moments, blend, rank, dtype))


def scorer_type(covariance: Covariance) -> type[Scorer]:
    """What scores with a covariance."""
    kinds = {"full": FullScorer, "shared": SharedScorer, "diagonal": DiagonalScorer, "low_rank": LowRankScorer}
    return kinds[covariance]


def scorer_shapes(
    covariance: Covariance, num_classes: int, dim: int, rank: int, *, background: bool
) -> dict[str, tuple[int, ...]]:
    """The shapes of everything that a scorer holds, by name."""
    rank, rows = min(rank, dim), bound_rows(num_classes, dim)
    own: dict[str, tuple[int, ...]] = {
        "full": {
            "centre": (dim,),
            "basis": (2 * rows, dim),
            "fold": (dim - rows, rows),
            "whitening": (num_classes, packed_size(num_classes, dim)),
        },
        "shared": {"centre": (dim,), "whitening": (dim, dim)},
        "diagonal": {"inverse_std": (num_classes, dim)},
        "low_rank": {
            "directions": (num_classes, dim, rank),
            "inverse_std": (num_classes, rank),
            "inverse_rest": (num_classes,),
        },
    }[covariance]
    shapes = {"log_prior": (num_classes,), "log_norm": (num_classes,), "mean": (num_classes, dim)} | own
    if background and covariance == "shared":
        return shapes | {"inverse_std": (min(num_classes - 1, dim),), "background_log_norm": ()}
    if background:
        one = scorer_shapes(covariance, 1, dim, rank, background=False)
        return shapes | {f"background.{name}": shape for name, shape in one.items()}
    return shapes


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
    # One class at a time: beside the result, a thousand matrices more would not fit
    pooled, matrices = moments.scatter.sum(0), torch.empty_like(moments.scatter)
    for label, (own, common, ridge) in enumerate(zip(blend.own, blend.pooled, blend.ridge, strict=True)):
        matrices[label] = own * moments.scatter[label] + common * pooled + ridge * identity
    return matrices


def _as_one_class(moments: ClassMoments, blend: Blend, weight: Tensor) -> tuple[ClassMoments, Blend]:
    """One class with the mean and the covariance of the mixture, in the form that the classes have."""
    one = ClassMoments(moments.form, 1, moments.dim, device=moments.device)
    one.count[0] = moments.count.sum()
    one.mean[0] = weight @ moments.mean
    # Σ_c π_c (own_c S_c + pooled_c ΣS_k)
    share = weight * blend.own + weight @ blend.pooled
    between = (moments.mean - one.mean[0]) * weight.sqrt()[:, None]
    one.squares[0] = share @ moments.squares + between.square().sum(0)
    # Of a pooled scatter there is one entry, and no class has a share of its own
    one.scatter[0] = torch.tensordot(share[: len(moments.scatter)], moments.scatter, dims=1)
    one.form.add(one.scatter, 0, between, sign=1)
    nothing, all_of_it = torch.zeros_like(weight[:1]), torch.ones_like(weight[:1])
    ridge = (weight @ blend.ridge)[None]
    return one, Blend(all_of_it, nothing, ridge, weight=nothing, regularization=blend.regularization)


def _low_rank(
    moments: ClassMoments, blend: Blend, rank: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Principal directions in a precision, their variances, and the variance of each remaining direction."""
    pooled = moments.scatter.sum(0)
    total = _mix(blend, moments.squares).sum(1)
    directions = moments.mean.new_zeros(moments.num_classes, moments.dim, min(rank, moments.dim), dtype=dtype)
    variances = moments.mean.new_zeros(directions.shape[::2])
    # One class at a time: the sketches of a thousand classes are large
    for label, (own, common) in enumerate(zip(blend.own, blend.pooled, strict=True)):
        scatter = own * moments.scatter[label] + common * pooled
        vectors, values = principal_directions(moments.form, scatter, rank, total[label])
        directions[label, :, : len(values)] = vectors
        variances[label, : len(values)] = values
    found = variances > 0
    rest = total - variances.sum(1)
    # Where the principal directions explain everything, the difference is rounding
    rest = torch.where(rest > 1e-12 * total, rest, 0.0) / (moments.dim - found.sum(1)).clamp(min=1)
    if variances.shape[1] == moments.dim:
        rest = total / moments.dim  # no direction is left, so its scale does not matter
    # Where a class has fewer directions than `rank`, the missing ones are zero vectors that belong to the rest
    variances = torch.where(found, variances, rest[:, None])
    return directions, variances + blend.ridge[:, None], rest + blend.ridge


def principal_directions(form: ScatterForm, scatter: Tensor, rank: int, trace: Tensor) -> tuple[Tensor, Tensor]:
    """Leading directions v (feature, direction) of one scatter matrix S of known trace, at most `rank`, and vᵀSv.

    Of a whole matrix they are the eigenvectors and eigenvalues, of a sketch Y = SΩ the eigenvectors of Nyström's
    approximation N = Y (ΩᵀY)⁺ Yᵀ, which equals S where the rank of S allows. Elsewhere it is too low by E = S - N:

    - An eigenvalue λ of S comes out as ν = λ² / (λ + κ) with κ = tr E / size (Dereziński et al., "Precise expressions
      for random projections", 2020), and tr E is known. So λ - ν is missing along an eigenvector of S.
    - E Ω = 0, so of a direction v nothing is missing but along its part outside the span of Ω.

    So vᵀSv is estimated as ν + (λ - ν) |v outside Ω|². For eigenvalues i⁻ᵃ with a from ¼ to 2 this errs by less than
    20 %, where ν alone is up to 45 % low. All that is added is at most tr E · rank / size, so a third of it.
    """
    if not isinstance(form, SketchedScatter):
        values, vectors = _positive_eigenpairs(scatter)
        return vectors[:, :rank], values[:rank]
    core = form.test_matrix.T @ scatter
    values, vectors = _positive_eigenpairs((core + core.T) / 2)
    factor = scatter @ (vectors * values.rsqrt())
    # N = F Fᵀ has the eigenvalues of Fᵀ F
    values, vectors = _positive_eigenpairs(factor.T @ factor)
    vectors = factor @ (vectors[:, :rank] * values[:rank].rsqrt())
    missing = ((trace - values.sum()) / scatter.shape[1]).clamp(min=0)  # κ
    values = values[:rank]
    excess = ((values.square() + 4 * values * missing).sqrt() - values) / 2  # λ - ν
    outside = (1 - (form.span.T @ vectors).square().sum(0)).clamp(min=0)
    # They may have changed places
    values, order = (values + excess * outside).sort(descending=True)
    return vectors[:, order], values


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
    _, values = principal_directions(form, scatter, scatter.shape[1], squares.sum())
    rest = (squares.sum() - values.sum()).clamp(min=0)
    return values.square().sum() + rest.square() / max(len(squares) - len(values), 1)
