"""ResFFN (Liu et al., "Simple and principled uncertainty estimation", 2020) and FC-Net: networks for vectors.

ResFFN-4-128 has a linear layer from the input to 128 units and four residual layers x ← x + dropout(act(linear(x)));
the features are the 128. FC-Net is the same network without the skip, the paper's example of a feature space that
collapses on the two moons. Spectral norm covers the first layer and the hidden ones.

Differences from the original: the first layer is trained and normalised like the others, and there is no Gaussian
process at the end. The paper's two moons take `spectral_norm=0.65, power_steps=5`.
"""

from typing import Any

from torch import Tensor, nn

from ddu.models._factory import register_model
from ddu.models._layers import PLAIN, Classifier, Layers, scaled


class PlainLayer(nn.Module):
    """x ← f(x) = dropout(act(linear(x)))."""

    def __init__(self, features: int, dropout: float, layers: Layers) -> None:
        super().__init__()
        self.branch = nn.Sequential(layers.linear(features, features), layers.activation(), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x)


class ResidualLayer(PlainLayer):
    """x ← x + f(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class MLP(Classifier):
    """A linear layer and `depth` layers `block(features, dropout, layers)` of `hidden` units."""

    def __init__(
        self,
        block: type[PlainLayer],
        depth: int,
        hidden: int,
        *,
        num_classes: int = 10,
        in_features: int = 2,
        width: float = 1.0,
        dropout: float = 0.0,
        layers: Layers = PLAIN,
    ) -> None:
        super().__init__()
        self.num_features = scaled(hidden, width)
        self.first = layers.linear(in_features, self.num_features)
        self.blocks = nn.Sequential(*(block(self.num_features, dropout, layers) for _ in range(depth)))
        self.head = nn.Linear(self.num_features, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.blocks(self.first(x))


@register_model(MLP, "resffn{depth}_{hidden}", listed=("resffn4_128",))
def resffn(depth: int, hidden: int, **options: Any) -> MLP:
    """ResFFN-depth-hidden: residual layers."""
    return MLP(ResidualLayer, depth, hidden, **options)


@register_model(MLP, "fc_net{depth}_{hidden}", listed=("fc_net4_128",))
def fc_net(depth: int, hidden: int, **options: Any) -> MLP:
    """FC-Net: the same layers without the skip."""
    return MLP(PlainLayer, depth, hidden, **options)
