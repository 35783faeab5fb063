"""What a network is trained to do: the part of a training step that differs between methods."""

from typing import Protocol

from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Objective(Protocol):
    """A loss, and what else a method does while it trains."""

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and scores (batch, class) whose largest is the predicted class.

        Validation calls it without gradients; a penalty that needs them is then left out.
        """
        ...

    def after_step(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
        """Called after each step of the optimiser, with the batch that it was for."""

    def on_epoch_start(self, model: nn.Module) -> None:
        """Called before the first batch of each epoch."""


class CrossEntropy(Objective):
    """The ordinary softmax classifier: mean of -log softmax(logits)[label]."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(inputs)
        return cross_entropy(logits, labels, label_smoothing=self.label_smoothing), logits
