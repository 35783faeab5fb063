"""Do labels belong to a model? If they agree with its predictions no more than by chance, one of the two is wrong."""

import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor

from ddu.errors import LabelWarning

_PACKAGE = str(Path(__file__).parents[1])

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
                f" They cover {covered:,} of the model's {num_classes:,} classes: number them as in training, or "
                f"train a head of {covered:,} outputs."
            )
        else:
            text += " Check that they belong to these inputs, in this order, with the classes numbered as in training."
        warnings.warn(text, LabelWarning, stacklevel=_frames_to_the_caller())


def _beyond_chance(hits: int, samples: int, chance: float, level: float) -> bool:
    """Whether so many hits or more are less probable than `level`, if each sample is one with probability `chance`."""
    if hits <= samples * chance:
        return False
    k = torch.arange(hits, samples + 1, dtype=torch.float64)
    p, n = torch.tensor(chance, dtype=torch.float64), torch.tensor(samples, dtype=torch.float64)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    log_tail = torch.logsumexp(ways + k * p.log() + (n - k) * torch.log1p(-p), dim=0)
    return float(log_tail.exp()) < level


def _frames_to_the_caller() -> int:
    """The stacklevel at which `warnings.warn`, in the function that asks, names the code that called this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
