"""Mixtures that passed the filters: drawn, decoded, labelled and judged a chunk at a time."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ddu.data.dirty_mnist._labelling import ensemble_logits, labelled
from ddu.data.dirty_mnist._mixing import Mixer, Mixing, Mixtures, draw_mixtures
from ddu.data.dirty_mnist._selection import Fate, Filters, judge

_ROWS = 2048  # decoded and labelled at a time


def make_candidates(
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
        `mutual_information`; and `fates`, how many of all mixtures met which `Fate`.
    """
    mixtures = draw_mixtures(classes, mixing, random)
    parts = [_kept(mixer.images(batch), batch, labellers, filters) for batch in mixtures.batches(_ROWS)]
    fates = torch.stack([part.pop("fates") for part in parts]).sum(0)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} | {"fates": fates}


@torch.no_grad()
def _kept(images: Tensor, mixtures: Mixtures, labellers: Sequence[nn.Module], filters: Filters) -> dict[str, Tensor]:
    confidence = torch.softmax(labellers[0](images), dim=1).amax(1)
    unsure = (confidence <= filters.first_look).nonzero().squeeze(1)
    labels = labelled(ensemble_logits(labellers, images[unsure]))
    fates = judge(labels, images[unsure], filters)
    counts = np.bincount(fates, minlength=len(Fate))
    counts[Fate.PLAIN] += len(images) - len(unsure)
    kept = torch.from_numpy(fates == Fate.KEPT)
    rows = unsure[kept]
    return {
        "images": (255 * images[rows]).round().byte(),
        "parents": torch.from_numpy(mixtures.parents)[rows].int(),
        "weights": torch.from_numpy(mixtures.weights)[rows],
        "probs": labels.probs[kept].float(),
        "entropy": labels.entropy[kept].float(),
        "mutual_information": labels.mutual_information[kept].float(),
        "fates": torch.from_numpy(counts),
    }
