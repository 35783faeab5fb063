"""Layers that keep a feature space sensitive and smooth, and heads that measure distance."""

from ddu.layers._bake import bake
from ddu.layers.random_features import (
    GaussianProcessHead,
    LaplacePosterior,
    RandomFourierFeatures,
    mean_field_logits,
    monte_carlo_logits,
)
from ddu.layers.rbf import RBFHead, gradient_penalty
from ddu.layers.shortcut import AvgPoolShortcut
from ddu.layers.spectral import POWER_STEPS, SpectralConv2d, SpectralLinear, spectral_norm, spectral_sigma
from ddu.layers.spectral_batch_norm import SpectralBatchNorm1d, SpectralBatchNorm2d

__all__ = [
    "POWER_STEPS",
    "AvgPoolShortcut",
    "GaussianProcessHead",
    "LaplacePosterior",
    "RBFHead",
    "RandomFourierFeatures",
    "SpectralBatchNorm1d",
    "SpectralBatchNorm2d",
    "SpectralConv2d",
    "SpectralLinear",
    "bake",
    "gradient_penalty",
    "mean_field_logits",
    "monte_carlo_logits",
    "spectral_norm",
    "spectral_sigma",
]
