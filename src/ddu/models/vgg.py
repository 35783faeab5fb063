"""VGG-16 with batch-norm (Simonyan and Zisserman, "Very deep convolutional networks", 2015).

Thirteen 3x3 convolutions in five stages, each followed by a 2x2 maximum, except the first stage of the "mnist" stem.
There are no shortcuts, so `sensitive=True` changes the activation alone.

Differences from the original: batch-norm, convolutions without a bias, and no hidden layers of 4,096 units: the
features are the 512 channels of the last map, averaged, at every input size. The "imagenet" stem is the "cifar" one.
The smallest image is 32x32 pixels, or 16x16 with the "mnist" stem.
"""

from typing import Any

from torch import Tensor, nn

from ddu.errors import InputError
from ddu.models._factory import register_model
from ddu.models._layers import PLAIN, Classifier, Layers, Stem, scaled


class VGG(Classifier):
    """Stages of 3x3 convolutions, each closed by a maximum; stage i has `depths[i]` of them."""

    def __init__(
        self,
        depths: tuple[int, int, int, int, int],
        *,
        num_classes: int = 10,
        in_channels: int = 3,
        width: float = 1.0,
        stem: Stem = "cifar",
        layers: Layers = PLAIN,
    ) -> None:
        super().__init__()
        channels = in_channels
        self.stages = nn.Sequential()
        for index, (depth, base) in enumerate(zip(depths, (64, 128, 256, 512, 512), strict=True)):
            stage = nn.Sequential()
            for _ in range(depth):
                out_channels = scaled(base, width)
                stage.append(layers.conv(channels, out_channels, 3, padding=1, bias=False))
                stage.append(layers.norm(out_channels))
                stage.append(layers.activation())
                channels = out_channels
            if index > 0 or stem != "mnist":
                stage.append(nn.MaxPool2d(2))
            self.stages.append(stage)
        self.min_size = 16 if stem == "mnist" else 32
        self.num_features = channels
        self.head = nn.Linear(channels, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        if min(x.shape[2:]) < self.min_size:
            raise InputError(
                f"This VGG halves the image {self.min_size.bit_length() - 1} times and needs at least "
                f"{self.min_size}x{self.min_size} pixels. Got {x.shape[2]}x{x.shape[3]}: resize the images"
                + (", or use stem='mnist', which needs 16x16." if self.min_size > 16 else ".")
            )
        return self.stages(x).mean((2, 3))


@register_model(VGG)
def vgg16(**options: Any) -> VGG:
    """VGG-16: 512 features."""
    return VGG((2, 2, 3, 3, 3), **options)
