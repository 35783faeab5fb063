"""Labelled inputs that are read as normalised tensors, a batch at a time."""

import copy
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from ddu.data.preprocessing import Preprocessing
from ddu.errors import InputError

Batch = tuple[Tensor, Tensor]

_CHUNK = 2**24  # bytes of a large array that are read at a time


@dataclass(frozen=True)
class DataInfo:
    """What a set holds, and how its inputs are brought to the scale that networks like.

    Attributes:
        name: What it is called.
        shape: Of one input: (channels, height, width), or (features,).
        classes: The names of the classes, in the order of the labels.
        mean: Of each channel, with images in [0, 1]; empty for inputs that are taken as they are.
        std: The standard deviation of each channel, likewise.
        kept: The share of an image's shorter side that is not cut off.
    """

    name: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    kept: float = 1.0

    @property
    def preprocessing(self) -> Preprocessing:
        """How a raw input becomes what a network that was trained on this set wants to see."""
        return Preprocessing(self.shape, self.mean, self.std, self.kept)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3


class Inputs(Protocol):
    """Rows that can be picked by an array of indices: an array, or something that reads or decodes them."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class ArrayDataset(Dataset[Batch]):
    """Inputs and labels in arrays, possibly memory-mapped; indexing gives normalised float tensors.

    A batch is cut out of the array and normalised as a whole, many times faster than sample by sample: `loader` and
    any `DataLoader(..., collate_fn=collated)` get batches, `dataset[3]` is one sample. Nothing is ever augmented here.

    Args:
        inputs: Images (sample, height, width, channel), bytes or floats in [0, 1]; or vectors (sample, feature).
        labels: Integers, (sample,).
        info: Names the classes and holds mean and deviation; images of another size or with other channels than
            `info.shape` are brought to it as they are read.
        groups: Integers, (sample,): samples of one group are copies of one thing, such as an image with several labels,
            and splits keep them together. None if every sample is on its own.

    >>> info = DataInfo("two squares", (1, 2, 2), ("black", "white"), mean=(0.5,), std=(0.5,))
    >>> images = np.array([[[[0], [0]]] * 2, [[[255], [255]]] * 2], dtype=np.uint8).reshape(2, 2, 2, 1)
    >>> x, y = ArrayDataset(images, np.array([0, 1]), info).__getitems__([1, 0])
    >>> x.shape, x.flatten(1).mean(1).tolist(), y.tolist()
    (torch.Size([2, 1, 2, 2]), [1.0, -1.0], [1, 0])
    """

    def __init__(self, inputs: Inputs, labels: np.ndarray, info: DataInfo, groups: np.ndarray | None = None):
        if len(inputs) != len(labels):
            raise InputError(f"The set {info.name} has {len(inputs)} inputs and {len(labels)} labels.")
        if groups is not None and (groups.shape != (len(labels),) or groups.dtype.kind not in "iu"):
            raise InputError(
                f"The groups of {info.name} must be integers, one for each of its {len(labels)} samples. Got "
                f"{groups.dtype}, {groups.shape}, instead."
            )
        self.inputs: Any = inputs
        self.labels = labels
        self.info = info
        self.groups = groups
        self._preprocessing: Preprocessing | None = None  # that of the info, unless it is another

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        inputs, labels = self.__getitems__([index])
        return inputs[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        rows = np.asarray(indices)
        return self._read(rows), torch.from_numpy(self.labels[rows]).long()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.info.name}, {len(self):,} of {self.info.shape})"

    def subset(self, indices: Sequence[int] | np.ndarray | Tensor) -> Self:
        """Some of the samples, in the order of `indices`."""
        rows = np.arange(len(self))[np.asarray(indices)]
        in_memory = isinstance(self.inputs, np.ndarray) and not isinstance(self.inputs, np.memmap)
        return self._with(
            inputs=self.inputs[rows] if in_memory else Rows(self.inputs, rows),
            labels=self.labels[rows],
            groups=None if self.groups is None else self.groups[rows],
        )

    def unreadable(self) -> dict[int, str]:
        """The samples that cannot be read, and why: none of those in an array."""
        return {}

    def like(self, info: DataInfo) -> Self:
        """The same inputs with the preprocessing of another set: its size, its channels and its normalisation.

        This is how a network that was trained on the other set has to be shown this one.
        """
        return self.shown_by(info.preprocessing, name=info.name)

    @property
    def preprocessing(self) -> Preprocessing:
        """How an input becomes what a network sees."""
        return self._preprocessing or self.info.preprocessing

    def shown_by(self, preprocessing: Preprocessing, *, name: str = "inputs of the network") -> Self:
        """The same inputs with another preprocessing: that of a network from elsewhere, or of a set with a name."""
        shape, new = self.info.shape, preprocessing.shape
        if len(shape) != len(new) or (not self.info.is_image and shape != new):
            raise InputError(f"Inputs of {self.info.name}, {shape}, cannot be shown as {name}, {new}.")
        mean, std, kept = preprocessing.mean, preprocessing.std, preprocessing.kept
        return self._with(
            info=replace(self.info, shape=new, mean=mean, std=std, kept=kept), _preprocessing=preprocessing
        )

    def digest(self) -> str:
        """SHA-256 of the samples, their labels and their groups, in order; as a set is stored, not as it is shown.

        For arrays it is that of dtype, shape and bytes. A subset has the digest of its own rows.
        """
        content = hashlib.sha256()
        for piece in self._input_bytes():
            content.update(piece)
        for array in (self.labels, self.groups):
            content.update(b"none" if array is None else _header(array.dtype, array.shape) + array.tobytes())
        return content.hexdigest()

    def _read(self, rows: np.ndarray) -> Tensor:
        """Inputs as a network wants them."""
        return self.preprocessing.of_arrays(self.inputs[rows])

    def _input_bytes(self) -> Iterator[bytes]:
        """What the digest of the inputs is made of; never all of a large array at once."""
        first = self.inputs[np.arange(min(len(self), 1))]
        yield _header(first.dtype, (len(self), *first.shape[1:]))
        step = max(1, _CHUNK // max(1, first.nbytes))
        for start in range(0, len(self), step):
            yield self.inputs[np.arange(start, min(start + step, len(self)))].tobytes()

    def _with(self, **changes: Any) -> Self:
        other = copy.copy(self)
        other.__dict__.update(changes)
        return other


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    return f"{dtype.str}|{shape}|".encode()


class Rows:
    """Some rows of something large, read only when they are asked for."""

    def __init__(self, source: Inputs, rows: np.ndarray):
        self.source, self.rows = (source.source, source.rows[rows]) if isinstance(source, Rows) else (source, rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: np.ndarray) -> Any:
        return self.source[self.rows[rows]]


def read_samples(dataset: Any, indices: list[int]) -> Any:
    """Samples as a loader reads them: a whole batch where the data set has a way to give one."""
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]


def collated(batch: Any) -> Any:
    """What `__getitems__` gave, if it is a batch already; samples in a list are stacked."""
    return default_collate(batch) if isinstance(batch, list) else batch


def loader(
    dataset: Dataset[Batch], batch_size: int = 512, *, shuffle: bool = False, workers: int = 0
) -> DataLoader[Batch]:
    """A loader of whole batches, in order or shuffled by torch's own random state."""
    return DataLoader(dataset, batch_size, shuffle=shuffle, num_workers=workers, collate_fn=collated)
