"""What all scorers have in common: log-densities, and those relative to a background, from squared distances."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

LOG_2PI = math.log(2 * math.pi)


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


def squared_norms(vectors: Tensor) -> Tensor:
    """Σ x² over the last axis."""
    return vectors.square().sum(-1)


def squared_lengths(vectors: Tensor) -> Tensor:
    """Σ x² over the last axis, in double precision; infinite where single precision has lost its way."""
    squares = vectors.double().square().sum(-1)
    return torch.where(squares.isnan(), torch.inf, squares)
