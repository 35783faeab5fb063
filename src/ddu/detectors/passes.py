"""Passes over labelled data or a part of it; those of several processes over their parts add up to one.

Learned, Judged    what there is of a part: of the training data, and of the held-out data
labelled           the batches of a pass, with labels that belong to the model
gathered           the same rows in larger batches
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from ddu.detectors.inputs import SeenInputs
from ddu.detectors.interface import AbstractDetector, Evidence, join_evidence
from ddu.detectors.labels import Agreement, as_classes, check_ahead, labels_of
from ddu.detectors.probes import Probes
from ddu.errors import InputError, LogitsWarning
from ddu.features import FeatureBatch, extract
from ddu.features.forward import are_log_probabilities, check_logits
from ddu.features.loaders import batches_of
from ddu.messages import frames_to_the_caller

T = TypeVar("T")

BATCH = 512
"""Inputs per forward pass, of a tensor, an array or a data set."""

# Rows of features gathered before something is learned from them: long matrix products instead of many short ones
_ROWS = 4096


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

    def check(self, purpose: str, *, every_class: bool = False) -> Tensor:
        """Refuses a pass without batches, and warns of labels that agree with the model no more than by chance.

        Returns:
            The samples of each class.
        """
        if self.labels is None:
            raise no_batches(purpose)
        counts = self.labels.labels
        if not every_class or bool((counts > 0).all()):  # or the labels are refused
            self.labels.warn_of_chance()
        return counts


@dataclass
class Learned(Pass):
    """What a detector learned from a part of the training data.

    Attributes:
        state: What it collected; None if there was no batch.
    """

    state: Any = None

    def merge(self, other: Any) -> Self:
        """Adds what was learned from another part."""
        self.state = either(self.state, other.state, lambda one, two: one.merge(two) or one)
        return super().merge(other)


@dataclass
class Judged(Pass):
    """A part of the held-out data: logits, scores and labels, in order.

    Attributes:
        evidence: What the detector says of them; None if there was no batch.
        truth: Their labels, where they have some.
        probes: The first images.
    """

    evidence: Evidence | None = None
    truth: Tensor | None = None
    probes: Probes = field(default_factory=Probes)

    def merge(self, other: Any) -> Self:
        """Adds the part that follows."""
        self.evidence = either(self.evidence, other.evidence, lambda one, two: join_evidence([one, two]))
        self.truth = either(self.truth, other.truth, lambda one, two: torch.cat([one, two]))
        self.probes.add(other.probes.images)
        return super().merge(other)


def either(one: T | None, two: T | None, merge: Callable[[T, T], T]) -> T | None:
    """Two values merged, or the one that is there."""
    return one if two is None else two if one is None else merge(one, two)


def no_batches(purpose: str) -> InputError:
    """The error of a pass without batches."""
    return InputError(f"The loader gave no batches, so there is nothing {purpose}: check its data set and sampler.")


def labelled(
    detector: AbstractDetector,
    run: Callable[[Any], FeatureBatch],
    loader: Iterable[Any],
    seen: Pass,
    *,
    progress: bool | None,
    every_class: bool = False,
) -> Iterator[FeatureBatch]:
    """Batches with labels, checked against the model: after the first batch where possible; `seen` has the rest."""
    for batch in extract(run, loader, progress=progress):
        num_classes = batch.logits.shape[1]
        if seen.labels is None:
            seen.labels = Agreement(num_classes)
            detector.check_class_names(num_classes)
            check_ahead(loader, num_classes, detector.classes, every_class=every_class)
            _warn_of_log_probabilities(detector, batch.logits)
        check_logits(batch.logits)
        labels = as_classes(labels_of(batch), num_classes, detector.classes)
        seen.labels.add(batch.logits, labels)
        yield batch._replace(labels=labels)


def unlabelled(
    detector: AbstractDetector, run: Callable[[Any], FeatureBatch], inputs: Any, *, progress: bool | None
) -> Iterator[FeatureBatch]:
    """Batches of whatever `predict` takes, checked as well."""
    for number, one in enumerate(batches_of(inputs, BATCH, progress=progress)):
        batch = run(one)
        check_logits(batch.logits)
        if number == 0:
            _warn_of_log_probabilities(detector, batch.logits)
        yield batch


def gathered(batches: Iterable[FeatureBatch]) -> Iterator[FeatureBatch]:
    """The same rows in larger batches."""
    waiting: list[FeatureBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(len(b.features) for b in waiting) >= _ROWS:
            block = [joined(waiting)]
            waiting.clear()  # what is learned from needs no second copy
            yield block.pop()
    if waiting:
        yield joined(waiting)


def joined(batches: Sequence[FeatureBatch]) -> FeatureBatch:
    """Batches with labels as one."""
    rows = [(batch.features, batch.logits, labels_of(batch)) for batch in batches]
    return FeatureBatch(*(torch.cat(column) for column in zip(*rows, strict=True)))


def _warn_of_log_probabilities(detector: AbstractDetector, logits: Tensor) -> None:
    """Warns of logits whose energy is the same for every input, where that is a part of the score."""
    if detector.needs_energy and are_log_probabilities(logits):
        warnings.warn(
            f"The model returns log-probabilities instead of logits: exp of each of {len(logits)} rows sums to 1. "
            "The energy -log Σ exp(logit) is then 0 whatever the input, and tells nothing: leave out the model's "
            "log-softmax, for instance model[:-1], or the energy of the score, ddu.DDU(model, energy=False).",
            LogitsWarning,
            stacklevel=frames_to_the_caller(),
        )
