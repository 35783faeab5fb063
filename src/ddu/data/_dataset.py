"""Labelled arrays that are read as normalised tensors, a batch at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset, default_collate

from ddu.data._digits import stratified_split
from ddu.errors import InputError

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class DataInfo:
    """What a set holds, and how its inputs are brought to the scale that networks like.

    Attributes:
        name: What it is called.
        shape: Of one input: (channels, height, width), or (features,).
        classes: The names of the classes, in the order of the labels.
        mean: Of each channel, with images in [0, 1]; empty for inputs that are taken as they are.
        std: The standard deviation of each channel, likewise.
    """

    name: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3


class ArrayDataset(Dataset[Batch]):
    """Inputs and labels in arrays, possibly memory-mapped; indexing gives normalised float tensors.

    A batch is cut out of the array and normalised as a whole, many times faster than sample by sample: `loader` and
    any `DataLoader(..., collate_fn=collated)` get batches, `dataset[3]` is one sample.

    Args:
        inputs: Images (sample, height, width, channel), bytes or floats in [0, 1]; or vectors (sample, feature).
        labels: Integers, (sample,).
        info: Names the classes and holds mean and deviation.

    >>> info = DataInfo("two squares", (1, 2, 2), ("black", "white"), mean=(0.5,), std=(0.5,))
    >>> images = np.array([[[[0], [0]]] * 2, [[[255], [255]]] * 2], dtype=np.uint8).reshape(2, 2, 2, 1)
    >>> x, y = ArrayDataset(images, np.array([0, 1]), info).__getitems__([1, 0])
    >>> x.shape, x.flatten(1).mean(1).tolist(), y.tolist()
    (torch.Size([2, 1, 2, 2]), [1.0, -1.0], [1, 0])
    """

    def __init__(self, inputs: np.ndarray, labels: np.ndarray, info: DataInfo):
        if len(inputs) != len(labels):
            raise InputError(f"The set {info.name} has {len(inputs)} inputs and {len(labels)} labels.")
        self.inputs = inputs
        self.labels = labels
        self.info = info

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        inputs, labels = self.__getitems__([index])
        return inputs[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        rows = self.inputs[np.asarray(indices)]
        return _normalised(rows, self.info), torch.from_numpy(self.labels[np.asarray(indices)]).long()

    def __repr__(self) -> str:
        return f"ArrayDataset({self.info.name}, {len(self):,} of {self.info.shape})"

    def subset(self, indices: Sequence[int] | np.ndarray | Tensor) -> Self:
        """Some of the samples, in the order of `indices`."""
        rows = np.asarray(indices)
        return type(self)(self.inputs[rows], self.labels[rows], self.info)

    def like(self, info: DataInfo) -> "ArrayDataset":
        """The same inputs with the size, the channels and the normalisation of another set.

        This is how a network that was trained on the other set has to be shown this one.
        """
        if self.info.is_image != info.is_image or (not info.is_image and self.info.shape != info.shape):
            raise InputError(
                f"Inputs of {self.info.name}, {self.info.shape}, cannot be shown as {info.name}, {info.shape}."
            )
        known = DataInfo(self.info.name, info.shape, self.info.classes, info.mean, info.std)
        return ArrayDataset(_reshaped(self.inputs, info.shape) if info.is_image else self.inputs, self.labels, known)


def split(dataset: ArrayDataset, share: float, *, seed: int, stratified: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Indices of a random split: the larger part, and `share` of the samples.

    Args:
        dataset: What to split.
        share: Of the second part, for example 0.1 for validation.
        seed: The same seed gives the same split.
        stratified: Keep the classes' shares, to within one sample.
    """
    if not 0 < share < 1:
        raise InputError(f"The share of a split must lie between 0 and 1. Got {share!r} instead.")
    generator = Generator().manual_seed(seed)
    if stratified:
        large, small = stratified_split(torch.from_numpy(dataset.labels), [1 - share, share], generator)
    else:
        order = torch.randperm(len(dataset), generator=generator)
        cut = round(share * len(dataset))
        large, small = order[cut:], order[:cut]
    return large.sort().values.numpy(), small.sort().values.numpy()


def collated(batch: Any) -> Any:
    """What `__getitems__` gave, if it is a batch already; samples in a list are stacked."""
    return default_collate(batch) if isinstance(batch, list) else batch


def loader(
    dataset: Dataset[Batch], batch_size: int = 512, *, shuffle: bool = False, workers: int = 0
) -> DataLoader[Batch]:
    """A loader of whole batches, in order or shuffled by torch's own random state."""
    return DataLoader(dataset, batch_size, shuffle=shuffle, num_workers=workers, collate_fn=collated)


def _normalised(rows: np.ndarray, info: DataInfo) -> Tensor:
    """(x - mean) / std as floats (sample, channel, height, width); vectors as they are."""
    if not info.is_image:
        return torch.from_numpy(rows).float()
    x = torch.from_numpy(rows).permute(0, 3, 1, 2).contiguous()
    scale = 255.0 if x.dtype == torch.uint8 else 1.0
    mean, std = (scale * torch.tensor(values)[:, None, None] for values in (info.mean, info.std))
    return x.float().sub_(mean).div_(std)


def _reshaped(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Images with other channels and another size; bytes stay bytes."""
    channels, *size = shape
    if images.shape[3] != channels:
        luma = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # ITU-R BT.601
        grey = (images @ luma)[..., None] if images.shape[3] == 3 else images
        images = _as_dtype(np.repeat(grey, channels, axis=3), images.dtype)
    if list(images.shape[1:3]) == size:
        return images
    pixels = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
    resized = interpolate(pixels.float(), size, mode="bilinear", antialias=True)
    return _as_dtype(resized.permute(0, 2, 3, 1).contiguous().numpy(), images.dtype)


def _as_dtype(pixels: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return pixels.round().astype(dtype) if dtype == np.uint8 else pixels.astype(dtype)
