"""The two parts of a pool: the labelled samples as a data set, and the candidates for a label, scored by a detector.

The pool is streamed: only three numbers per candidate are kept.
"""

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ddu.data import Batch, collated
from ddu.data.dataset import read_samples
from ddu.detectors import DDU, BaseDetector
from ddu.errors import InputError
from ddu.features import FeatureBatch
from ddu.progress import track
from ddu.types import Detector

AnyDetector = Detector | BaseDetector


class LabelledSamples(Dataset[Batch]):
    """The samples that were labelled from the start, and then those of a pool in the order in which they were taught.

    Args:
        initial: Samples (input, label), or None.
        pool: The pool of the others.
        indices: Their places in the pool, (sample,).
        labels: Their labels, (sample,).
    """

    def __init__(self, initial: Any, pool: Any, indices: np.ndarray, labels: np.ndarray) -> None:
        self.initial, self.pool, self.indices, self.labels = initial, pool, indices, labels
        self._first = 0 if initial is None else len(initial)

    def __len__(self) -> int:
        return self._first + len(self.indices)

    def __getitem__(self, position: int) -> Batch:
        inputs, labels = self.__getitems__([position])
        return inputs[0], labels[0]

    def __getitems__(self, positions: Sequence[int]) -> Batch:
        wanted = np.asarray(positions)
        parts: list[tuple[np.ndarray, Batch]] = []
        initial, taught = np.flatnonzero(wanted < self._first), np.flatnonzero(wanted >= self._first)
        if len(initial):
            inputs, labels = read_batch(self.initial, wanted[initial])
            parts.append((initial, (inputs, torch.as_tensor(labels).long())))
        if len(taught):
            rows = wanted[taught] - self._first
            labels = torch.from_numpy(self.labels[rows])
            parts.append((taught, (read_inputs(self.pool, self.indices[rows]), labels)))
        back = np.argsort(np.concatenate([places for places, _ in parts]))
        inputs, labels = zip(*(batch for _, batch in parts), strict=True)
        return torch.cat(inputs)[back], torch.cat(labels)[back]


class Uncertainties(NamedTuple):
    """The scores of a detector, (sample,) each.

    Attributes:
        epistemic: How unlike the labelled samples each is, on the detector's own scale.
        aleatoric: Entropy of the predicted classes, in nats.
        label: The likeliest class.
    """

    epistemic: np.ndarray
    aleatoric: np.ndarray
    label: np.ndarray

    def at(self, positions: np.ndarray) -> "Uncertainties":
        """Those of some samples."""
        return Uncertainties(*(column[positions] for column in self))


class Candidates:
    """Samples of a pool that may be labelled next, and their uncertainties.

    Nothing is computed before it is asked for. The pool is read in batches, and neither inputs nor features are kept:
    the memory is three numbers per sample.

    Args:
        detector: A fitted detector.
        pool: An array or tensor of inputs, (sample, ...), or a data set of inputs or of (input, label), whose labels
            are not looked at.
        indices: Which samples of the pool are candidates, (candidate,).
        batch_size: How many are scored at a time.
        workers: Processes that read the pool.
        progress: `True` shows a bar, `False` none; by default one appears if it takes long, on a terminal.
    """

    def __init__(
        self,
        detector: AnyDetector,
        pool: Any,
        indices: np.ndarray,
        *,
        batch_size: int = 512,
        workers: int = 0,
        progress: bool | None = None,
    ):
        self.detector = detector
        self.pool = pool
        self.indices = indices
        self._reading: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers}
        self._progress = progress

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def uncertainties(self) -> Uncertainties:
        """Of every candidate; this reads the pool."""
        return self._score(self.indices)

    def judge(self, positions: np.ndarray) -> Uncertainties:
        """Of the candidates at some positions; if all have not been scored, only of these."""
        if "uncertainties" in self.__dict__:
            return self.uncertainties.at(positions)
        return self._score(self.indices[positions])

    def features(self, positions: np.ndarray) -> FeatureBatch:
        """The features and logits at some positions, which are kept; for DDU."""
        assert isinstance(self.detector, DDU)
        return extract_features(self.detector, self.pool, self.indices[positions], self._reading["batch_size"])

    def only(self, positions: np.ndarray) -> "Candidates":
        """The candidates at some positions, not scored again."""
        fewer = copy.copy(self)
        fewer.indices, fewer.uncertainties = self.indices[positions], self.uncertainties.at(positions)
        return fewer

    def _score(self, indices: np.ndarray) -> Uncertainties:
        scores = Uncertainties(*(np.empty(len(indices), dtype) for dtype in (np.float64, np.float64, np.int64)))
        # A loader draws a seed for its workers: not from torch's own random state
        options = {"collate_fn": collated, "generator": torch.Generator(), **self._reading}
        batches = DataLoader(_Inputs(self.pool, indices), **options)
        start = 0
        for inputs in track(batches, "pool", show=self._progress):
            rows = slice(start, start + len(inputs))
            try:
                prediction = self.detector.predict(inputs)
            except InputError as error:
                first, last = indices[rows][[0, -1]]
                raise InputError(f"Among the samples {first} to {last} of the pool: {error}") from error
            columns = (prediction.epistemic, prediction.aleatoric, prediction.label)
            for kept, values in zip(scores, columns, strict=True):
                kept[rows] = values.cpu().numpy()
            start = rows.stop
        _check_scores(scores, indices)
        return scores


def read_batch(samples: Any, indices: Sequence[int] | np.ndarray) -> Any:
    """What a data set has at some indices, as one batch."""
    return collated(read_samples(samples, np.asarray(indices).tolist()))


def read_inputs(pool: Any, indices: Sequence[int] | np.ndarray) -> Tensor:
    """The inputs of a pool at some indices; labels that it may carry are left out."""
    if isinstance(pool, Tensor | np.ndarray):
        return torch.as_tensor(pool[np.asarray(indices)])
    batch = read_batch(pool, indices)
    return batch[0] if isinstance(batch, tuple | list) else batch


def extract_features(detector: DDU, pool: Any, indices: np.ndarray, batch_size: int) -> FeatureBatch:
    """The features and logits of some samples of a pool, run through the network a batch at a time."""
    chunks = [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]
    parts = [detector.tap(read_inputs(pool, chunk)) for chunk in chunks]
    return FeatureBatch(torch.cat([part.features for part in parts]), torch.cat([part.logits for part in parts]))


class _Inputs(Dataset[Tensor]):
    """The inputs at some indices of a pool, for a loader."""

    def __init__(self, pool: Any, indices: np.ndarray) -> None:
        self.pool, self.indices = pool, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Tensor:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> Tensor:
        return read_inputs(self.pool, self.indices[np.asarray(positions)])


def _check_scores(scores: Uncertainties, indices: np.ndarray) -> None:
    bad = np.flatnonzero(np.isnan(scores.epistemic) | np.isnan(scores.aleatoric))
    if len(bad):
        raise InputError(
            f"The detector gave NaN for {len(bad)} of {len(indices)} samples, the first at index {indices[bad[0]]} of "
            "the pool: check the network and that sample."
        )
