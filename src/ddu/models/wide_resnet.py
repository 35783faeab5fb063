"""Wide ResNet (Zagoruyko and Komodakis, "Wide residual networks", 2016), pre-activation.

A stem of 16 channels and three groups of (depth - 4) / 6 blocks with 16, 32 and 64 times `widen` channels, strides 1,
2 and 2; a last batch-norm and activation; the features are the last map, averaged. Batch-norm has momentum 0.01,
dropout between the convolutions of a block is 0.3, and convolutions start from He et al.'s normal (fan-out) draw.

Differences from the original:
- The shortcut always starts from the raw residual stream, x' = g(x) + f(x), also where it changes shape. It is a 1x1
  convolution without batch-norm, or with `sensitive=True` an average over every pixel and zeros for new channels.
- `width` scales the groups and leaves the stem at 16 channels, or at those of the first group if they are fewer:
  `width=0.2` makes WRN-28-2 of WRN-28-10.
- The "imagenet" stem, which the original does not have, is that of the ResNets.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from ddu.errors import InputError
from ddu.models._factory import register_model
from ddu.models._layers import PLAIN, Classifier, Layers, Stem, make_shortcut, scaled, stem_conv, stem_pool


class PreActivationBlock(nn.Module):
    """x ← g(x) + f(x), f twice norm-activation-convolution with dropout before the second convolution."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, dropout: float, layers: Layers) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            layers.norm(in_channels),
            layers.activation(),
            layers.conv(in_channels, out_channels, 3, stride=stride, padding=1, bias=False),
            layers.norm(out_channels),
            layers.activation(),
            nn.Dropout(dropout),
            layers.conv(out_channels, out_channels, 3, padding=1, bias=False),
        )
        self.shortcut = make_shortcut(layers, in_channels, out_channels, stride, norm=nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.branch(x)


class WideResNet(Classifier):
    """A stem, three groups of (depth - 4) / 6 blocks, and a last norm and activation."""

    def __init__(
        self,
        depth: int,
        widen: int,
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        stem: Stem = "cifar",
        dropout: float = 0.3,
        layers: Layers = PLAIN,
    ) -> None:
        super().__init__()
        layers = replace(layers, norm=partial(layers.norm, momentum=0.01))
        channels = min(16, scaled(16 * widen, width))
        self.stem = nn.Sequential(stem_conv(stem, in_channels, channels, layers), stem_pool(stem))
        self.groups = nn.Sequential()
        for index in range(3):
            group = nn.Sequential()
            for position in range(_blocks_per_group(depth)):
                out_channels = scaled(16 * 2**index * widen, width)
                stride = 2 if index > 0 and position == 0 else 1
                group.append(PreActivationBlock(channels, out_channels, stride, dropout, layers))
                channels = out_channels
            self.groups.append(group)
        self.last = nn.Sequential(layers.norm(channels), layers.activation())
        self.num_features = channels
        self.head = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.last(self.groups(self.stem(x))).mean((2, 3))


def _blocks_per_group(depth: int) -> int:
    """n of depth = 6n + 4: three groups of n blocks of two convolutions each, and four layers around them."""
    blocks, rest = divmod(depth - 4, 6)
    if blocks < 1:
        raise InputError(f"The depth of a wide ResNet is 6n + 4. Got {depth}; the smallest is 10.")
    if rest:
        below = depth - rest
        raise InputError(f"The depth of a wide ResNet is 6n + 4. Got {depth}; the nearest are {below} and {below + 6}.")
    return blocks


@register_model(WideResNet, "wide_resnet{depth}_{widen}", listed=("wide_resnet28_10",))
def wide_resnet(depth: int, widen: int, **options: Any) -> WideResNet:
    """Wide-ResNet-depth-widen: 64 times `widen` features."""
    return WideResNet(depth, widen, **options)
