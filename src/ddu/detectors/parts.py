"""Passes over labelled data or a part of it; those of several processes over their parts add up to one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from ddu.detectors.inputs import SeenInputs
from ddu.detectors.labels import Agreement
from ddu.detectors.probes import Probes
from ddu.errors import InputError

T = TypeVar("T")


class Mergeable(Protocol):
    """Sums over samples, such as moments."""

    def merge(self, other: Any) -> Any:
        """Adds the samples that another one has seen."""
        ...


@dataclass
class Pass:
    """What the checks know of a pass.

    Attributes:
        labels: How they agree with the predictions; None if there was no batch.
        inputs: What is remembered of the inputs.
    """

    labels: Agreement | None = None
    inputs: SeenInputs = field(default_factory=SeenInputs)

    def merge(self, other: Any) -> Self:
        """Adds a pass over the rows that follow."""
        self.labels = either(self.labels, other.labels, Agreement.merge)
        self.inputs.merge(other.inputs)
        return self

    def check(self, purpose: str, *, every_class: bool = False) -> None:
        """Refuses a pass without batches, and warns of labels that agree with the model no more than by chance."""
        if self.labels is None:
            raise InputError(
                f"The loader gave no batches, so there is nothing {purpose}: check its data set and sampler."
            )
        if not every_class or bool((self.labels.labels > 0).all()):  # or the labels are refused
            self.labels.warn_of_chance()


@dataclass
class Learned(Pass):
    """What a detector learned from a part of the training data.

    Attributes:
        state: What it collected; None if there was no batch.
    """

    state: Mergeable | None = None

    def merge(self, other: Any) -> Self:
        """Adds what was learned from another part."""
        self.state = either(self.state, other.state, lambda one, two: one.merge(two) or one)
        return super().merge(other)


@dataclass
class Judged(Pass):
    """A part of the held-out data: logits, scores and labels, in order.

    Attributes:
        columns: The columns of an `Evidence`, each a tensor with a row per sample or None; then the labels or None.
        probes: The first images.
    """

    columns: tuple[Tensor | None, ...] | None = None
    probes: Probes = field(default_factory=Probes)

    def merge(self, other: Any) -> Self:
        """Adds the part that follows."""
        self.columns = either(self.columns, other.columns, _joined)
        self.probes.add(other.probes.images)
        return super().merge(other)


def either(one: T | None, two: T | None, merge: Callable[[T, T], T]) -> T | None:
    """Two values merged, or the one that is there."""
    return one if two is None else two if one is None else merge(one, two)


def _joined(one: tuple[Tensor | None, ...], two: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(a if a is None or b is None else torch.cat([a, b]) for a, b in zip(one, two, strict=True))
