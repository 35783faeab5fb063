"""How features follow inputs: |f(x) - f(x')| / |x - x'| of pairs, estimated from below and from above.

A map is bi-Lipschitz if these ratios lie between two positive bounds. A tiny one says that two different inputs have
nearly the same features: the map is insensitive, and a density cannot tell them apart. A huge one says that a small
change of an input throws its features far away: the map is not smooth, and distances mean little. Pairs only bound the
constants from inside: the true lower one is at most the smallest ratio, the true upper one at least the largest.
"""

from typing import NamedTuple

import torch
from torch import Tensor

_PAIRS = 4000
# The length of a perturbation, as a share of the median distance between two inputs
_STEP = 0.02
_QUANTILES = (0.01, 0.5, 0.99)


class Ratios(NamedTuple):
    """Quantiles of ratios: 1 %, the median, and 99 %."""

    lower: float
    median: float
    upper: float

    def over(self, unit: float) -> "Ratios":
        """In units of another ratio."""
        return Ratios(*(value / unit if unit > 0 else float("nan") for value in self))


def draw_pairs(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of different samples; all pairs where there are no more than are drawn."""
    first, second = torch.triu_indices(count, count, 1)
    chosen = torch.randperm(len(first), generator=generator)[:_PAIRS]
    return first[chosen], second[chosen]


def pair_ratios(inputs: Tensor, features: Tensor) -> Ratios:
    """The ratios of pairs of samples; pairs of equal inputs are left out.

    >>> pair_ratios(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[0.0], [2.0], [6.0]]))
    Ratios(lower=2.0, median=2.0, upper=2.0)
    """
    first, second = draw_pairs(len(inputs), torch.Generator().manual_seed(0))
    return _ratios(_distance(features[first], features[second]), _distance(inputs[first], inputs[second]))


def perturbations(inputs: Tensor) -> Tensor:
    """The inputs with a little noise added: 2 % of the median distance between two of them, in a random direction."""
    generator = torch.Generator().manual_seed(0)
    first, second = draw_pairs(len(inputs), generator)
    length = _STEP * float(_distance(inputs[first], inputs[second]).median())
    noise = torch.randn(inputs.shape, generator=generator).to(inputs)
    return inputs + noise * (length / noise.flatten(1).norm(dim=1)).view(-1, *[1] * (inputs.ndim - 1))


def local_ratios(inputs: Tensor, features: Tensor, moved: Tensor, moved_features: Tensor) -> Ratios:
    """The ratios of samples and their `perturbations`."""
    return _ratios(_distance(moved_features, features), _distance(moved, inputs))


def _ratios(out: Tensor, into: Tensor) -> Ratios:
    apart = into > 0
    ratios = out[apart] / into[apart]
    if not len(ratios):
        return Ratios(*[float("nan")] * 3)
    return Ratios(*torch.quantile(ratios, ratios.new_tensor(_QUANTILES)).tolist())


def _distance(first: Tensor, second: Tensor) -> Tensor:
    return (first.flatten(1).cpu().double() - second.flatten(1).cpu().double()).norm(dim=1)
