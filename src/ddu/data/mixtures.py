"""Mixtures of two samples of different classes: inputs that really could be either."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Generator

from ddu.errors import LabelError

# The share of the first sample in a mixture is uniform between these
LOWEST_SHARE, HIGHEST_SHARE = 0.4, 0.6


class Mixtures(NamedTuple):
    """Mixed samples, with drawn labels.

    Attributes:
        inputs: (mixture, ...), of the dtype of what was mixed.
        labels: One of the two classes each, drawn, (mixture,).
        parents: The rows of the two samples, (mixture, 2).
        shares: How much of each is in the mixture: also the odds of the labels, (mixture, 2).
    """

    inputs: np.ndarray
    labels: np.ndarray
    parents: np.ndarray
    shares: np.ndarray


def mix_pairs(inputs: np.ndarray, labels: np.ndarray, count: int, generator: Generator) -> Mixtures:
    """Mixes pairs of samples of different classes.

    x = w x₁ + (1 - w) x₂ with w uniform on [0.4, 0.6], and the label is y₁ with probability w, otherwise y₂. So no
    classifier can be right much more than half of the time, and the entropy of the label is known: at least 0.67 nats.

    Args:
        inputs: Samples to mix, (sample, ...); mixtures of bytes are rounded to bytes.
        labels: Their classes, (sample,).
        count: How many mixtures to make.
        generator: Where the randomness comes from.

    >>> ends = np.array([[0.0], [1.0]])
    >>> mixed = mix_pairs(ends, np.array([0, 1]), 100, Generator().manual_seed(0))
    >>> bool(mixed.inputs.min() >= 0.4), bool(mixed.inputs.max() <= 0.6), sorted(set(mixed.labels.tolist()))
    (True, True, [0, 1])
    """
    x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
    if len(y.unique()) < 2:
        raise LabelError(f"Mixtures are of two classes, and these {len(y)} samples have {len(y.unique())}.")
    first = torch.randint(len(y), (count,), generator=generator)
    partners = (y[first, None] != y).float()
    second = torch.multinomial(partners, 1, generator=generator).squeeze(1)
    weight = LOWEST_SHARE + (HIGHEST_SHARE - LOWEST_SHARE) * torch.rand(count, generator=generator)
    takes_first = torch.rand(count, generator=generator) < weight

    share = weight.reshape(-1, *[1] * (x.ndim - 1))
    mixed = share * x[first] + (1 - share) * x[second]
    return Mixtures(
        (mixed.round() if x.dtype == torch.uint8 else mixed).to(x.dtype).numpy(),
        torch.where(takes_first, y[first], y[second]).numpy(),
        torch.stack([first, second], 1).numpy(),
        torch.stack([weight, 1 - weight], 1).numpy(),
    )
