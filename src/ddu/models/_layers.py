"""What all networks are, a feature extractor and a head, and what they are built from.

A network asks `Layers` for a convolution or a shortcut and does not know whether it is spectrally normalised or
pooled; `choose_layers` is the only place where the options of the method become layers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch import Tensor, nn

from ddu.errors import InputError, NotSupportedError
from ddu.layers import POWER_STEPS, AvgPoolShortcut, SpectralBatchNorm2d, SpectralConv2d, SpectralLinear

Stem = Literal["mnist", "cifar", "imagenet"]
LayerFactory = Callable[..., nn.Module]


class Classifier(nn.Module):
    """A classifier that returns its features instead of keeping them.

    `forward(x) = forward_head(forward_features(x))`, with features of shape (batch, `num_features`). A network writes
    `forward_features` and sets `num_features` and `head`, an ordinary `nn.Linear` that is never spectrally normalised;
    any other module from features to logits may take its place.
    """

    num_features: int
    head: nn.Module

    def forward_features(self, x: Tensor) -> Tensor:
        """The features, of shape (batch, `num_features`), that the head and the density see."""
        raise NotImplementedError

    def forward_head(self, z: Tensor) -> Tensor:
        """The logits of features."""
        return self.head(z)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of inputs."""
        return self.forward_head(self.forward_features(x))


def projection_shortcut(
    in_channels: int, out_channels: int, stride: int, *, conv: LayerFactory, norm: LayerFactory
) -> nn.Module:
    """He et al.'s shortcut: a strided 1x1 convolution, which sees one pixel in stride², then `norm`."""
    return nn.Sequential(
        conv(in_channels, out_channels, 1, stride=stride, bias=False),
        norm(out_channels),
    )


def pooled_shortcut(
    in_channels: int, out_channels: int, stride: int, *, conv: LayerFactory, norm: LayerFactory
) -> nn.Module:
    """The sensitive shortcut: an average over every pixel, and zeros for new channels; it uses none of the layers."""
    return AvgPoolShortcut(in_channels, out_channels, stride)


@dataclass(frozen=True)
class Layers:
    """The callables that a network builds itself from; the defaults are those of the original architectures.

    Attributes:
        conv: Called as `conv(in_channels, out_channels, kernel_size, stride=, padding=, bias=)`.
        linear: Called as `linear(in_features, out_features)`; hidden layers only, the head is always `nn.Linear`.
        norm: Called as `norm(channels)`; wide ResNets add `momentum=`.
        activation: Called as `activation()`. It must not work in place: a residual stream may share its input.
        shortcut: Called as `shortcut(in_channels, out_channels, stride, conv=, norm=)`, only where the residual stream
            changes its shape.

    >>> Layers(activation=nn.SiLU).activation()
    SiLU()
    """

    conv: LayerFactory = nn.Conv2d
    linear: LayerFactory = nn.Linear
    norm: LayerFactory = nn.BatchNorm2d
    activation: LayerFactory = nn.ReLU
    shortcut: LayerFactory = projection_shortcut


PLAIN = Layers()


def choose_layers(
    *,
    spectral_norm: float | None = 3.0,
    sensitive: bool = True,
    spectral_batch_norm: bool = False,
    power_steps: int = POWER_STEPS,
) -> Layers:
    """Turns the options of the method into layers, once for every family; `create_model` explains the options."""
    if spectral_norm is None and spectral_batch_norm:
        raise NotSupportedError(
            "spectral_batch_norm=True takes its bound from spectral_norm, which is None: give both, or neither."
        )
    smooth = PLAIN
    if spectral_norm is not None:
        smooth = Layers(
            conv=partial(SpectralConv2d, coeff=spectral_norm, power_steps=power_steps),
            linear=partial(SpectralLinear, coeff=spectral_norm, power_steps=power_steps),
            norm=partial(SpectralBatchNorm2d, coeff=spectral_norm) if spectral_batch_norm else nn.BatchNorm2d,
        )
    if not sensitive:
        return smooth
    return replace(smooth, activation=partial(nn.LeakyReLU, 0.01), shortcut=pooled_shortcut)


def make_shortcut(layers: Layers, in_channels: int, out_channels: int, stride: int, norm: LayerFactory) -> nn.Module:
    """The identity where a block keeps the shape of the residual stream, `layers.shortcut` where it does not."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return layers.shortcut(in_channels, out_channels, stride, conv=layers.conv, norm=norm)


def stem_conv(stem: Stem, in_channels: int, out_channels: int, layers: Layers) -> nn.Module:
    """The first convolution: 7x7 with stride 2 for "imagenet", 3x3 that keeps the size for "cifar" and "mnist"."""
    if stem == "imagenet":
        return layers.conv(in_channels, out_channels, 7, stride=2, padding=3, bias=False)
    return layers.conv(in_channels, out_channels, 3, padding=1, bias=False)


def stem_pool(stem: Stem) -> nn.Module:
    """The pooling after the first convolution: a 3x3 maximum with stride 2 for "imagenet", none for the others."""
    return nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()


def scaled(channels: int, width: float) -> int:
    """`width` times as many channels, rounded, and at least one.

    >>> scaled(64, 0.25), scaled(6, 0.01)
    (16, 1)
    """
    if not width > 0:
        raise InputError(f"The 'width' parameter must be a positive number. Got {width!r} instead.")
    return max(1, round(channels * width))
