"""Layers that keep a feature space sensitive and smooth."""

from ddu.layers._bake import bake as bake
from ddu.layers._shortcut import AvgPoolShortcut as AvgPoolShortcut
from ddu.layers._spectral_batch_norm import SpectralBatchNorm1d as SpectralBatchNorm1d
from ddu.layers._spectral_batch_norm import SpectralBatchNorm2d as SpectralBatchNorm2d
from ddu.layers._spectral_norm import SpectralConv2d as SpectralConv2d
from ddu.layers._spectral_norm import SpectralLinear as SpectralLinear
from ddu.layers._spectral_norm import spectral_norm as spectral_norm
from ddu.layers._spectral_norm import spectral_sigma as spectral_sigma

__all__ = [
    "AvgPoolShortcut",
    "SpectralBatchNorm1d",
    "SpectralBatchNorm2d",
    "SpectralConv2d",
    "SpectralLinear",
    "bake",
    "spectral_norm",
    "spectral_sigma",
]
