"""How many directions features use: rank, condition and effective dimension of their covariance."""

from typing import NamedTuple

import torch
from torch import Tensor


class Spectrum(NamedTuple):
    """What the eigenvalues λ₁ ≥ λ₂ ≥ ... of a covariance say.

    Attributes:
        rank: Directions with more variance than the rounding of the features makes up.
        condition: λ₁ / λ_rank, of those directions; infinite where there is none.
        effective_dimension: (Σλ)² / Σλ²: d for d equal variances, 1 if one direction has nearly all.
    """

    rank: int
    condition: float
    effective_dimension: float


def spectrum(centred: Tensor) -> Spectrum:
    """The spectrum of the covariance of centred features, (sample, feature).

    As in numpy's `matrix_rank`, singular values up to max(n, d) ε σ₁ are rounding, with the ε of the features' own
    precision. Of single precision, the products in double precision keep all digits that matter.

    >>> rank, condition, effective = spectrum(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    >>> rank, round(condition, 6), round(effective, 2)
    (2, 9.0, 1.22)
    """
    sigma = _singular_values(centred)
    largest = float(sigma[0]) if len(sigma) else 0.0
    kept = sigma[sigma > max(centred.shape) * torch.finfo(centred.dtype).eps * largest]
    if not len(kept):
        return Spectrum(0, float("inf"), 0.0)
    variances = (kept / largest).square()
    effective = float(variances.sum().square() / variances.square().sum())
    return Spectrum(len(kept), float(1 / variances[-1]), effective)


def _singular_values(rows: Tensor) -> Tensor:
    """From the largest to the smallest."""
    if rows.dtype == torch.float64:
        return torch.linalg.svdvals(rows)
    rows = rows.double()
    products = rows.T @ rows if len(rows) > rows.shape[1] else rows @ rows.T
    return torch.linalg.eigvalsh(products).clamp(min=0).sqrt().flip(0)


def dead_features(features: Tensor) -> int:
    """How many features are the same for every sample, up to rounding; (sample, feature)."""
    spread = features.amax(0) - features.amin(0)
    return int((spread <= 8 * torch.finfo(features.dtype).eps * features.abs().amax(0)).sum())


def within_classes(features: Tensor, labels: Tensor) -> Tensor:
    """Features measured from the mean of their class, (sample, feature)."""
    result = features.double()
    for label in labels.unique():
        rows = labels == label
        result[rows] = result[rows] - result[rows].mean(0)
    return result.to(features.dtype)
