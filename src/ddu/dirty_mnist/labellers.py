"""Soft labels from an ensemble of LeNets that have learned clean digits."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ddu.data import ArrayDataset
from ddu.dirty_mnist.autoencoder import MEAN, STD
from ddu.dirty_mnist.fitting import seeded, train
from ddu.measures import entropy
from ddu.models import Classifier, create_model
from ddu.training import Recipe


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


def create_labeller(num_classes: int) -> Classifier:
    """An untrained LeNet of normalised images, (image, 1, 28, 28)."""
    return create_model("lenet", num_classes=num_classes, spectral_norm=None, sensitive=False)


def train_labeller(
    digits: ArrayDataset,
    held_out: ArrayDataset,
    recipe: Recipe,
    seed: int,
    member: int,
    progress: Callable[[float, str], None],
) -> Classifier:
    """One member of the ensemble.

    Args:
        digits: What it learns from.
        held_out: Digits to choose its epoch by, if the recipe has `select="best"`.
        recipe: How it learns.
        seed: Of the whole set.
        member: Which member it is: each has weights and an order of its own.
        progress: Is told how far the training is.
    """
    with seeded(seed, "labeller", member, "weights"):
        network = create_labeller(digits.info.num_classes)
    train(network, digits, recipe, progress, seed, "labeller", member, validation=held_out)
    return network


@torch.no_grad()
def ensemble_logits(members: Sequence[nn.Module], images: Tensor) -> Tensor:
    """The logits of images (image, 784) in [0, 1]: (member, image, class)."""
    normalised = ((images - MEAN) / STD).reshape(-1, 1, 28, 28)
    return torch.stack([member(normalised) for member in members])
