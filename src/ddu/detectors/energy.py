"""The energy score (Liu et al., "Energy-based out-of-distribution detection", 2020)."""

from collections.abc import Sequence

from torch import Tensor, nn

from ddu.detectors.base import BaseDetector, Evidence
from ddu.features import FeatureBatch, LogitsTap
from ddu.measures import energy


class Energy(BaseDetector):
    """Scores inputs by their energy: epistemic = -log Σ exp(logit), high where no logit is high.

    There is nothing to fit, and the temperature does not enter the score.

    Args:
        model: Any classifier that returns logits.
        class_names: Names for the classes, for printing.

    >>> import torch
    >>> Energy(nn.Linear(2, 2, bias=False)).predict(torch.zeros(1, 2)).epistemic  # -log 2
    tensor([-0.6931])
    """

    name = "energy"
    needs_fit = False

    def __init__(self, model: nn.Module, *, class_names: Sequence[str] | None = None):
        super().__init__(LogitsTap(model), class_names)

    @property
    def needs_energy(self) -> bool:
        """Always."""
        return True

    def _evidence(self, batch: FeatureBatch) -> Evidence:
        return Evidence(batch.logits, energy(batch.logits.float()))

    def graph(self) -> nn.Module:
        """The score as a module that can be exported."""
        return _EnergyGraph()


class _EnergyGraph(nn.Module):
    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        return energy(logits)[:, None]
