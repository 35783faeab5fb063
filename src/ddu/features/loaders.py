"""Batches from a loader: inputs and labels, their features, and labels that are known before anything is read."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler, Subset, TensorDataset

from ddu.errors import InputError, LabelError
from ddu.features.taps import FeatureBatch, SharedBatch
from ddu.messages import shown
from ddu.progress import track

Batch = TypeVar("Batch", FeatureBatch, SharedBatch)

_LABEL_KEYS = ("labels", "label", "targets", "target", "y")


def check_loader(loader: object) -> None:
    """Refuses what does not give batches, before it is read."""
    if isinstance(loader, Dataset):
        raise InputError(
            f"The loader is a {type(loader).__name__}, which gives one sample at a time: pass DataLoader(dataset, "
            "batch_size=...), or with batch_size=None if it gives whole batches."
        )
    first = loader[0] if isinstance(loader, tuple | list) and loader else loader
    if isinstance(loader, Mapping) or isinstance(first, Tensor | np.ndarray):
        raise InputError(
            f"The loader must give batches of (inputs, labels), one after the other. Got {shown(loader)} instead: a "
            "single batch goes into a list, [(x, y)]."
        )
    if isinstance(loader, str) or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise InputError(
            f"The loader must give batches of (inputs, labels). Got {shown(loader)} instead: pass a DataLoader, or a "
            "list [(x, y)]."
        )


def split_batch(batch: Any) -> tuple[Any, Any]:
    """The inputs and the labels of what a loader gave."""
    if isinstance(batch, Mapping):
        key = next((key for key in _LABEL_KEYS if key in batch), None)
        if key is not None and len(batch) > 1:
            return {name: value for name, value in batch.items() if name != key}, _several(batch[key])
    elif isinstance(batch, tuple | list) and len(batch) > 1:
        *inputs, labels = batch
        return inputs[0] if len(inputs) == 1 else tuple(inputs), _several(labels)
    raise InputError(
        "The loader must give (inputs, labels), or a mapping of inputs with the labels under "
        f"{', '.join(map(repr, _LABEL_KEYS[:-1]))} or {_LABEL_KEYS[-1]!r}. Got {shown(batch)} instead."
    )


def _several(labels: Any) -> Any:
    if isinstance(labels, int | np.integer) or (isinstance(labels, Tensor | np.ndarray) and not labels.ndim):
        raise InputError(
            f"The loader gives one sample at a time, the first with the label {int(labels)}: pass "
            "DataLoader(samples, batch_size=...)."
        )
    return labels


def aligned_labels(labels: Any, logits: Tensor) -> Tensor:
    """Labels (N,) as a tensor beside their logits."""
    try:
        values = np.array(labels) if isinstance(labels, np.ndarray) else labels  # arrays may be read-only
        tensor = torch.as_tensor(values, device=logits.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LabelError(f"The loader's labels must be integers. Got {shown(labels)} instead.") from error
    if tensor.shape != logits.shape[:1]:
        raise LabelError(
            f"The loader's labels must have the shape ({len(logits)},), one for each input. "
            f"Got {tuple(tensor.shape)} instead."
        )
    return tensor


def extract(tap: Callable[[Any], Batch], loader: Iterable[Any], *, progress: bool | None = None) -> Iterator[Batch]:
    """Streams the features, logits and labels of a loader, one batch in memory at a time.

    Args:
        tap: What runs the model: a `FeatureTap`, another `Tap`, or a `SharedTap`.
        loader: Gives (inputs, labels), or (input, ..., input, labels), or a mapping with the labels under
            "labels", "label", "targets", "target" or "y" and the model's inputs in the rest; or batches with labels
            that were extracted before.
        progress: `True` shows a bar, `False` none; by default one appears if it takes long, on a terminal.

    >>> from torch import nn
    >>> from ddu.features import FeatureTap
    >>> tap = FeatureTap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> loader = [(torch.zeros(5, 4), torch.arange(5) % 3), (torch.zeros(2, 4), [0, 1])]
    >>> [(tuple(features.shape), labels.tolist()) for features, logits, labels in extract(tap, loader)]
    [((5, 8), [0, 1, 2, 0, 1]), ((2, 8), [0, 1])]
    """
    check_loader(loader)
    return _extracted(tap, track(loader, "features", show=progress))


def _extracted(tap: Callable[[Any], Batch], items: Iterable[Any]) -> Iterator[Batch]:
    for item in items:
        inputs, labels = (item, item.labels) if isinstance(item, FeatureBatch) else split_batch(item)
        batch = tap(inputs)
        yield batch._replace(labels=aligned_labels(labels, batch.logits))


# Inputs to judge


def batches_of(x: Any, batch_size: int, *, progress: bool | None = None) -> Iterator[Any]:
    """Inputs as batches that a tap takes.

    - A tensor or array is a batch, and a long one is divided; a list of some that have one shape is stacked.
    - A tuple or mapping is one batch of several inputs; extracted features are one batch.
    - A data set is collated; a loader and any other iterable give batches, from which labels are left out.

    >>> [tuple(batch.shape) for batch in batches_of([torch.zeros(3), torch.zeros(3), torch.zeros(3)], 2)]
    [(2, 3), (1, 3)]
    >>> loader = [(torch.zeros(4, 3), torch.tensor([0, 1, 1, 2])), torch.zeros(2, 3)]
    >>> [tuple(batch.shape) for batch in batches_of(loader, 2)]
    [(4, 3), (2, 3)]
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"The 'batch_size' parameter must be an integer of at least 1. Got {batch_size!r} instead.")
    if isinstance(x, list) and _have_one_shape(x):
        x = np.stack(x) if isinstance(x[0], np.ndarray) else torch.stack([torch.as_tensor(item) for item in x])
    if isinstance(x, Tensor | np.ndarray) and x.ndim and len(x) > batch_size:
        starts = track(range(0, len(x), batch_size), "predictions", show=progress)
        return (x[start : start + batch_size] for start in starts)
    if isinstance(x, Dataset):
        from ddu.data import loader  # which others than data sets do not need

        x = loader(x, batch_size)
    elif isinstance(x, Tensor | np.ndarray | tuple | Mapping | str) or not hasattr(x, "__iter__"):
        return iter([x])
    return (inputs_of(batch) for batch in track(x, "predictions", show=progress))


def _have_one_shape(items: list[Any]) -> bool:
    arrays = [item for item in items if isinstance(item, Tensor | np.ndarray)]
    return len(items) == len(arrays) and len({tuple(array.shape) for array in arrays}) == 1


def inputs_of(batch: Any) -> Any:
    """What a loader gave without its labels: a last vector of integers, one for each input, or what is named so."""
    if isinstance(batch, FeatureBatch):
        return batch
    if isinstance(batch, Mapping):
        key = next((key for key in _LABEL_KEYS if key in batch), None)
        return batch if key is None or len(batch) == 1 else {name: v for name, v in batch.items() if name != key}
    if not isinstance(batch, tuple | list):
        return batch
    inputs = batch[:-1] if len(batch) > 1 and _are_labels(batch[-1], batch[0]) else batch
    return inputs[0] if len(inputs) == 1 else tuple(inputs)


def _are_labels(values: Any, inputs: Any) -> bool:
    if isinstance(values, list | tuple):
        return all(isinstance(value, int | np.integer) for value in values)
    if not isinstance(values, Tensor | np.ndarray) or not isinstance(inputs, Tensor | np.ndarray) or not inputs.ndim:
        return False
    integers = values.dtype.kind in "iu" if isinstance(values, np.ndarray) else not values.is_floating_point()
    return integers and tuple(values.shape) == (len(inputs),)


# Before anything is read


def listed_labels(loader: Iterable[Any]) -> Tensor | None:
    """The labels that a loader should give, (sample,), where its data set lists them; None elsewhere."""
    if not isinstance(loader, DataLoader) or not _gives_every_sample_once(loader):
        return None
    dataset: Any = loader.dataset
    labels = _listed(dataset)
    return labels if labels is not None and len(labels) == len(dataset) else None


def expected_samples(loader: Iterable[Any]) -> int | None:
    """How many samples a loader will give, where that can be known beforehand."""
    try:
        if isinstance(loader, DataLoader):
            return len(loader.sampler)  # pyright: ignore[reportArgumentType]
        if isinstance(loader, list | tuple) and all(isinstance(batch, tuple | list) for batch in loader):
            return sum(len(batch[-1]) for batch in loader if batch[-1] is not None)
    except (TypeError, IndexError):  # an iterable data set, or what is no batch, which is refused when it is read
        pass
    return None


def are_given(labels: Tensor, loader: Any) -> bool:
    """Whether a loader gives the labels that its data set lists: the smallest, the largest and the rarest are read.

    A data set may give others than it lists, and a loader may change them.
    """
    classes, counts = labels.unique(return_counts=True)
    rarest = int((labels == classes[counts.argmin()]).nonzero()[0])
    positions = {int(labels.argmin()), int(labels.argmax()), rarest}
    return all(_label_given(loader, position) == int(labels[position]) for position in positions)


def _gives_every_sample_once(loader: DataLoader[Any]) -> bool:
    dataset: Any = loader.dataset
    sampler: Any = loader.sampler
    batches = loader.batch_sampler
    return (
        type(sampler) in (SequentialSampler, RandomSampler)
        and not getattr(sampler, "replacement", False)
        and type(batches) is BatchSampler
        and batches.sampler is sampler
        and not batches.drop_last
        and len(sampler) == len(dataset)
    )


def _listed(dataset: Any) -> Tensor | None:
    """The integers that a data set lists as labels."""
    if isinstance(dataset, Subset):
        labels = _listed(dataset.dataset)
        return None if labels is None else labels[torch.as_tensor(dataset.indices)]
    if isinstance(dataset, TensorDataset):
        labels = dataset.tensors[-1]
    else:
        labels = getattr(dataset, "targets", getattr(dataset, "labels", None))
    if not isinstance(labels, Tensor | np.ndarray | list):
        return None
    array = np.asarray(labels)
    return torch.from_numpy(array.astype(np.int64)) if array.ndim == 1 and array.dtype.kind in "iu" else None


def _label_given(loader: Any, index: int) -> int:
    """What the loader gives as the label of one sample."""
    _, labels = split_batch(batch_of_one(loader, index))
    return int(torch.as_tensor(labels).flatten()[0])


def batch_of_one(loader: Any, index: int) -> Any:
    """What a loader of a map-style data set gives for one sample."""
    dataset = loader.dataset
    samples = dataset.__getitems__([index]) if hasattr(dataset, "__getitems__") else [dataset[index]]
    return loader.collate_fn(samples)
