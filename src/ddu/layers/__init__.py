"""Layers that keep a feature space sensitive and smooth, and heads that measure distance."""

from ddu.layers._bake import bake as bake
from ddu.layers.random_features import GaussianProcessHead as GaussianProcessHead
from ddu.layers.random_features import LaplacePosterior as LaplacePosterior
from ddu.layers.random_features import RandomFourierFeatures as RandomFourierFeatures
from ddu.layers.random_features import mean_field_logits as mean_field_logits
from ddu.layers.random_features import monte_carlo_logits as monte_carlo_logits
from ddu.layers.rbf import RBFHead as RBFHead
from ddu.layers.rbf import gradient_penalty as gradient_penalty
from ddu.layers.shortcut import AvgPoolShortcut as AvgPoolShortcut
from ddu.layers.spectral import POWER_STEPS as POWER_STEPS
from ddu.layers.spectral import SpectralConv2d as SpectralConv2d
from ddu.layers.spectral import SpectralLinear as SpectralLinear
from ddu.layers.spectral import spectral_norm as spectral_norm
from ddu.layers.spectral import spectral_sigma as spectral_sigma
from ddu.layers.spectral_batch_norm import SpectralBatchNorm1d as SpectralBatchNorm1d
from ddu.layers.spectral_batch_norm import SpectralBatchNorm2d as SpectralBatchNorm2d

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
