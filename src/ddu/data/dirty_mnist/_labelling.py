"""Soft labels from an ensemble of LeNets that have learned clean digits."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ddu.data.dirty_mnist._randomness import initial_weights, torch_numbers
from ddu.data.dirty_mnist._training import Training, train
from ddu.data.dirty_mnist._vae import MEAN, STD
from ddu.measures import entropy


class Labeller(nn.Sequential):
    """LeNet-5, conv5-pool-conv5-pool-120-84, on rows of 784 pixels in [0, 1]."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 28, 28)),
            nn.Conv2d(1, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(256, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_classes),
        )

    def forward(self, input: Tensor) -> Tensor:
        return super().forward((input - MEAN) / STD)


class Labelled(NamedTuple):
    """What an ensemble says of images.

    Attributes:
        probs: The mean of the members' probabilities, (image, class).
        entropy: Of that mean, in nats, (image,): how ambiguous the image is.
        mutual_information: Of label and member, in nats, (image,): how much the members disagree.
    """

    probs: Tensor
    entropy: Tensor
    mutual_information: Tensor


def labelled(logits: Tensor) -> Labelled:
    """p̄ = mean p_m; H[p̄]; and I = H[p̄] - mean H[p_m], from logits (member, image, class).

    >>> sure_but_divided = torch.tensor([[[20.0, 0.0]], [[0.0, 20.0]]])
    >>> labelled(sure_but_divided).entropy, labelled(sure_but_divided).mutual_information
    (tensor([0.6931], dtype=torch.float64), tensor([0.6931], dtype=torch.float64))
    """
    log_probs = torch.log_softmax(logits.double(), dim=-1)
    log_mean = log_probs.logsumexp(0) - torch.tensor(len(logits)).log()
    predictive = entropy(log_mean)
    return Labelled(log_mean.exp(), predictive, predictive - entropy(log_probs).mean(0))


def train_labeller(
    train_set: tuple[Tensor, Tensor],
    validation_set: tuple[Tensor, Tensor],
    num_classes: int,
    training: Training,
    seed: int,
    member: int,
    progress: Callable[[float, str], None],
) -> Labeller:
    """One member of the ensemble, as it was after the epoch with the lowest loss on the validation set."""
    with initial_weights(seed, "labeller", member):
        network = Labeller(num_classes)
    images, labels = train_set
    best_loss, best = float("inf"), network.state_dict()
    note = ""
    for step in train(
        network,
        lambda rows: cross_entropy(network(images[rows]), labels[rows]),
        len(images),
        training,
        torch_numbers(seed, "labeller", member, "training"),
    ):
        if step.ends_epoch:
            loss, accuracy = _validated(network, *validation_set)
            note = f", validation accuracy {accuracy:.1%}"
            if loss < best_loss:
                best_loss, best = loss, {name: tensor.clone() for name, tensor in network.state_dict().items()}
        progress(step.done, f"epoch {step.epoch} of {training.epochs}{note}")
    network.load_state_dict(best)
    return network


@torch.no_grad()
def _validated(network: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    logits = network(images)
    return float(cross_entropy(logits, labels)), float((logits.argmax(1) == labels).double().mean())


@torch.no_grad()
def ensemble_logits(members: Sequence[nn.Module], images: Tensor) -> Tensor:
    """(member, image, class)."""
    return torch.stack([member(images) for member in members])
