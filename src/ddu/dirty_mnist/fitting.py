"""Training of the generator's small networks: `ddu.training.fit`, with progress and a seed for every purpose."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from ddu.data import ArrayDataset
from ddu.data.dirty_mnist_format import seed_for
from ddu.training import Objective, Recipe, fit

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
        progress: Called after every epoch, and about every second, with the share of all steps that is done and a note.
        seed: Decides, with the purpose, the order of the samples.
        *purpose: What the network is for.
        validation: Held-out digits, judged after every epoch.
        objective: What to minimise; the cross-entropy by default.
    """
    with torch.random.fork_rng([]):
        fit(
            network,
            digits,
            validation,
            recipe=recipe,
            objective=objective,
            seed=seed_for(seed, *purpose),
            accelerator="cpu",
            on_progress=progress,
        )
