"""What a network is trained to do: the part of a training step that differs between methods."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from ddu.errors import InputError
from ddu.layers import RBFHead, gradient_penalty
from ddu.models import Classifier


class Objective(Protocol):
    """A loss, and what a method does besides while it trains. Subclasses write `loss`; the rest does nothing.

    Attributes:
        channels_last: Whether our networks take this layout while they train on a CPU: gradients are faster in it.
    """

    channels_last: bool = True

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """The loss of a batch, and scores (batch, class) whose largest is the predicted class.

        An objective without classes, such as the reconstruction error of an autoencoder, returns None for the scores.
        The history then has no accuracies, and the best epoch is the one with the lowest validation loss.

        Validation calls it without gradients; a penalty that needs them is then left out.
        """
        ...

    def reported(self, loss: Tensor) -> Tensor:
        """What the history and the progress show of a loss; of a sum over several networks, their mean."""
        return loss

    def after_step(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
        """Called after each step of the optimiser, with the batch that it was for."""

    def on_epoch_start(self, model: nn.Module) -> None:
        """Called before the first batch of each epoch."""

    def on_epoch_end(self, model: nn.Module) -> None:
        """Called after the validation of each epoch."""


class CrossEntropy(Objective):
    """The ordinary softmax classifier: mean of -log softmax(logits)[label]."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(inputs)
        return cross_entropy(logits, labels, label_smoothing=self.label_smoothing), logits


class DUQObjective(Objective):
    """One kernel against all others, and a penalty that keeps their gradient near 1 (van Amersfoort et al., 2020).

    The loss is the mean binary cross-entropy of the kernels K_c against one-hot labels, plus
    `penalty` · (‖∇ₓ Σ_c K_c‖₂ - 1)². After each step the centroids follow the batch, in evaluation mode.

    Different from the original: the cross-entropy is computed from log K_c, so that a sample far from its centroid,
    where K_c underflows, still has a gradient.

    Args:
        penalty: λ, the weight of the gradient penalty.
    """

    channels_last = False  # the second derivatives of batch norm and ReLU are slower in it

    def __init__(self, penalty: float = 0.75) -> None:
        self.penalty = penalty

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if not torch.is_grad_enabled():
            scores = model(inputs)
            return kernel_cross_entropy(scores, labels), scores
        inputs = inputs.detach().requires_grad_()
        scores = model(inputs)
        return kernel_cross_entropy(scores, labels) + self.penalty * gradient_penalty(inputs, scores.exp()), scores

    def after_step(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
        if not isinstance(model, Classifier) or not isinstance(model.head, RBFHead):
            raise InputError(f"DUQ trains a ddu.models.Classifier with an RBFHead. Got {type(model).__name__} instead.")
        with torch.no_grad(), _evaluating(model):
            model.head.update_centroids(model.forward_features(inputs), labels)


def kernel_cross_entropy(log_kernels: Tensor, labels: Tensor) -> Tensor:
    """Mean of -log K_c for the class of each sample and -log (1 - K_c) for every other.

    >>> kernel_cross_entropy(torch.tensor([[0.5, 0.25]]).log(), torch.tensor([0]))  # -(log 0.5 + log 0.75) / 2
    tensor(0.4904)
    """
    # At a centroid 1 - K is zero: keep K below 1 by the precision of the dtype
    log_others = torch.log(-torch.expm1(log_kernels.clamp(max=-torch.finfo(log_kernels.dtype).eps)))
    return -torch.where(one_hot(labels, log_kernels.shape[1]).bool(), log_kernels, log_others).mean()


def objective_for(model: nn.Module, *, label_smoothing: float = 0.0, penalty: float = 0.75) -> Objective:
    """The objective for the head of a network: DUQ's for an `RBFHead`, cross-entropy for any other.

    SNGP trains by cross-entropy too; the precision of its head is summed afterwards, by `ddu.detectors.SNGP.fit`.

    Args:
        model: The network.
        label_smoothing: Label smoothing of the cross-entropy.
        penalty: The weight of DUQ's gradient penalty.
    """
    if any(isinstance(module, RBFHead) for module in model.modules()):
        return DUQObjective(penalty)
    return CrossEntropy(label_smoothing)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each module has its former mode again."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
