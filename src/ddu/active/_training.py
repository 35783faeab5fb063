"""What networks are trained on in a round, and how."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from ddu.active._candidates import read_batch, read_inputs
from ddu.data import Batch
from ddu.training import Objective, Recipe, fit


class Trainer(Protocol):
    """Trains a network in place."""

    def __call__(self, model: nn.Module, train: Dataset[Any], validation: Dataset[Any] | None, *, seed: int) -> object:
        """Trains; whatever is random depends on the seed, or on torch's random state, which is seeded before."""
        ...


def by_recipe(
    recipe: Recipe | str = "active_learning",
    *,
    objective: Callable[[], Objective] | None = None,
    progress: bool | None = False,
    **changes: Any,
) -> Trainer:
    """Training by a recipe of `ddu.training`.

    Args:
        recipe: A recipe, or the name of one.
        objective: Makes what is minimised; by default what the head of the network is made for.
        progress: As in `ddu.training.fit`.
        **changes: Fields of the recipe to change, such as `epochs=3`.
    """

    def train(model: nn.Module, train: Dataset[Any], validation: Dataset[Any] | None, *, seed: int) -> object:
        chosen = None if objective is None else objective()
        return fit(model, train, validation, recipe=recipe, seed=seed, objective=chosen, progress=progress, **changes)

    return train


class LabelledSamples(Dataset[Batch]):
    """The samples that were labelled from the start, and then those of a pool in the order they were taught.

    Args:
        initial: Samples (input, label), or None.
        pool: What the others are from.
        indices: Where in the pool they are, (sample,).
        labels: Their labels, (sample,).
    """

    def __init__(self, initial: Any, pool: Any, indices: np.ndarray, labels: np.ndarray) -> None:
        self.initial, self.pool, self.indices, self.labels = initial, pool, indices, labels
        self._first = 0 if initial is None else len(initial)

    def __len__(self) -> int:
        return self._first + len(self.indices)

    def __getitem__(self, position: int) -> Batch:
        inputs, labels = self.__getitems__([position])
        return inputs[0], labels[0]

    def __getitems__(self, positions: Sequence[int]) -> Batch:
        wanted = np.asarray(positions)
        parts: list[tuple[np.ndarray, Batch]] = []
        initial, taught = np.flatnonzero(wanted < self._first), np.flatnonzero(wanted >= self._first)
        if len(initial):
            inputs, labels = read_batch(self.initial, wanted[initial])
            parts.append((initial, (inputs, torch.as_tensor(labels).long())))
        if len(taught):
            rows = wanted[taught] - self._first
            labels = torch.from_numpy(self.labels[rows])
            parts.append((taught, (read_inputs(self.pool, self.indices[rows]), labels)))
        back = np.argsort(np.concatenate([places for places, _ in parts]))
        inputs, labels = zip(*(batch for _, batch in parts), strict=True)
        return torch.cat(inputs)[back], torch.cat(labels)[back]
