"""A small training that other processes run: python moons.py OUTPUT [--paused-in EPOCH] [--thread]."""

import argparse
import threading
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from ddu import create_model, data
from ddu.training import CrossEntropy, Training, fit

EPOCHS = 5


class Shaking(Dataset[data.Batch]):
    """Inputs with noise from torch's random state, as people's own augmentations have it."""

    def __init__(self, points: data.ArrayDataset) -> None:
        self.points = points

    def __len__(self) -> int:
        return len(self.points)

    def __getitems__(self, indices: list[int]) -> data.Batch:
        inputs, labels = self.points.__getitems__(indices)
        return inputs + 0.05 * torch.randn_like(inputs), labels


class Pausing(CrossEntropy):
    """Says so and waits in the middle of an epoch, for somebody to end the process there."""

    def __init__(self, epoch: int | None) -> None:
        super().__init__()
        self.epoch, self.epochs, self.batches = epoch, 0, 0

    def on_epoch_start(self, model: nn.Module) -> None:
        self.epochs, self.batches = self.epochs + 1, 0

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.batches += 1
        if (self.epochs, self.batches) == (self.epoch, 3):
            print("paused", flush=True)
            time.sleep(600)
        return super().loss(model, inputs, labels)


def train(output: Any, **options: Any) -> Training:
    """Shaking data, dropout, spectral norm and a schedule: all that an exact resume has to bring back."""
    torch.manual_seed(0)
    model = create_model("resffn2_16", num_classes=2, spectral_norm=0.9, dropout=0.1)
    moons = Shaking(data.load("two_moons").subset(range(96)))
    test = data.load("two_moons", "test").subset(range(64))
    recipe: dict[str, Any] = {"epochs": EPOCHS, "batch_size": 16, "schedule": "cosine", "progress": False} | options
    return fit(model, moons, test, recipe="two_moons", output=output, **recipe)


class Forgetful(CrossEntropy):
    """Ruins the network in every epoch after the second."""

    def __init__(self, done=0):
        super().__init__()
        self.epoch = done

    def on_epoch_start(self, model):
        self.epoch += 1

    def after_step(self, model, inputs, labels):
        if self.epoch > 2:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()


def points(count=96, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--paused-in", type=int)
    parser.add_argument("--thread", action="store_true")
    given = parser.parse_args()
    run = threading.Thread(target=train, args=[given.output], kwargs={"objective": Pausing(given.paused_in)})
    if given.thread:
        run.start()
        run.join()
    else:
        run.run()
