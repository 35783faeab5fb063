"""Do labels belong to a model? They cover its classes, and agree with its predictions more than by chance does."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ddu.conformal import binomial_cdf
from ddu.density import check_counts, check_labels
from ddu.errors import LabelError, LabelWarning
from ddu.features import FeatureBatch
from ddu.features.loaders import are_given, listed_labels
from ddu.messages import frames_to_the_caller

# Agreement at least this improbable by chance is agreement
_LEVEL = 0.01
# Fewer samples than this, or too few to see a model a quarter of the way from chance to perfect, cannot tell
_FEWEST, _QUARTER, _SURELY = 30, 0.25, 1e-6


class Agreement:
    """How often the labels of a set are what a model predicts, summed up batch by batch."""

    def __init__(self, num_classes: int):
        self.labels = torch.zeros(num_classes, dtype=torch.int64)
        self.predictions = torch.zeros(num_classes, dtype=torch.int64)
        # Of labels as they are, and of labels + 1 and labels - 1
        self.hits = {0: 0, 1: 0, -1: 0}

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Adds a batch, whose labels are classes of the model."""
        predicted = logits.argmax(1)
        for counts, values in ((self.labels, labels), (self.predictions, predicted)):
            counts += torch.bincount(values, minlength=len(counts)).cpu()
        for shift in self.hits:
            self.hits[shift] += int((predicted == labels + shift).sum())

    def merge(self, other: "Agreement") -> "Agreement":
        """Adds the batches that another one has seen."""
        self.labels += other.labels
        self.predictions += other.predictions
        self.hits = {shift: hits + other.hits[shift] for shift, hits in self.hits.items()}
        return self

    def warn_of_chance(self) -> None:
        """Warns if the labels agree with the predictions no more than labels in random order would."""
        samples, num_classes = int(self.labels.sum()), len(self.labels)
        if samples < _FEWEST:
            return
        # Independent of each other, both are class c with the probability p_c q_c
        chance = float((self.labels / samples).double() @ (self.predictions / samples).double())
        visible = int(samples * (chance + _QUARTER * (1 - chance)))
        if not _beyond_chance(visible, samples, chance, _SURELY):
            return
        if _beyond_chance(self.hits[0], samples, chance, _LEVEL):
            return
        text = (
            f"The labels are what the model predicts for {self.hits[0]:,} of {samples:,} samples "
            f"({self.hits[0] / samples:.0%}), and would be for {chance:.0%} in random order."
        )
        shift = max((1, -1), key=self.hits.__getitem__)
        covered = int((self.labels > 0).sum())
        if _beyond_chance(self.hits[shift], samples, chance, _SURELY):
            text += f" They are off by one: y {'+' if shift > 0 else '-'} 1 is right for {self.hits[shift]:,}."
        elif covered < num_classes:
            text += (
                f" They cover {covered:,} of the model's {num_classes:,} classes: number them as in training, or give "
                "the model's class of each, ddu.DDU(model, classes=[...])."
            )
        else:
            text += " Check that they belong to these inputs, in this order, with the classes numbered as in training."
        warnings.warn(text, LabelWarning, stacklevel=frames_to_the_caller())


def _beyond_chance(hits: int, samples: int, chance: float, level: float) -> bool:
    """Whether so many hits or more are less probable than `level`, if each sample is one with probability `chance`."""
    if hits <= samples * chance:
        return False
    return binomial_cdf(samples - hits, samples, 1 - chance) < level


def as_classes(labels: Tensor, num_classes: int, kept: Sequence[int] | None) -> Tensor:
    """Labels as integers below the number of classes; `kept` are those of the model's classes that are kept."""
    try:
        return check_labels(labels, samples=len(labels), num_classes=num_classes)
    except LabelError as error:
        if kept is None:
            raise
        raise LabelError(f"{error} With classes={list(kept)!r}, they are counted from 0 in that order.") from error


def check_ahead(loader: Iterable[Any], num_classes: int, kept: Sequence[int] | None, *, every_class: bool) -> None:
    """Refuses labels that a data set lists before all of it is read."""
    labels = listed_labels(loader)
    if labels is None:
        return
    try:
        as_classes(labels, num_classes, kept)
        if every_class:
            check_coverage(torch.bincount(labels, minlength=num_classes))
    except LabelError:
        if are_given(labels, loader):
            raise


def check_coverage(counts: Tensor, *, is_learned: bool = False, way_out: str | None = None) -> None:
    """Every class of the model has samples, and enough for a variance.

    Args:
        counts: The samples of each class.
        is_learned: Whether `detector.keep_classes` could go on with the others.
        way_out: What to do about it, where the detector is not made by hand.
    """
    covered = counts.nonzero().flatten().tolist()
    empty = (counts == 0).nonzero().flatten().tolist()
    if empty:
        raise LabelError(
            f"The model has {len(counts):,} classes, and the labels of the {int(counts.sum()):,} training samples "
            f"cover {len(covered):,} of them; class {empty[0]} has none. {way_out or _way_out(covered, is_learned)}"
        )
    check_counts(counts)


def _way_out(covered: list[int], is_learned: bool) -> str:
    if len(covered) < 2:
        return "Add samples of every class."
    kept = f"[{', '.join(map(str, covered[:10]))}{', ...' if len(covered) > 10 else ''}]"
    advice = (
        f"Add samples of every class, or restrict the model to those of the data, classes={kept}, with labels from 0 "
        f"to {len(covered) - 1} in that order."
    )
    return advice + f" What this pass learned is kept: detector.keep_classes({kept})." * is_learned


def labels_of(batch: FeatureBatch) -> Tensor:
    """The labels, which batches from `extract` always have."""
    if batch.labels is None:
        raise LabelError("This batch has no labels: give them by batch._replace(labels=labels).")
    return batch.labels
