"""What every metric asks of its input."""

import math
from fractions import Fraction

import torch
from torch import Tensor

from ddu.errors import InputError


def without_nan(metric: str, what: str, values: Tensor) -> Tensor:
    """The values in float64 on the CPU, which has float64 everywhere."""
    values = values.detach().cpu().double()
    if torch.isnan(values).any():
        raise InputError(f"{metric} of NaN {what} has no meaning: find where they come from.")
    return values


def check_share(metric: str, name: str, share: float) -> None:
    """Refuses what is not in (0, 1]."""
    if not 0 < share <= 1:
        raise InputError(f"The {name} of {metric} must be above 0 and at most 1. Got {share!r} instead.")


def count_for(share: float, total: int) -> int:
    """The fewest of `total` that are at least this share of it, with the share as it was written.

    >>> count_for(0.07, 100)  # not 8, although 0.07 * 100 is 7.000000000000001
    7
    """
    return math.ceil(Fraction(str(float(share))) * total)
