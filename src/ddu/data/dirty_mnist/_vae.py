"""A variational autoencoder of digits (Kingma and Welling, "Auto-encoding variational Bayes", 2014): 784-512-256-32.

Images are rows of 784 pixels in [0, 1] throughout this package.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ddu.data.dirty_mnist._randomness import initial_weights, torch_numbers
from ddu.data.dirty_mnist._training import Training, train

PIXELS = 28 * 28
LATENTS = 32
MEAN, STD = 0.1307, 0.3081  # of MNIST's pixels

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

    def loss(self, images: Tensor, noise: Tensor) -> Tensor:
        """-ELBO = -E log p(x | z) + KL(q(z | x) ‖ N(0, I)) in nats, the mean over the images.

        Args:
            images: (image, 784).
            noise: Standard normal, (image, 32), for z = mean + noise · deviation.
        """
        mean, log_variance = self.encode(images)
        logits = self.decoder(mean + noise * (log_variance / 2).exp())
        reconstruction = binary_cross_entropy_with_logits(logits, images, reduction="sum")
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum()
        return (reconstruction + divergence) / len(images)


def train_vae(images: Tensor, training: Training, seed: int, progress: Callable[[float, str], None]) -> VAE:
    """An autoencoder of `images`, (image, 784)."""
    with initial_weights(seed, "vae"):
        vae = VAE()
    generator = torch_numbers(seed, "vae", "training")

    def loss(rows: Tensor) -> Tensor:
        return vae.loss(images[rows], torch.randn(len(rows), LATENTS, generator=generator))

    for step in train(vae, loss, len(images), training, generator):
        progress(step.done, f"epoch {step.epoch} of {training.epochs}, loss {step.loss:.1f}")
    vae.pixel_moments.copy_(_pixel_moments(vae, latent_means(vae, images)))
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
