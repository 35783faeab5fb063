"""Small networks for the tests of taps and loaders."""

from itertools import pairwise

from torch import Tensor, nn


def mlp(*widths: int, tail: tuple[nn.Module, ...] = ()) -> nn.Sequential:
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1], *tail)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.fc(a + b)
