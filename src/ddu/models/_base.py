"""What every network of the library is: a feature extractor and a head."""

from torch import Tensor, nn


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
