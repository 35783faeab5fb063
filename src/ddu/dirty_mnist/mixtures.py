"""Mixtures of digits of different classes, in the latent space of an autoencoder."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ddu.dirty_mnist.autoencoder import MEAN, STD, VAE, latent_means
from ddu.errors import LabelError

# What makes strokes white and the paper between them black again
_CONTRAST, _BRIGHTNESS = 1.2, -0.15


@dataclass(frozen=True)
class Mixing:
    """What is mixed, and how often.

    Attributes:
        pool: Mixtures that must pass the filters before the best spread of them is chosen.
        digits: Most digits in a mixture; every number from two on is as likely.
        per_tuple: Mixtures of the same digits, with other weights.
        concentration: Of the weights' Dirichlet distribution: 1 is uniform on the simplex, more keeps to its middle.
        chunk: Mixtures made and stored at a time.
    """

    pool: int
    digits: int = 2
    per_tuple: int = 1
    concentration: float = 1.0
    chunk: int = 2**16


class Mixtures(NamedTuple):
    """Which digits are mixed, and how much of each.

    Attributes:
        parents: Rows of the digits, (mixture, digits).
        weights: Their shares, summing to one, (mixture, digits); zero where a mixture has fewer digits.
    """

    parents: np.ndarray
    weights: np.ndarray

    def batches(self, size: int) -> Iterator["Mixtures"]:
        """The same mixtures, some at a time."""
        for start in range(0, len(self.parents), size):
            yield Mixtures(self.parents[start : start + size], self.weights[start : start + size])


def draw_mixtures(labels: np.ndarray, mixing: Mixing, random: np.random.Generator) -> Mixtures:
    """Draws one chunk of mixtures of digits of different classes: the classes first, then a digit of each.

    Different from the paper's public code: there, positions in a list of one class are taken for rows of the whole set,
    so that nothing keeps the classes of a mixture apart and only the first digits of the set are ever used.
    """
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < mixing.digits:
        raise LabelError(
            f"Mixtures of {mixing.digits} digits need {mixing.digits} classes, and these digits have {len(classes)}."
        )
    tuples = -(-mixing.chunk // mixing.per_tuple)
    chosen = random.random((tuples, len(classes))).argsort(axis=1)[:, : mixing.digits]
    rank = (random.random(chosen.shape) * counts[chosen]).astype(np.int64)
    starts = np.cumsum(counts) - counts
    parents = np.argsort(labels, kind="stable")[starts[chosen] + rank]

    parents = parents.repeat(mixing.per_tuple, axis=0)[: mixing.chunk]
    sizes = random.integers(2, mixing.digits, size=tuples, endpoint=True).repeat(mixing.per_tuple)[: mixing.chunk]
    # A Dirichlet distribution: gamma variates, divided by their sum
    shares = random.gamma(mixing.concentration, size=parents.shape)
    shares[np.arange(mixing.digits) >= sizes[:, None]] = 0
    return Mixtures(parents, (shares / shares.sum(1, keepdims=True)).astype(np.float32))


class Mixer:
    """Turns mixtures of some digits, (image, 784), into images."""

    def __init__(self, vae: VAE, digits: Tensor):
        self.vae = vae
        self.latents = latent_means(vae, digits)

    @torch.no_grad()
    def images(self, mixtures: Mixtures) -> Tensor:
        """Decodes Σ wᵢ zᵢ and sharpens it, (mixture, 784), rounded to what bytes can hold."""
        weights = torch.from_numpy(mixtures.weights)
        latents = (weights[..., None] * self.latents[torch.from_numpy(mixtures.parents)]).sum(1)
        mean, std = self.vae.pixel_moments.tolist()
        return (255 * sharpened(self.vae.decode(latents), mean, std)).round() / 255


def sharpened(images: Tensor, mean: float, std: float) -> Tensor:
    """Undoes the blur of decoding: gives pixels of this mean and deviation those of MNIST, then more contrast.

    clamp(1.2 x' - 0.15, 0, 1) with x' = 0.1307 + 0.3081 (x - mean) / std
    """
    return (_CONTRAST * (MEAN + STD * (images - mean) / std) + _BRIGHTNESS).clamp(0, 1)
