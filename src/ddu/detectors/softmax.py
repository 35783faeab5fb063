"""Softmax entropy and confidence (Hendrycks and Gimpel, "A baseline for detecting ... examples", 2017)."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from torch import Tensor, nn

from ddu.detectors.base import BaseDetector, Evidence
from ddu.errors import InputError
from ddu.features import FeatureBatch, LogitsTap
from ddu.measures import entropy, one_minus_confidence

Score = Literal["entropy", "confidence"]


class Softmax(BaseDetector):
    """Scores inputs by the entropy or confidence of the softmax. It cannot tell ambiguous inputs from unknown ones.

    There is nothing to fit. The score is that of the logits as they are: the temperature, which `calibrate` sets, only
    changes the probabilities.

    Args:
        model: Any classifier that returns logits.
        score: "entropy", that of the softmax in nats; or "confidence", one minus the largest probability.
        class_names: Names for the classes, for printing.

    >>> import torch
    >>> Softmax(nn.Linear(2, 2, bias=False)).predict(torch.zeros(1, 2)).epistemic  # log 2
    tensor([0.6931])
    """

    name = "softmax"
    needs_fit = False

    def __init__(self, model: nn.Module, *, score: Score = "entropy", class_names: Sequence[str] | None = None):
        if score not in get_args(Score):
            raise InputError(
                f"The 'score' parameter of Softmax must be 'entropy' or 'confidence'. Got {score!r} instead."
            )
        super().__init__(LogitsTap(model), class_names)
        self.score: Score = score

    def _evidence(self, batch: FeatureBatch) -> Evidence:
        return Evidence(batch.logits, _scored(batch.logits, self.score))

    def graph(self) -> nn.Module:
        """The score as a module that can be exported."""
        return _SoftmaxGraph(self.score)

    def _options(self) -> dict[str, Any]:
        return {"score": self.score}


class _SoftmaxGraph(nn.Module):
    def __init__(self, score: Score):
        super().__init__()
        self.score: Score = score

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        return _scored(logits, self.score)[:, None]


def _scored(logits: Tensor, score: Score) -> Tensor:
    # In double precision a network this sure can still be told from a surer one
    exact = logits.double()
    return (entropy(exact) if score == "entropy" else one_minus_confidence(exact)).float()
