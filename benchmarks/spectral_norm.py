"""A training step with spectral norm against the same network without it.

    python -m benchmarks.spectral_norm [--batch-size 128] [--rounds 7]

Target: a ratio under 1.10 for ResNet-18 with a CIFAR stem at batch 128, in one to three minutes on two slow cores.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddu.layers import AvgPoolShortcut, spectral_norm

Model = Callable[[], nn.Module]
Step = Callable[[], None]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a pooled shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.LeakyReLU(0.01),
            nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut = AvgPoolShortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(self.residual(x) + self.shortcut(x), 0.01)


def resnet18(num_classes: int = 10) -> nn.Module:
    """ResNet-18 for 32x32 images, without spectral norm."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.LeakyReLU(0.01)]
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [BasicBlock(channels, width, stride), BasicBlock(width, width, 1)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


def normalised_resnet18(num_classes: int = 10) -> nn.Module:
    """The same with a spectral norm on every convolution."""
    model = resnet18(num_classes)
    for module in list(model.modules()):
        if isinstance(module, nn.Conv2d):
            spectral_norm(module)
    return model


def training_step(model: nn.Module, images: Tensor, labels: Tensor) -> Step:
    """One step of SGD as a function; its first call warms everything up."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

    def step() -> None:
        optimiser.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimiser.step()

    return step


def compare(plain: Model, normalised: Model, batch_size: int, rounds: int) -> None:
    """Times training steps of two networks for 3x32x32 images in turns, and prints the median of their ratio."""
    torch.manual_seed(0)
    images, labels = torch.randn(batch_size, 3, 32, 32), torch.randint(10, (batch_size,))
    steps = [training_step(make(), images, labels) for make in (plain, normalised)]
    times = [[seconds(step) for step in steps] for _ in range(rounds + 1)][1:]  # the first round warms up
    base, ours = (median(column) for column in zip(*times, strict=True))
    quotient = median(b / a for a, b in times)
    print(f"plain {base:.3f} s, spectral norm {ours:.3f} s a step at batch {batch_size}: ratio {quotient:.3f}")


def seconds(step: Step) -> float:
    """The time of one call."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main() -> None:
    """Parses the command line and prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    compare(resnet18, normalised_resnet18, arguments.batch_size, arguments.rounds)


if __name__ == "__main__":
    main()
