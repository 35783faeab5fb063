"""What the disagreement of an ensemble says about the entropies of its members."""

import math
from typing import NamedTuple

from torch import Tensor

from ddu.errors import InputError
from ddu.measures import entropy, mutual_information, predictive_entropy


class EntropyOrder(NamedTuple):
    """How the members order two inputs by entropy, and what the ensemble's uncertainties imply about that.

    Attributes:
        information_gap: δ = I₁ − I₂, how much more the members disagree on the first input.
        entropy_gap: ε = |H₁ − H₂|, how far the predictive entropies are apart.
        guaranteed_drop: δ − ε. Some member has an entropy of the first input lower by at least this.
        largest_drop: max_ω (H₂(ω) − H₁(ω)), by how much it really is lower for some member.
        share: The share of the members with a lower entropy of the first input.
        guaranteed_share: The least such share, (δ − ε)⁺ / log K.
    """

    information_gap: Tensor
    entropy_gap: Tensor
    guaranteed_drop: Tensor
    largest_drop: Tensor
    share: Tensor
    guaranteed_share: Tensor


def compare_entropies(first: Tensor, second: Tensor) -> EntropyOrder:
    """The paper's proposition about ensembles, for two inputs, or many pairs of them.

    The mean entropy of the members is H − I, so for D(ω) = H₁(ω) − H₂(ω)

        E[D] = (H₁ − H₂) − (I₁ − I₂) ≤ ε − δ,

    and a random number is not always above its mean: min D ≤ E[D] ≤ −(δ − ε). Since D ≥ −log K for K classes, also
    E[D] ≥ −log K · P(D < 0), which bounds how many members there are. Where ε ≥ δ nothing is implied.

    Different from the paper: its proof compares members with the mean entropy E[H₂(ω)], and then concludes for each
    member; D is what makes that step.

    Args:
        first: Logits of the first input of each pair, (member, ..., class).
        second: Those of the second, of the same members, (member, ..., class).
    """
    if first.shape != second.shape or first.ndim < 2 or first.shape[-1] < 2:
        raise InputError(
            f"Both inputs need logits (member, ..., class) of at least two classes. Got the shapes "
            f"{tuple(first.shape)} and {tuple(second.shape)}."
        )
    first, second = first.double(), second.double()
    information = mutual_information(first) - mutual_information(second)
    apart = (predictive_entropy(first) - predictive_entropy(second)).abs()
    drops = entropy(second) - entropy(first)
    guaranteed = information - apart
    return EntropyOrder(
        information,
        apart,
        guaranteed,
        drops.amax(0),
        (drops > 0).double().mean(0),
        guaranteed.clamp(min=0) / math.log(first.shape[-1]),
    )
