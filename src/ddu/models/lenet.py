"""LeNet-5 (LeCun et al., "Gradient-based learning applied to document recognition", 1998), in its usual modern form.

Two 5x5 convolutions with max-pooling, then hidden layers of 120 and 84 units; the features are the 84. It is the
paper's example of a feature space that collapses: the network of its figures is the plain one,
`create_model("lenet", spectral_norm=None, sensitive=False)`.

Differences from the original: maxima instead of trained averages, ReLU instead of tanh, fully connected second
convolution, and a softmax head. The last map is averaged to 4x4, which changes nothing at 28x28 and admits any size
from 16x16 up. Spectral norm, if asked for, covers both convolutions and both hidden layers.
"""

from typing import Any

from torch import Tensor, nn

from ddu.errors import InputError
from ddu.models._factory import register_model
from ddu.models._layers import PLAIN, Classifier, Layers, scaled


class LeNet(Classifier):
    """conv5-pool-conv5-pool-120-84; see the header of this file."""

    def __init__(
        self, *, num_classes: int = 10, in_channels: int = 1, width: float = 1.0, layers: Layers = PLAIN
    ) -> None:
        super().__init__()
        first, second, third, last = (scaled(units, width) for units in (6, 16, 120, 84))
        self.convs = nn.Sequential(
            layers.conv(in_channels, first, 5),
            layers.activation(),
            nn.MaxPool2d(2),
            layers.conv(first, second, 5),
            layers.activation(),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.hidden = nn.Sequential(
            layers.linear(second * 4 * 4, third),
            layers.activation(),
            layers.linear(third, last),
            layers.activation(),
        )
        self.num_features = last
        self.head = nn.Linear(last, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        if min(x.shape[2:]) < 16:
            raise InputError(f"LeNet needs at least 16x16 pixels. Got {x.shape[2]}x{x.shape[3]}: resize the images.")
        return self.hidden(self.convs(x))


@register_model(LeNet)
def lenet(**options: Any) -> LeNet:
    """LeNet-5: 44,426 parameters on 1x28x28."""
    return LeNet(**options)
