"""Which mixtures are ambiguous digits: filtered a chunk at a time, and then chosen evenly."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor, nn

from ddu.dirty_mnist.labellers import Labelled, ensemble_logits, labelled
from ddu.dirty_mnist.mixtures import Mixer, Mixing, Mixtures, draw_mixtures
from ddu.errors import InputError

_ROWS = 2048  # decoded and labelled at a time
_STROKE = 40  # pixels: about a third of what an MNIST digit covers


class FilterResult(IntEnum):
    """Whether a mixture passed the filters, or the first reason why not."""

    KEPT = 0
    PLAIN = 1
    MUDDLED = 2
    JUNK = 3
    FAINT = 4

    @property
    def words(self) -> str:
        """What that means."""
        return _WORDS[self]


_WORDS = {
    FilterResult.KEPT: "passed the filters",
    FilterResult.PLAIN: "plain: one reading only",
    FilterResult.MUDDLED: "muddled: too many readings",
    FilterResult.JUNK: "junk: the labellers disagree",
    FilterResult.FAINT: "faint: grey strokes",
}


@dataclass(frozen=True)
class Filters:
    """What a mixture must be like.

    Attributes:
        min_entropy: Of its soft label, in nats; less is plain.
        max_entropy: Likewise; more is muddled.
        min_second: Probability of the second likeliest label; less is plain.
        max_mutual_information: Of label and labeller, in nats; more is junk.
        min_ink: Mean of the 40 brightest pixels; less is faint.
        first_look: How sure the first labeller may be before the others are not even asked; 1 asks them always. This
            only saves time: what one labeller is sure of is either plain, or junk.
    """

    min_entropy: float
    max_entropy: float
    max_mutual_information: float
    min_second: float = 0.0
    min_ink: float = 0.0
    first_look: float = 1.0


@dataclass(frozen=True)
class Stratification:
    """How images are spread over classes and entropies.

    Attributes:
        images: How many to choose.
        bins: Equal intervals of entropy between the filters' limits.
        exponent: A stratum of n candidates gives images in proportion to n^exponent: 1 chooses at random, 0 flattens.
    """

    images: int = 6000
    bins: int = 50
    exponent: float = 0.2


def judge(labels: Labelled, images: Tensor, filters: Filters) -> np.ndarray:
    """The `FilterResult` of every image, (image,).

    Args:
        labels: What the ensemble says of them.
        images: (image, 784) in [0, 1].
        filters: What they must be like.
    """
    second = labels.probs.topk(2, dim=1).values[:, 1]
    reasons = {
        FilterResult.PLAIN: (labels.entropy < filters.min_entropy) | (second < filters.min_second),
        FilterResult.MUDDLED: labels.entropy > filters.max_entropy,
        FilterResult.JUNK: labels.mutual_information > filters.max_mutual_information,
        FilterResult.FAINT: images.topk(_STROKE, dim=1).values.mean(1) < filters.min_ink,
    }
    return np.select([mask.numpy() for mask in reasons.values()], list(reasons), default=FilterResult.KEPT)


def filtered_mixtures(
    mixer: Mixer,
    classes: np.ndarray,
    labellers: Sequence[nn.Module],
    mixing: Mixing,
    filters: Filters,
    random: np.random.Generator,
) -> dict[str, Tensor]:
    """One chunk of mixtures, of which those are kept that pass the filters.

    Args:
        mixer: Makes the images.
        classes: Of the digits that are mixed, (digit,).
        labellers: The ensemble; the first one has the first look.
        mixing: What is mixed.
        filters: What a mixture must be like.
        random: Where the mixtures come from.

    Returns:
        For the kept mixtures `images` in bytes (mixture, 784), `parents`, `weights`, `probs`, `entropy` and
        `mutual_information`; and `counts`, how many of all mixtures had which `FilterResult`.
    """
    mixtures = draw_mixtures(classes, mixing, random)
    parts = [_kept(mixer.images(batch), batch, labellers, filters) for batch in mixtures.batches(_ROWS)]
    counts = torch.stack([part.pop("counts") for part in parts]).sum(0)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} | {"counts": counts}


@torch.no_grad()
def _kept(images: Tensor, mixtures: Mixtures, labellers: Sequence[nn.Module], filters: Filters) -> dict[str, Tensor]:
    confidence = torch.softmax(ensemble_logits(labellers[:1], images)[0], dim=1).amax(1)
    unsure = (confidence <= filters.first_look).nonzero().squeeze(1)
    labels = labelled(ensemble_logits(labellers, images[unsure]))
    results = judge(labels, images[unsure], filters)
    counts = np.bincount(results, minlength=len(FilterResult))
    counts[FilterResult.PLAIN] += len(images) - len(unsure)
    kept = torch.from_numpy(results == FilterResult.KEPT)
    rows = unsure[kept]
    return {
        "images": (255 * images[rows]).round().byte(),
        "parents": torch.from_numpy(mixtures.parents)[rows].int(),
        "weights": torch.from_numpy(mixtures.weights)[rows],
        "probs": labels.probs[kept].float(),
        "entropy": labels.entropy[kept].float(),
        "mutual_information": labels.mutual_information[kept].float(),
        "counts": torch.from_numpy(counts),
    }


def allocate(available: np.ndarray, wanted: int, exponent: float) -> np.ndarray:
    """Shares `wanted` out in proportion to available^exponent, to nobody more than there is; the sum is exact.

    >>> allocate(np.array([1, 100, 10_000]), 60, exponent=0.2)
    array([ 1, 17, 42])
    """
    if available.sum() < wanted:
        raise InputError(f"{wanted:,} images are wanted and only {available.sum():,} mixtures passed the filters.")
    weights = np.where(available > 0, available.astype(float) ** exponent, 0)
    capped = np.zeros(len(available), dtype=bool)
    while True:
        rest = wanted - available[capped].sum()
        shares = np.where(capped, available, weights * rest / max(weights[~capped].sum(), 1))
        over = ~capped & (shares > available)
        if not over.any():
            break
        capped |= over
    whole = np.floor(shares).astype(np.int64)
    missing = wanted - whole.sum()
    whole[np.argsort(whole - shares, kind="stable")[:missing]] += 1  # the largest remainders
    return whole


def stratified(
    probs: np.ndarray, entropies: np.ndarray, filters: Filters, strata: Stratification, random: np.random.Generator
) -> np.ndarray:
    """Chooses rows so that likeliest classes and entropies are spread evenly.

    The strata are the likeliest class times the bin of entropy. Different from the paper's public code, which bins the
    entropies of all classes together; the paper itself says class-wise.

    Args:
        probs: Soft labels of the candidates, (candidate, class).
        entropies: Of the soft labels, (candidate,).
        filters: Their entropies' limits are those of the bins.
        strata: How many to choose, and how evenly.
        random: Where the draws come from.

    Returns:
        Rows in random order, (images,).
    """
    edges = np.linspace(filters.min_entropy, filters.max_entropy, strata.bins + 1)[1:-1]
    stratum = probs.argmax(1) * strata.bins + np.searchsorted(edges, entropies, side="right")
    available = np.bincount(stratum, minlength=probs.shape[1] * strata.bins)
    wanted = allocate(available, strata.images, strata.exponent)
    # Shuffled, then grouped by stratum: the first rows of each group are a uniform draw
    order = random.permutation(len(stratum))
    order = order[np.argsort(stratum[order], kind="stable")]
    rank = np.arange(len(order)) - np.repeat(np.cumsum(available) - available, available)
    return random.permutation(order[rank < np.repeat(wanted, available)])


def draw_labels(probs: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Draws `count` labels per image from its soft label, with replacement, (image, count)."""
    cumulative = probs.cumsum(1, dtype=np.float64)[:, None, :-1]
    draws = random.random((len(probs), count, 1)) * probs.sum(1, dtype=np.float64)[:, None, None]
    return (draws >= cumulative).sum(-1).astype(np.uint8)
