"""A plain loop for small networks: Adam, and a learning rate that falls in steps."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

_DROP = 0.2


@dataclass(frozen=True)
class Training:
    """How long and how fast a network learns.

    Attributes:
        epochs: Passes over the data.
        batch: Samples a step.
        learning_rate: Adam's, to begin with.
        drops: Epochs after which the learning rate falls to a fifth.
    """

    epochs: int
    batch: int = 128
    learning_rate: float = 1e-3
    drops: tuple[int, ...] = ()


@dataclass(frozen=True)
class Step:
    """Where training stands.

    Attributes:
        epoch: The pass over the data that is under way, from 1.
        ends_epoch: Whether this was its last step.
        done: Share of all steps taken.
        loss: Of this step.
    """

    epoch: int
    ends_epoch: bool
    done: float
    loss: float


def train(
    model: nn.Module, loss: Callable[[Tensor], Tensor], samples: int, training: Training, generator: Generator
) -> Iterator[Step]:
    """Trains `model` in place on `loss(rows)` of shuffled rows, and tells after every step how it goes.

    The model is in evaluation mode whenever an epoch ends.
    """
    steps = -(-samples // training.batch)
    optimizer = torch.optim.Adam(model.parameters(), lr=training.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(training.drops), gamma=_DROP)
    for epoch in range(1, training.epochs + 1):
        model.train()
        for step, rows in enumerate(torch.randperm(samples, generator=generator).split(training.batch), start=1):
            value = loss(rows)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            model.train(step < steps)
            done = ((epoch - 1) * steps + step) / (training.epochs * steps)
            yield Step(epoch, step == steps, done, value.item())
        schedule.step()
