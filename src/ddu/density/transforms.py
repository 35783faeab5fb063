"""Affine maps of the features that are fitted together with the density.

Standardisation and PCA are affine, and an affine map of the features is a linear map of their moments. So they are
worked out from the moments after the pass over the data, and applied to the moments and to the points to be scored:
streaming, merging and removing samples work as without them.
"""

import copy

import torch
from torch import Tensor, nn

from ddu.density.moments import ClassMoments, FullScatter, PooledScatter, SketchedScatter


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
