"""Scores of classes whose features are independent."""

import torch
from torch import Tensor

from ddu.density.scorers.scorer import LOG_2PI, Scorer, squared_lengths


class DiagonalScorer(Scorer):
    """Independent features: Σ_c = diag(v_c)."""

    mean: Tensor
    inverse_std: Tensor

    def __init__(self, log_prior: Tensor, mean: Tensor, variance: Tensor):
        log_norm = -0.5 * (variance.log().sum(1) + mean.shape[1] * LOG_2PI)
        super().__init__(log_prior, mean=mean, inverse_std=variance.rsqrt(), log_norm=log_norm)

    def mahalanobis(self, z: Tensor) -> Tensor:
        pairs = zip(self.mean, self.inverse_std, strict=True)
        return torch.stack([((z - mean) * scale).square().sum(1) for mean, scale in pairs], dim=1)

    def graph_mahalanobis(self, z: Tensor) -> Tensor:
        return squared_lengths((z[:, None] - self.mean) * self.inverse_std)
