"""Leaving classes out of a sum where their share is below rounding."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ddu.density.scorers.scorer import Scorer

# Numbers of differences to class means that are held at a time: many, since every block costs some 20 calls
_BLOCK = 2**21

# Numbers of differences that are gathered at a time for the pairs of points and classes that are not left out
_GATHERED = 2**22


class PruningScorer(Scorer):
    """Works out the distances to those classes alone that a bound does not prove to be below rounding in the sum."""

    mean: Tensor

    @abstractmethod
    def _distances_to(self, labels: list[int], deltas: Sequence[Tensor]) -> Tensor:
        """Squared distances to some classes, (pair,), from differences to the mean of each, (batch, feature)."""

    def _fill_in(self, x: Tensor, joint: Tensor, wanted: Tensor) -> None:
        """Works out what is wanted of `joint`, log π_c p(x | c), (class, batch)."""
        # Its loop is that of other classes for every batch, which the compiler would compile anew each time
        fill: Any = torch.compiler.disable(self._fill) if torch.compiler.is_compiling() else self._fill
        fill(x, joint, wanted)

    def _fill(self, x: Tensor, joint: Tensor, wanted: Tensor) -> None:
        labels, rows = wanted.nonzero(as_tuple=True)
        if not len(labels):
            return
        step = max(_GATHERED // x.shape[1], 1)
        # One gather for many classes: of a small batch, most of them want a point or two
        for label, row in zip(labels.split(step), rows.split(step), strict=True):
            present, counts = label.unique_consecutive(return_counts=True)
            delta = (x[row] - self.mean[label]).split(counts.tolist())
            distances = self._distances_to(present.tolist(), delta)
            joint[label, row] = self.log_norm[label] + self.log_prior[label] - 0.5 * distances


def rounding_margin(num_classes: int, dtype: torch.dtype) -> float:
    """How far below the largest of C terms another counts for nothing: C of eps / C are below rounding in the sum."""
    return math.log(num_classes) - math.log(torch.finfo(dtype).eps)


def class_blocks(mean: Tensor, points: int, size: int | None = None) -> Iterator[slice]:
    """The classes, so many at a time that their differences to points of so many numbers fill a block."""
    step = max((size or _BLOCK) // max(points, 1), 1)
    return (slice(start, start + step) for start in range(0, len(mean), step))
