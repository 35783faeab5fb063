"""What is kept of a class's scatter matrix S = Σ (z - μ)(z - μ)ᵀ: all of it, only the pooled one, or a sketch.

Every form is a linear map of S. Adding, merging and removing samples is therefore addition and subtraction in each of
them, and the moments need to know nothing else about the covariance model that will be fitted.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class ScatterForm(Protocol):
    """A linear map of the scatter matrices of all classes."""

    def shape(self, num_classes: int, dim: int) -> tuple[int, ...]:
        """The shape of what is kept."""
        ...

    def add(self, kept: Tensor, label: int, rows: Tensor, sign: int) -> None:
        """Adds `sign` times rowsᵀ rows to class `label`, in place."""
        ...

    def to(self, device: torch.device | str) -> "ScatterForm":
        """The same form for scatter on another device."""
        ...


@dataclass(frozen=True)
class NoScatter:
    """Nothing beyond the diagonal, which the moments keep for every form."""

    def shape(self, num_classes: int, dim: int) -> tuple[int, ...]:
        return (num_classes, 0)

    def add(self, kept: Tensor, label: int, rows: Tensor, sign: int) -> None:
        pass

    def to(self, device: torch.device | str) -> "NoScatter":
        return self


@dataclass(frozen=True)
class FullScatter:
    """The scatter matrix of every class: (class, feature, feature)."""

    def shape(self, num_classes: int, dim: int) -> tuple[int, ...]:
        return (num_classes, dim, dim)

    def add(self, kept: Tensor, label: int, rows: Tensor, sign: int) -> None:
        kept[label].addmm_(rows.T, rows, alpha=sign)

    def to(self, device: torch.device | str) -> "FullScatter":
        return self


@dataclass(frozen=True)
class PooledScatter:
    """The sum of the classes' scatter matrices, each about its own mean: (1, feature, feature)."""

    def shape(self, num_classes: int, dim: int) -> tuple[int, ...]:
        return (1, dim, dim)

    def add(self, kept: Tensor, label: int, rows: Tensor, sign: int) -> None:
        kept[0].addmm_(rows.T, rows, alpha=sign)

    def to(self, device: torch.device | str) -> "PooledScatter":
        return self


@dataclass(frozen=True, eq=False)
class SketchedScatter:
    """The product S Ω with a fixed random matrix Ω (feature, size): (class, feature, size).

    Enough for the leading eigenvectors of S, in memory that grows with d times the size of the sketch instead of d²
    (Tropp, Yurtsever, Udell and Cevher, "Fixed-rank approximation of a positive-semidefinite matrix from streaming
    data", 2017). With size = d, Ω is the identity and nothing is lost.
    """

    test_matrix: Tensor

    @classmethod
    def of_size(cls, dim: int, size: int) -> "SketchedScatter":
        """A sketch with a Gaussian Ω that is the same wherever it is made, so that shards can be merged."""
        if size >= dim:
            return cls(torch.eye(dim, dtype=torch.float64))
        generator = torch.Generator().manual_seed(0)
        return cls(torch.randn(dim, size, generator=generator, dtype=torch.float64))

    def shape(self, num_classes: int, dim: int) -> tuple[int, ...]:
        return (num_classes, dim, self.test_matrix.shape[1])

    def add(self, kept: Tensor, label: int, rows: Tensor, sign: int) -> None:
        kept[label].addmm_(rows.T, rows @ self.test_matrix, alpha=sign)

    def to(self, device: torch.device | str) -> "SketchedScatter":
        return SketchedScatter(self.test_matrix.to(device))
