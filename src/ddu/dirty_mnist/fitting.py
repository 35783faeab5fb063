"""Training of the generator's small networks: `ddu.training.fit`, with progress and a seed for every purpose."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from ddu.data import ArrayDataset
from ddu.data.dirty_mnist_format import seed_for
from ddu.training import CrossEntropy, Objective, Recipe, fit

Progress = Callable[[str, float, str], None]
"""Called with a stage, the share of it that is done, and a note."""

adam = partial(Recipe, optimiser="adam", lr=1e-3, weight_decay=0.0, gamma=0.2)
"""The recipe of all networks here: Adam, and a learning rate that falls to a fifth at each of the `milestones`."""


@contextmanager
def seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """torch's random state for one purpose; afterwards it is as it was."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed_for(seed, *purpose))
        yield


def train(
    network: nn.Module,
    digits: ArrayDataset,
    recipe: Recipe,
    progress: Callable[[float, str], None],
    seed: int,
    *purpose: str | int,
    validation: ArrayDataset | None = None,
    objective: Objective | None = None,
) -> None:
    """Trains a network in place, on the CPU, so that the same seed gives the same weights.

    Args:
        network: What to train.
        digits: What it learns from.
        recipe: How; with `select="best"` the epoch with the highest validation accuracy is kept.
        progress: Is told after each step the share of all steps that is done, and a note.
        seed: Decides, with the purpose, the order of the samples.
        *purpose: What the network is for.
        validation: Held-out digits, judged after every epoch.
        objective: What to minimise; the cross-entropy by default.
    """
    steps = math.ceil(len(digits) / recipe.batch_size)
    told = _Told(objective or CrossEntropy(), recipe.epochs, steps, progress)
    with torch.random.fork_rng([]):
        fit(
            network,
            digits,
            validation,
            recipe=recipe,
            objective=told,
            seed=seed_for(seed, *purpose),
            accelerator="cpu",
            progress=False,
        )


class _Told(Objective):
    """Another objective, and someone who is told after each step how far the training is."""

    def __init__(self, objective: Objective, epochs: int, steps: int, progress: Callable[[float, str], None]) -> None:
        self.objective, self.epochs, self.steps, self.progress = objective, epochs, steps, progress
        self.step = 0
        self.value = math.nan

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        loss, scores = self.objective.loss(model, inputs, labels)
        if torch.is_grad_enabled():  # not in validation
            self.value = loss.item()
        return loss, scores

    def after_step(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
        self.objective.after_step(model, inputs, labels)
        epoch = self.step // self.steps + 1
        self.step += 1
        self.progress(self.step / (self.steps * self.epochs), f"epoch {epoch} of {self.epochs}, loss {self.value:.2f}")

    def on_epoch_start(self, model: nn.Module) -> None:
        self.objective.on_epoch_start(model)
