"""A small training that other processes run: python moons.py OUTPUT."""

import sys
from typing import Any

import torch
from torch.utils.data import Dataset

from ddu import create_model, data
from ddu.training import Training, fit

EPOCHS = 8


class Shaking(Dataset[data.Batch]):
    """Inputs with noise from torch's random state, as people's own augmentations have it."""

    def __init__(self, points: data.ArrayDataset) -> None:
        self.points = points

    def __len__(self) -> int:
        return len(self.points)

    def __getitems__(self, indices: list[int]) -> data.Batch:
        inputs, labels = self.points.__getitems__(indices)
        return inputs + 0.05 * torch.randn_like(inputs), labels


def train(output: str | None, **options: Any) -> Training:
    """Shaking data, dropout, spectral norm and a schedule: all that an exact resume has to bring back."""
    torch.manual_seed(0)
    model = create_model("resffn2_32", num_classes=2, spectral_norm=0.9, dropout=0.1)
    moons = Shaking(data.load("two_moons"))
    recipe: dict[str, Any] = {"epochs": EPOCHS, "batch_size": 16, "schedule": "cosine"} | options
    return fit(model, moons, data.load("two_moons", "test"), recipe="two_moons", output=output, **recipe)


if __name__ == "__main__":
    train(sys.argv[1])
