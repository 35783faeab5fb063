"""DUQ (van Amersfoort et al., "Uncertainty estimation using a single deep deterministic neural network", 2020)."""

from collections.abc import Sequence

from torch import nn

from ddu.detectors.base import BaseDetector, Evidence
from ddu.features import FeatureBatch, FeatureTap
from ddu.features.places import find_layer
from ddu.layers import RBFHead


class DUQ(BaseDetector):
    """Scores inputs by their distance to the nearest class centroid: epistemic = -max_c log K_c.

    It needs a network that was trained with a `ddu.layers.RBFHead`, as `ddu.create_model(..., head="duq")` gives. The
    centroids are learned in training, so there is nothing to fit. The probabilities are the kernels divided by their
    sum, K_c / Σ K: far from all centroids they say which is nearest, and nothing about how far it is.

    Different from the original, whose score is -max_c K_c: the logarithm ranks inputs alike, and still does where the
    kernels underflow.

    Args:
        model: A classifier whose outputs are the log-kernels of an `RBFHead`.
        class_names: Names for the classes, for printing.
    """

    name = "duq"
    needs_fit = False
    tap: FeatureTap

    def __init__(self, model: nn.Module, *, class_names: Sequence[str] | None = None):
        head = find_layer(model, RBFHead, 'ddu.create_model(..., head="duq")')
        super().__init__(FeatureTap(model, {"kind": "input", "layer": head}), class_names)

    def _evidence(self, batch: FeatureBatch) -> Evidence:
        return Evidence(batch.logits, -batch.logits.float().amax(1))
