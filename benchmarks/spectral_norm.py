"""A training step with spectral norm against the same network without it.

    python -m benchmarks.spectral_norm

Target: a ratio under 1.10 for ResNet-18 and for a narrow Wide-ResNet-28-10, both on 3 x 32 x 32 images at batch 128.
"""

from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import cross_entropy

from benchmarks._ratio import Ratio, seconds
from ddu.models import create_model

BATCH = 128
NETWORKS = {"ResNet-18": ("resnet18", 1.0), "narrow Wide-ResNet-28-10": ("wide_resnet28_10", 0.2)}


def training_step(name: str, width: float, spectral_norm: float | None) -> Callable[[], None]:
    """One step of SGD as a function."""
    torch.manual_seed(0)
    model = create_model(name, width=width, spectral_norm=spectral_norm)
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    def step() -> None:
        optimiser.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimiser.step()

    return step


def run() -> Iterator[Ratio]:
    """All ratios of this file."""
    for shown, (name, width) in NETWORKS.items():
        plain, normalised = seconds(training_step(name, width, None), training_step(name, width, 3.0), rounds=9)
        yield Ratio(f"training step of {shown}: spectral norm / none", normalised / plain, "under 1.10")


if __name__ == "__main__":
    for ratio in run():
        print(ratio, flush=True)
