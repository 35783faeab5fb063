"""ResNet (He et al., "Deep residual learning for image recognition", 2016), post-activation.

Four stages of 64, 128, 256 and 512 channels with strides 1, 2, 2, 2; basic blocks in ResNet-18, bottlenecks with the
stride in the 3x3 convolution elsewhere. The features are the last map, averaged.

Differences from the original:
- The "mnist" and "cifar" stems are one 3x3 convolution that keeps the image size. The "imagenet" stem is the original.
- With `sensitive=True`, a block that changes the shape of its input has an average over every pixel as its shortcut,
  and zeros for new channels, instead of a strided 1x1 convolution. The maximum of the "imagenet" stem stays.
- ResNet-110 is the deep bottleneck network that the paper's tables call so (3, 4, 26 and 3 blocks), and not He et
  al.'s narrow CIFAR network of the same depth.
- Wide-ResNet-50-2 (Zagoruyko and Komodakis, 2016) is ResNet-50 with bottlenecks twice as wide inside; it was made for
  ImageNet and has that stem unless told otherwise.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from ddu.models._factory import register_model
from ddu.models._layers import PLAIN, Classifier, Layers, Stem, make_shortcut, scaled, stem_conv, stem_pool


class BasicBlock(nn.Module):
    """x ← act(g(x) + f(x)), f two 3x3 convolutions."""

    def __init__(self, in_channels: int, channels: int, stride: int, layers: Layers) -> None:
        super().__init__()
        self.out_channels = channels
        self.branch = nn.Sequential(
            layers.conv(in_channels, channels, 3, stride=stride, padding=1, bias=False),
            layers.norm(channels),
            layers.activation(),
            layers.conv(channels, channels, 3, padding=1, bias=False),
            layers.norm(channels),
        )
        self.shortcut = make_shortcut(layers, in_channels, self.out_channels, stride, layers.norm)
        self.activation = layers.activation()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.shortcut(x) + self.branch(x))


class Bottleneck(nn.Module):
    """x ← act(g(x) + f(x)), f a 1x1, a 3x3 and a 1x1 convolution; the last has four times `channels`."""

    def __init__(self, in_channels: int, channels: int, stride: int, layers: Layers, *, widen: int = 1) -> None:
        super().__init__()
        self.out_channels = 4 * channels
        inner = widen * channels
        self.branch = nn.Sequential(
            layers.conv(in_channels, inner, 1, bias=False),
            layers.norm(inner),
            layers.activation(),
            layers.conv(inner, inner, 3, stride=stride, padding=1, bias=False),
            layers.norm(inner),
            layers.activation(),
            layers.conv(inner, self.out_channels, 1, bias=False),
            layers.norm(self.out_channels),
        )
        self.shortcut = make_shortcut(layers, in_channels, self.out_channels, stride, layers.norm)
        self.activation = layers.activation()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.shortcut(x) + self.branch(x))


class ResNet(Classifier):
    """A stem and four stages of `depths` blocks; `block(in_channels, channels, stride, layers)` builds each of them."""

    def __init__(
        self,
        block: Callable[..., BasicBlock | Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        stem: Stem = "cifar",
        layers: Layers = PLAIN,
    ) -> None:
        super().__init__()
        channels = scaled(64, width)
        self.stem = nn.Sequential(
            stem_conv(stem, in_channels, channels, layers),
            layers.norm(channels),
            layers.activation(),
            stem_pool(stem),
        )
        self.stages = nn.Sequential()
        for index, depth in enumerate(depths):
            blocks = []
            for position in range(depth):
                stride = 2 if index > 0 and position == 0 else 1
                blocks.append(block(channels, scaled(64 * 2**index, width), stride, layers))
                channels = blocks[-1].out_channels
            self.stages.append(nn.Sequential(*blocks))
        self.num_features = channels
        self.head = nn.Linear(channels, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.stages(self.stem(x)).mean((2, 3))


@register_model(ResNet)
def resnet18(**options: Any) -> ResNet:
    """ResNet-18: basic blocks, 512 features."""
    return ResNet(BasicBlock, (2, 2, 2, 2), **options)


@register_model(ResNet)
def resnet50(**options: Any) -> ResNet:
    """ResNet-50: bottlenecks, 2,048 features."""
    return ResNet(Bottleneck, (3, 4, 6, 3), **options)


@register_model(ResNet)
def resnet110(**options: Any) -> ResNet:
    """ResNet-110 of the paper: bottlenecks, 2,048 features."""
    return ResNet(Bottleneck, (3, 4, 26, 3), **options)


@register_model(ResNet)
def wide_resnet50_2(*, stem: Stem = "imagenet", **options: Any) -> ResNet:
    """Wide-ResNet-50-2: bottlenecks twice as wide inside, 2,048 features."""
    return ResNet(partial(Bottleneck, widen=2), (3, 4, 6, 3), stem=stem, **options)
