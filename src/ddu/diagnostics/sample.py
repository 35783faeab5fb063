"""What a detector makes of a set: one pass, of which features, scores and a few inputs are kept."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from ddu.data import loader
from ddu.detectors import BaseDetector
from ddu.errors import InputError
from ddu.features import FeatureBatch, FeatureTap, LayersTap
from ddu.features.loaders import aligned_labels, check_loader, split_batch
from ddu.progress import track
from ddu.types import Prediction

# Inputs that are kept, to be changed and compared
_KEPT = 256
_BATCH = 128


class Judge(Protocol):
    """Whatever judges inputs: a detector, or a graph that was exported from one."""

    def predict(self, x: Any, /) -> Prediction:
        """Judges a batch."""
        ...


@dataclass(frozen=True)
class Sample:
    """Some inputs of a set as a detector sees them.

    Attributes:
        prediction: Of all.
        labels: Of all, (sample,).
        features: Of every layer that the score reads, side by side, (sample, feature); None without a network.
        values: What the parts of the score say, (sample, part); of a single part, the score.
        inputs: A random few of them, (kept, ...); None where an input is not one tensor of floats.
        rows: Which of all these are.
    """

    prediction: Prediction
    labels: Tensor
    features: Tensor | None
    values: Tensor
    inputs: Tensor | None
    rows: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def take(judge: Judge, samples: Any, limit: int, *, what: str, progress: bool | None) -> Sample:
    """Judges a set.

    Args:
        judge: A detector, or whatever else predicts.
        samples: A data set, of which a random part is taken, or a loader, of which the first batches are.
        limit: At most about so many samples.
        what: The set in words, for the progress bar.
        progress: As in `BaseDetector.fit`.
    """
    keys, seen = torch.zeros(0), 0
    generator = torch.Generator().manual_seed(0)
    found = list[tuple[Prediction, Tensor, Tensor | None, Tensor]]()
    rows, inputs = torch.zeros(0, dtype=torch.int64), None
    for batch_inputs, labels in _batches(samples, limit, what, progress):
        prediction, features, values = look(judge, batch_inputs)
        found.append((prediction, aligned_labels(labels, prediction.probs).cpu().long(), features, values))
        if isinstance(batch_inputs, Tensor) and batch_inputs.is_floating_point():
            # The inputs with the smallest random keys are a random sample of all that have been seen
            new = torch.rand(len(batch_inputs), generator=generator)
            keys, order = torch.cat([keys, new]).sort()
            keys, order = keys[:_KEPT], order[:_KEPT]
            rows = torch.cat([rows, seen + torch.arange(len(new))])[order]
            inputs = (batch_inputs if inputs is None else torch.cat([inputs, batch_inputs]))[order]
        seen += len(prediction)
    if not found:
        raise InputError(f"There are no {what}: the set is empty.")
    predictions, labels, features, values = zip(*found, strict=True)
    return Sample(
        Prediction.join(list(predictions)),
        torch.cat(labels),
        None if features[0] is None else torch.cat(features),
        torch.cat(values),
        inputs,
        rows,
    )


def look(judge: Judge, inputs: Any) -> tuple[Prediction, Tensor | None, Tensor]:
    """The prediction for a batch, the features of the layers, and what the parts of the score say."""
    if not isinstance(judge, BaseDetector):
        prediction = judge.predict(inputs)
        return prediction, None, prediction.epistemic.cpu()[:, None]
    batch: FeatureBatch | None = None
    if isinstance(judge.tap, FeatureTap | LayersTap):
        batch = judge.tap(inputs)
    given = inputs if batch is None or judge.needs_inputs else batch
    prediction, evidence = judge.predict(given), judge.evidence(given)
    values = evidence.epistemic[:, None] if evidence.values is None else evidence.values
    return prediction, None if batch is None else batch.features.float().cpu(), values.cpu()


def _batches(samples: Any, limit: int, what: str, progress: bool | None) -> Iterator[tuple[Any, Any]]:
    if isinstance(samples, Dataset):
        count = len(samples)  # pyright: ignore[reportArgumentType]
        chosen = np.random.default_rng(0).permutation(count)[:limit] if count > limit else np.arange(count)
        samples = loader(Subset(samples, chosen.tolist()), _BATCH)
    check_loader(samples)
    return _limited(map(split_batch, track(samples, what, show=progress)), limit)


def _limited(batches: Iterable[tuple[Any, Any]], limit: int) -> Iterator[tuple[Any, Any]]:
    seen = 0
    for inputs, labels in batches:
        yield inputs, labels
        seen += len(labels)
        if seen >= limit:
            return
