"""A variational autoencoder of digits (Kingma and Welling, "Auto-encoding variational Bayes", 2014): 784-512-256-32.

Images are rows of 784 pixels in [0, 1] throughout this package.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ddu.data import ArrayDataset, DataInfo
from ddu.data.sources.mnist import SCALE
from ddu.dirty_mnist.fitting import seeded, train
from ddu.errors import InputError
from ddu.training import Objective, Recipe

PIXELS = 28 * 28
LATENTS = 32

(MEAN,), (STD,) = SCALE["mean"], SCALE["std"]  # of MNIST's pixels

_ROWS = 2048  # encoded and decoded at a time


class VAE(nn.Module):
    """Digits as 32 numbers and back.

    Attributes:
        pixel_moments: Mean and standard deviation of the pixels of reconstructed training digits, (2,).
    """

    pixel_moments: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pixel_moments", torch.tensor([MEAN, STD]))
        self.encoder = nn.Sequential(
            nn.Linear(PIXELS, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 2 * LATENTS)
        )
        self.decoder = nn.Sequential(
            nn.Linear(LATENTS, 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, PIXELS)
        )

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z | x), both (image, 32)."""
        mean, log_variance = self.encoder(images).chunk(2, dim=-1)
        return mean, log_variance

    def decode(self, latents: Tensor) -> Tensor:
        """The expected images, (image, 784)."""
        return self.decoder(latents).sigmoid()


class NegativeELBO(Objective):
    """-ELBO = -E log p(x | z) + KL(q(z | x) ‖ N(0, I)) in nats, the mean over the images. Labels are not used."""

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, with z = mean + deviation · noise; the scores are zeros, since no class is predicted."""
        assert isinstance(model, VAE)
        mean, log_variance = model.encode(inputs)
        logits = model.decoder(mean + torch.randn_like(mean) * (log_variance / 2).exp())
        reconstruction = binary_cross_entropy_with_logits(logits, inputs, reduction="sum")
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum()
        return (reconstruction + divergence) / len(inputs), inputs.new_zeros(len(inputs), 1)


def check_digits(images: np.ndarray) -> None:
    """Refuses what is not MNIST's digits in shape and dtype."""
    if images.dtype != np.uint8 or images.shape[1:] != (28, 28, 1):
        raise InputError(
            f"Ambiguous-MNIST is made from digits of 28x28 bytes, (digit, 28, 28, 1). Got {images.shape} of "
            f"{images.dtype} instead."
        )


def pixel_rows(images: np.ndarray) -> Tensor:
    """Digits in bytes, (digit, 28, 28, 1), as rows of 784 pixels in [0, 1]."""
    check_digits(images)
    return torch.from_numpy(images).reshape(-1, PIXELS).float() / 255


def train_autoencoder(digits: ArrayDataset, recipe: Recipe, seed: int, progress: Callable[[float, str], None]) -> VAE:
    """An autoencoder of digits."""
    rows = pixel_rows(digits.inputs)
    with seeded(seed, "autoencoder", "weights"):
        vae = VAE()
    vectors = ArrayDataset(rows.numpy(), digits.labels, DataInfo("pixel rows", (PIXELS,), digits.info.classes))
    train(vae, vectors, recipe, progress, seed, "autoencoder", objective=NegativeELBO())
    vae.pixel_moments.copy_(_pixel_moments(vae, latent_means(vae, rows)))
    return vae


@torch.no_grad()
def latent_means(vae: VAE, images: Tensor) -> Tensor:
    """Where the encoder puts images, (image, 32)."""
    return torch.cat([vae.encode(rows)[0] for rows in images.split(_ROWS)])


@torch.no_grad()
def _pixel_moments(vae: VAE, latents: Tensor) -> Tensor:
    sums = torch.zeros(2, dtype=torch.float64)
    for rows in latents.split(_ROWS):
        pixels = vae.decode(rows).double()
        sums += torch.stack([pixels.sum(), pixels.square().sum()])
    mean, square = sums / (len(latents) * PIXELS)
    return torch.stack([mean, (square - mean**2).sqrt()])
