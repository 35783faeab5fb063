"""DenseNet (Huang et al., "Densely connected convolutional networks", 2017), with bottlenecks and compression.

Four dense blocks of 6, 12, 24 and 16 layers in DenseNet-121; every layer adds 32 channels to all that came before it;
between blocks a 1x1 convolution halves the channels and an average halves the map. The features are the last map after
batch-norm and activation, averaged: 1,024 of them.

Differences from the original:
- The "mnist" and "cifar" stems are one 3x3 convolution that keeps the image size; the "imagenet" stem is the original.
- The skip connection is a concatenation, which loses nothing, and the transitions already average: there is no
  projection to replace, so `sensitive=True` changes the activation alone.
- The averages of the transitions keep the last row and column of a map of odd size, which the original drops.
- `width` scales the 32 channels that a layer adds, and everything else with them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ddu.models._factory import register_model
from ddu.models._layers import PLAIN, Classifier, Layers, Stem, scaled, stem_conv, stem_pool


class DenseLayer(nn.Module):
    """x ← [x, f(x)], f a 1x1 and a 3x3 convolution, each after norm and activation."""

    def __init__(self, in_channels: int, growth: int, layers: Layers) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            layers.norm(in_channels),
            layers.activation(),
            layers.conv(in_channels, 4 * growth, 1, bias=False),
            layers.norm(4 * growth),
            layers.activation(),
            layers.conv(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.branch(x)), dim=1)


class Transition(nn.Sequential):
    """Half the channels by a 1x1 convolution, half the map by an average."""

    def __init__(self, in_channels: int, out_channels: int, layers: Layers) -> None:
        super().__init__(
            layers.norm(in_channels),
            layers.activation(),
            layers.conv(in_channels, out_channels, 1, bias=False),
            nn.AvgPool2d(2, ceil_mode=True),
        )


class DenseNet(Classifier):
    """A stem and dense blocks of `depths` layers, with transitions between them."""

    def __init__(
        self,
        depths: tuple[int, ...],
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        stem: Stem = "cifar",
        layers: Layers = PLAIN,
    ) -> None:
        super().__init__()
        growth = scaled(32, width)
        channels = 2 * growth
        self.stem = nn.Sequential(stem_conv(stem, in_channels, channels, layers))
        if stem == "imagenet":
            self.stem.extend((layers.norm(channels), layers.activation(), stem_pool(stem)))
        self.blocks = nn.Sequential()
        for index, depth in enumerate(depths):
            if index > 0:
                self.blocks.append(Transition(channels, channels // 2, layers))
                channels //= 2
            self.blocks.append(
                nn.Sequential(*(DenseLayer(channels + i * growth, growth, layers) for i in range(depth)))
            )
            channels += depth * growth
        self.last = nn.Sequential(layers.norm(channels), layers.activation())
        self.num_features = channels
        self.head = nn.Linear(channels, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(self.stem(x))).mean((2, 3))


@register_model(DenseNet)
def densenet121(**options: Any) -> DenseNet:
    """DenseNet-121: 1,024 features."""
    return DenseNet((6, 12, 24, 16), **options)
