"""Uncertainty as pure functions of logits, and how far a network stretches distances.

Entropies are in nats; larger means more uncertain. Those of several networks, or several samples of one, take logits
(member, ..., class) and give values (...).
"""

import math

import torch
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the softmax, -Σ p log p, over the last dimension.

    >>> entropy(torch.zeros(4))  # log 4
    tensor(1.3863)
    """
    log_probs = torch.log_softmax(logits, dim=-1)
    return torch.special.entr(log_probs.exp()).sum(-1)


def one_minus_confidence(logits: Tensor) -> Tensor:
    """One minus the largest softmax probability.

    >>> one_minus_confidence(torch.zeros(4))
    tensor(0.7500)
    """
    return 1 - torch.softmax(logits, dim=-1).amax(-1)


def energy(logits: Tensor) -> Tensor:
    """Free energy -log Σ exp(logit): low where some logit is high.

    >>> energy(torch.zeros(4))
    tensor(-1.3863)
    """
    return -torch.logsumexp(logits, dim=-1)


def log_mean_softmax(logits: Tensor) -> Tensor:
    """log p̄, the logarithm of the mean of the members' probabilities, (..., class).

    >>> log_mean_softmax(torch.tensor([[9.0, -9.0], [-9.0, 9.0]])).exp()
    tensor([0.5000, 0.5000])
    """
    return torch.logsumexp(torch.log_softmax(logits, dim=-1), dim=0) - math.log(len(logits))


def predictive_entropy(logits: Tensor) -> Tensor:
    """Entropy of the mean of the members' probabilities, H[p̄].

    >>> predictive_entropy(torch.tensor([[9.0, -9.0], [-9.0, 9.0]]))  # log 2
    tensor(0.6931)
    """
    return entropy(log_mean_softmax(logits))


def expected_entropy(logits: Tensor) -> Tensor:
    """Mean of the members' entropies, what remains where they agree.

    >>> expected_entropy(torch.zeros(5, 4))  # log 4
    tensor(1.3863)
    """
    return entropy(logits).mean(0)


def mutual_information(logits: Tensor) -> Tensor:
    """Predictive minus expected entropy: what the members disagree on.

    Where they hardly do, it is a small difference of large numbers: use double precision.

    >>> mutual_information(torch.tensor([[9.0, -9.0], [-9.0, 9.0]]))  # log 2
    tensor(0.6931)
    """
    return predictive_entropy(logits) - expected_entropy(logits)


def distance_ratios(x: Tensor, other: Tensor, z: Tensor, other_z: Tensor) -> Tensor:
    """‖f(x) - f(x')‖ / ‖x - x'‖ of pairs, (pair,): how much a network stretches each distance.

    A bi-Lipschitz network keeps them between two constants: none near zero (sensitivity), none very large (smoothness).
    What is found on some pairs lies between the true constants.

    Args:
        x: Inputs, (pair, ...).
        other: The other input of each pair; no two may be equal.
        z: Features of the first, (pair, ...).
        other_z: Features of the other.

    >>> x, other = torch.zeros(2, 3), torch.eye(3)[:2]
    >>> distance_ratios(x, other, 2 * x, 2 * other)
    tensor([2., 2.])
    """
    return (z - other_z).flatten(1).norm(dim=1) / (x - other).flatten(1).norm(dim=1)
