"""The speed of a loader over that of the training of a narrow ResNet-18, in images per second.

    python -m benchmarks.loading

Target: over 5, for grey images of 28 x 28 and colour images of 32 x 32 at batch 128, by one process. The images are
noise in a memory-mapped file under a temporary root, so no data set is needed; real images have as many bytes.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks._ratio import Ratio, compare
from ddu.data import ArrayDataset, load, loader
from ddu.models import create_model

BATCH = 128
SAMPLES = 50_000
STEPS = 8
SETS = {"MNIST": ("mnist", (28, 28)), "CIFAR-10": ("cifar10", (32, 32, 3))}


def noise_set(name: str, shape: tuple[int, ...], root: Path) -> ArrayDataset:
    """A set of noise under a known name, read back from its file."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (SAMPLES, *shape), dtype=np.uint8)
    np.savez(root / f"{name}.npz", x_train=images, y_train=random.integers(0, 10, SAMPLES))
    return load(name, root=root)


def epoch(dataset: ArrayDataset) -> Callable[[], None]:
    """A pass over the shuffled set that does nothing with the batches."""

    def run() -> None:
        for _ in loader(dataset, BATCH, shuffle=True):
            pass

    return run


def training(dataset: ArrayDataset) -> Callable[[], None]:
    """A few steps of SGD with a ResNet-18 of a quarter of the width."""
    torch.manual_seed(0)
    images, labels = dataset.__getitems__(range(BATCH))
    model = create_model("resnet18", in_channels=images.shape[1], width=0.25)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    def run() -> None:
        for _ in range(STEPS):
            optimiser.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimiser.step()

    return run


def run() -> Iterator[Ratio]:
    """All ratios of this file."""
    with tempfile.TemporaryDirectory() as root:
        for shown, (name, shape) in SETS.items():
            dataset = noise_set(name, shape, Path(root))
            (times,) = compare(epoch(dataset), training(dataset))
            values = [time * SAMPLES / (STEPS * BATCH) for time in times]
            yield Ratio(f"{shown}, images per second: loader / training of a narrow ResNet-18", values, over=5)


if __name__ == "__main__":
    for ratio in run():
        print(ratio, flush=True)
