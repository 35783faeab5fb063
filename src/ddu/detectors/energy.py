"""The energy score (Liu et al., "Energy-based out-of-distribution detection", 2020)."""

from collections.abc import Sequence

from torch import nn

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

    def _evidence(self, batch: FeatureBatch) -> Evidence:
        return Evidence(batch.logits, energy(batch.logits.float()))
