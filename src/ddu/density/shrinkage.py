"""How much weight a class's own covariance gets.

Whatever the covariance model, the covariance of class c becomes

    Σ_c = own_c · S_c + pooled_c · ΣS_k + ridge_c · I

with S the scatter matrices. This file finds the three coefficients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ddu.errors import FeatureError

Shrinkage = float | Literal["auto", "oas", "ledoit_wolf"] | None


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
