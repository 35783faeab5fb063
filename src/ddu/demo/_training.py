"""The training loop: cross-entropy, AdamW, one cycle of the learning rate."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, nn
from torch.nn.functional import cross_entropy

from ddu.data import LabelledImages

_BATCH = 64
_LEARNING_RATE = 1e-2


@dataclass(frozen=True)
class Step:
    """Where training stands.

    Attributes:
        done: Share of all steps taken.
        epoch: The pass over the data that is under way, from 1.
        loss: Running mean of the loss.
        accuracy: Running mean of the accuracy on the batches that are trained on.
    """

    done: float
    epoch: int
    loss: float
    accuracy: float


def train(model: nn.Module, data: LabelledImages, epochs: int, generator: Generator) -> Iterator[Step]:
    """Trains `model` in place and tells after every step how it goes; the incomplete batch of an epoch is skipped."""
    model.train()
    steps = epochs * (len(data) // _BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=_LEARNING_RATE, total_steps=steps)
    loss_mean = accuracy_mean = None
    taken = 0
    for epoch in range(1, epochs + 1):
        order = torch.randperm(len(data), generator=generator)
        for rows in order[: steps // epochs * _BATCH].split(_BATCH):
            logits, labels = model(data.images[rows]), data.labels[rows]
            loss = cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            taken += 1
            loss_mean = _running(loss_mean, loss.item())
            accuracy_mean = _running(accuracy_mean, (logits.argmax(1) == labels).float().mean().item())
            yield Step(taken / steps, epoch, loss_mean, accuracy_mean)
    model.eval()


def _running(mean: float | None, value: float) -> float:
    return value if mean is None else 0.95 * mean + 0.05 * value
