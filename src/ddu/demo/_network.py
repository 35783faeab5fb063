"""A small residual network for 8 × 8 images."""

import os

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, leaky_relu, pad

from ddu.data._demo_digits import NUM_CLASSES

_SLOPE = 0.01  # of the leaky ReLU on the negative side: no direction of the input is lost entirely
_MEAN, _STD = 0.305, 0.376  # of the digits' pixels


class ResidualBlock(nn.Module):
    """x ↦ act(shortcut(x) + conv(act(conv(x)))); the shortcut pools by averaging and pads new channels with zeros."""

    def __init__(self, channels: int, out_channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.stride, self.new_channels = stride, out_channels - channels

    def forward(self, x: Tensor) -> Tensor:
        residual = self.norm2(self.conv2(leaky_relu(self.norm1(self.conv1(x)), _SLOPE)))
        shortcut = pad(avg_pool2d(x, self.stride), (0, 0, 0, 0, 0, self.new_channels))
        return leaky_relu(shortcut + residual, _SLOPE)


class DigitsNet(nn.Module):
    """Three residual blocks from 8 × 8 to 4 × 4 pixels, 64 channels pooled to 2 × 2 as features, a linear head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.LeakyReLU(_SLOPE))
        self.blocks = nn.Sequential(
            ResidualBlock(32, 32, stride=1), ResidualBlock(32, 64, stride=2), ResidualBlock(64, 64, stride=1)
        )
        self.pool = nn.AvgPool2d(2)
        self.head = nn.Linear(256, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.blocks(self.stem((x - _MEAN) / _STD))).flatten(1))


def make_network(seed: int) -> DigitsNet:
    """A network with random weights that depend on the seed alone; torch's own random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DigitsNet()


def load_network(path: str | os.PathLike[str]) -> DigitsNet:
    """The demo's network with the weights in `path`, ready to predict."""
    network = DigitsNet()
    network.load_state_dict(safetensors.torch.load_file(path))
    return network.eval()
