"""Uncertainty as pure functions of logits. Entropies are in nats; larger means more uncertain."""

import torch
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the softmax, -Σ p log p, over the last dimension.

    >>> entropy(torch.zeros(4))  # log 4
    tensor(1.3863)
    """
    log_probs = torch.log_softmax(logits, dim=-1)
    return torch.special.entr(log_probs.exp()).sum(-1)


def unconfidence(logits: Tensor) -> Tensor:
    """One minus the largest softmax probability.

    >>> unconfidence(torch.zeros(4))
    tensor(0.7500)
    """
    return 1 - torch.softmax(logits, dim=-1).amax(-1)


def energy(logits: Tensor) -> Tensor:
    """Free energy -log Σ exp(logit): low where some logit is high.

    >>> energy(torch.zeros(4))
    tensor(-1.3863)
    """
    return -torch.logsumexp(logits, dim=-1)
