"""Several seeds as one figure."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ddu.errors import InputError
from ddu.metrics._checks import without_nan


@dataclass(frozen=True)
class MeanAndStandardError:
    """The mean of several runs, and how far it is from the mean of infinitely many.

    Attributes:
        mean: The mean.
        standard_error: The standard error of the mean; None for a single run, which says nothing about the spread.
        count: The number of runs.
    """

    mean: float
    standard_error: float | None
    count: int


def mean_and_standard_error(values: Iterable[float]) -> MeanAndStandardError:
    """The mean of n values and its standard error s / √n, where s² = Σ (v - mean)² / (n - 1).

    >>> mean_and_standard_error([1.0, 2.0, 3.0, 4.0])
    MeanAndStandardError(mean=2.5, standard_error=0.6454972243679028, count=4)
    >>> mean_and_standard_error([0.9])
    MeanAndStandardError(mean=0.9, standard_error=None, count=1)
    """
    sample = without_nan("The mean", "values", torch.tensor([float(value) for value in values], dtype=torch.float64))
    if len(sample) == 0:
        raise InputError("The mean of no values has no meaning: give at least one.")
    error = float(sample.std(correction=1)) / len(sample) ** 0.5 if len(sample) > 1 else None
    return MeanAndStandardError(float(sample.mean()), error, len(sample))
