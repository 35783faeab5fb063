"""What features are scored with: an affine map, which is fitted together with the density, and then a scorer.

Standardisation and PCA are affine, and an affine map of the features is a linear map of their moments. So they are
worked out from the moments after the pass over the data, and applied to the moments and to the points to be scored:
streaming, merging and removing samples work as without them.
"""

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ddu.density._checks import check_mean, check_state
from ddu.density.covariance import Covariance, scorer_shapes, scorer_type
from ddu.density.moments import ClassMoments, FullScatter, PooledScatter, SketchedScatter
from ddu.density.scorers import Scorer, diagonal_blocks
from ddu.errors import InputError

if TYPE_CHECKING:
    from ddu.density.gaussian import GaussianDensity


def unit_length(z: Tensor) -> Tensor:
    """Feature vectors scaled to unit length; zeros stay zeros."""
    # By the largest entry first: in single precision the squares of large features overflow
    largest = z.abs().amax(1, keepdim=True)
    return torch.nn.functional.normalize(z / torch.where(largest > 0, largest, 1.0), dim=1)


class AffineMap(nn.Module):
    """z ↦ A (s ∘ (z - m)), with A optional."""

    centre: Tensor
    scale: Tensor
    basis: Tensor | None

    def __init__(self, centre: Tensor, scale: Tensor, basis: Tensor | None):
        super().__init__()
        self.register_buffer("centre", centre)
        self.register_buffer("scale", scale)
        self.register_buffer("basis", None if basis is None else basis.contiguous())

    def forward(self, z: Tensor) -> Tensor:
        z = (z - self.centre) * self.scale
        return z if self.basis is None else z @ self.basis.T

    def moments(self, moments: ClassMoments) -> ClassMoments:
        """The moments of the mapped features."""
        mapped = copy.copy(moments)
        mapped.mean = self(moments.mean)
        mapped.squares = moments.squares * self.scale.square()
        if isinstance(moments.form, SketchedScatter):
            # D S D · D⁻¹ Ω = D · S Ω
            mapped.scatter = moments.scatter * self.scale[:, None]
            mapped.form = SketchedScatter(moments.form.test_matrix / self.scale[:, None])
        elif isinstance(moments.form, (FullScatter, PooledScatter)):
            mapped.scatter = moments.scatter * self.scale * self.scale[:, None]
        if self.basis is not None:
            mapped.scatter = self.basis @ mapped.scatter @ self.basis.T
            # Of a pooled scatter only the sum over classes is known, and only that is used
            diagonal = mapped.scatter.diagonal(dim1=1, dim2=2)
            mapped.squares = diagonal.expand(moments.num_classes, -1) * (len(diagonal) / moments.num_classes)
        return mapped


def fit_affine_map(moments: ClassMoments, *, standardize: bool, pca: int | float | None) -> AffineMap:
    """Zero mean and unit variance, then the leading principal components; of all samples, whatever their class."""
    total = moments.total()
    scale = torch.ones_like(total.squares[0])
    if standardize:
        variance = total.squares[0] / (total.count[0] - 1)
        # A feature that never varied, but for rounding, keeps the others' typical scale: its own would blow that up
        varied = variance > (1e-12 * total.mean[0]).square()
        scale = torch.where(varied, variance, variance.mean()).rsqrt()
    basis = None
    if pca is not None:
        values, vectors = torch.linalg.eigh(total.scatter[0] * scale * scale[:, None])
        values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
        kept = int(pca) if pca >= 1 else int((values.cumsum(0) < pca * values.sum()).sum()) + 1
        basis = vectors[:, : min(kept, len(values))].T
    return AffineMap(total.mean[0], scale, basis)


class Factors(nn.Module):
    """Everything that scoring needs, in the precision and on the device it scores in."""

    def __init__(self, transform: nn.Module, scorer: Scorer):
        super().__init__()
        self.transform, self.scorer = transform, scorer

    @property
    def width(self) -> int:
        """How many features it takes."""
        first = self.transform.centre if isinstance(self.transform, AffineMap) else self.scorer.get_buffer("mean")
        return first.shape[-1]


class DensityGraph(nn.Module):
    """Scores features as a `GaussianDensity` does in single precision, in steps that do not depend on the data.

    Those scores are exact to the last few digits; what overflows single precision is its largest number.
    """

    def __init__(self, factors: Factors, *, normalize: bool, relative: bool):
        super().__init__()
        self.factors, self.normalize, self.relative = factors, normalize, relative

    def forward(self, z: Tensor) -> Tensor:
        """log q(z), or with a background log q(z) - log q₀(z), (sample,)."""
        limit = torch.finfo(torch.float32).max
        return self.factors.scorer(self._mapped(z), relative=self.relative).clamp(-limit, limit).float()

    def mahalanobis(self, z: Tensor) -> Tensor:
        """Squared distances to the classes, less that to a background, (sample, class), in double precision."""
        scorer, z = self.factors.scorer, self._mapped(z)
        return scorer.graph_relative_mahalanobis(z) if self.relative else scorer.graph_mahalanobis(z)

    def _mapped(self, z: Tensor) -> Tensor:
        return self.factors.transform(unit_length(z) if self.normalize else z)


def restored_factors(density: "GaussianDensity", tensors: dict[str, Tensor]) -> tuple[Covariance, Factors]:
    """The covariance and the factors of a density from their `state_dict`, checked."""
    covariance = density.covariance
    if covariance == "auto":
        covariance = "full" if "scorer.basis" in tensors else "shared"
    mean = check_mean("scorer.mean", tensors, density.num_classes)
    shapes = {
        f"scorer.{name}": shape
        for name, shape in scorer_shapes(covariance, *mean, density.rank, background=density.background).items()
    }
    mapped = density.standardize or density.pca is not None
    if mapped:
        centre = tensors.get("transform.centre", tensors["scorer.mean"][0])
        wide = (mean[1],) if density.pca is None or centre.ndim != 1 else tuple(centre.shape)
        shapes |= {"transform.centre": wide, "transform.scale": wide}
        shapes |= {} if density.pca is None else {"transform.basis": (mean[1], *wide)}
    check_state(tensors, {name: torch.empty(shape, device="meta") for name, shape in shapes.items()})
    for name, value in tensors.items():
        if name.endswith(("scale", "inverse_std", "inverse_rest")) and not (value > 0).all():
            raise InputError(f"The learned tensor {name!r} must be above 0. Got {float(value.min()):.4g} instead.")
        if name.endswith("log_prior") and not abs(float(value.logsumexp(0))) < 1e-3:
            raise InputError(f"The learned tensor {name!r} must be the logarithm of shares that add up to 1.")
        blocks = diagonal_blocks(value, mean[1]) if covariance == "full" and name.endswith("whitening") else []
        if any(block.tril(-1).any() or not (block.diagonal(dim1=1, dim2=2) > 0).all() for block in blocks):
            raise InputError(f"The learned tensor {name!r} must be triangular, with a diagonal above 0.")
    buffers = {name.removeprefix("scorer."): value for name, value in tensors.items() if name.startswith("scorer.")}
    transform = nn.Identity()
    if mapped:
        basis = tensors.get("transform.basis")
        transform = AffineMap(
            tensors["transform.centre"].clone(),
            tensors["transform.scale"].clone(),
            None if basis is None else basis.clone(),
        )
    return covariance, Factors(transform, scorer_type(covariance).from_buffers(buffers))
