"""Samples for the tests of the density."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

Blobs = Callable[..., tuple[Tensor, Tensor]]


@pytest.fixture(scope="session")
def blobs() -> Blobs:
    """Makes shuffled samples of one Gaussian a class, each with its own well-conditioned covariance."""

    def make(
        classes: int = 3, per_class: int = 50, dim: int = 4, *, distance: float = 2.0, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        mixing = torch.eye(dim, dtype=torch.float64) + 0.3 * normal(classes, dim, dim) / dim**0.5
        z = distance * normal(classes, 1, dim) + normal(classes, per_class, dim) @ mixing
        y = torch.arange(classes).repeat_interleave(per_class)
        order = torch.randperm(len(y), generator=generator)
        return z.reshape(-1, dim)[order], y[order]

    return make
