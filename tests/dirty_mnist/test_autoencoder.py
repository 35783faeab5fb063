"""The autoencoder."""

from unittest.mock import patch

import torch
from torch.distributions import Bernoulli, Normal, kl_divergence

from ddu.dirty_mnist.autoencoder import LATENTS, VAE, NegativeELBO, latent_means, pixel_rows
from ddu.dirty_mnist.make import load_autoencoder


def test_the_loss_is_the_negative_evidence_lower_bound():
    torch.manual_seed(0)
    vae = VAE().double()
    images = torch.rand(5, 784).double()
    torch.manual_seed(1)
    noise = torch.randn(5, LATENTS).double()
    mean, log_variance = vae.encode(images)
    posterior = Normal(mean, (log_variance / 2).exp())
    decoded = Bernoulli(vae.decode(mean + noise * posterior.stddev), validate_args=False)
    expected = kl_divergence(posterior, Normal(0.0, 1.0)).sum(1) - decoded.log_prob(images).sum(1)
    with patch("torch.randn_like", lambda mean: noise):
        loss, scores = NegativeELBO().loss(vae, images, torch.zeros(5))
    torch.testing.assert_close(loss, expected.mean())
    assert scores.shape == (5, 1)


def test_latent_means_do_not_depend_on_how_images_are_batched(made, train_digits):
    images = pixel_rows(train_digits.inputs[:100])
    vae = load_autoencoder(made)
    expected = torch.cat([vae.encode(image)[0].detach() for image in images.split(1)])
    torch.testing.assert_close(latent_means(vae, images), expected, rtol=1e-4, atol=1e-5)


def test_it_remembers_mean_and_deviation_of_its_reconstructions(made, train_digits):
    vae = load_autoencoder(made)
    pixels = vae.decode(vae.encode(pixel_rows(train_digits.inputs))[0]).detach().double().numpy()
    torch.testing.assert_close(vae.pixel_moments.tolist(), [pixels.mean(), pixels.std()], rtol=1e-5, atol=0)


def test_it_has_learned_to_reconstruct(made, test_digits):
    images = pixel_rows(test_digits.inputs)
    vae = load_autoencoder(made)
    error = (vae.decode(latent_means(vae, images)) - images).square().mean()
    assert error < 0.85 * (images.mean(0) - images).square().mean()
