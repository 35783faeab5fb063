"""A Hugging Face data set as one of ours."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from ddu.data.dataset import ArrayDataset, DataInfo, Rows
from ddu.data.preprocessing import default_scale
from ddu.data.sources.folder import common_shape
from ddu.errors import InputError, LabelError
from ddu.messages import require


class HuggingFaceDataset(ArrayDataset):
    """Images of a Hugging Face data set, decoded as they are asked for; `from_huggingface` makes one."""

    def _read(self, rows: np.ndarray) -> Tensor:
        return self.preprocessing(self.inputs[rows])

    def _input_bytes(self) -> Iterator[bytes]:
        """The data set's own fingerprint, and which of its rows these are."""
        column, rows = self.inputs, np.arange(len(self))
        if isinstance(column, Rows):
            column, rows = column.source, column.rows
        assert isinstance(column, _Column)
        yield f"{column.name}|{column.dataset._fingerprint}|".encode()
        yield rows.astype(np.int64).tobytes()


def from_huggingface(
    dataset: Any, image: str = "image", label: str = "label", *, group: str | None = None
) -> HuggingFaceDataset:
    """Reads a split of a Hugging Face data set.

    Small images that all have one size keep it, others are shown at 224 x 224; `like` gives them any other size.

    Args:
        dataset: A `datasets.Dataset`, such as `datasets.load_dataset("mnist", split="train")`.
        image: The column of the images: Pillow's, or arrays of bytes.
        label: The column of the labels: a `ClassLabel`, or any values, which are numbered in their order.
        group: The column that says which samples belong together, such as a patient's; splits keep them together.
    """
    if isinstance(dataset, Mapping):
        raise InputError(f"This is a dictionary of the splits {', '.join(map(repr, dataset))}: give one of them.")
    if not hasattr(dataset, "__len__"):
        raise InputError("A data set that is streamed has no length and no order: load it with streaming=False.")
    for column in (image, label) if group is None else (image, label, group):
        if column not in dataset.column_names:
            raise InputError(f"There is no column {column!r}, only {', '.join(map(repr, dataset.column_names))}.")
    values = np.asarray(dataset[label][:])
    names = getattr(dataset.features[label], "names", None)
    if names is None:
        found, labels = np.unique(values, return_inverse=True)
        names = map(str, found)
    else:
        labels = values
        if len(labels) and labels.min() < 0:
            raise LabelError(f"{np.sum(labels < 0):,} of the {len(labels):,} labels are -1, so this split has none.")
    images = _Column(dataset, image)
    shape = common_shape(images[np.unique(labels, return_index=True)[1]])
    info = DataInfo(dataset.info.dataset_name or "huggingface", shape, tuple(names), **default_scale(shape))
    groups = None if group is None else np.unique(np.asarray(dataset[group][:]), return_inverse=True)[1]
    return HuggingFaceDataset(images, labels.astype(np.int64), info, groups)


class _Column:
    """The images of a data set, by row."""

    def __init__(self, dataset: Any, name: str):
        self.dataset, self.name = dataset.select_columns(name), name

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, rows: np.ndarray) -> list[Any]:
        pillow = require("PIL.Image", extra="data", purpose="Reading images")
        images = self.dataset[rows.tolist()][self.name]
        return [each if hasattr(each, "convert") else pillow.fromarray(np.asarray(each, np.uint8)) for each in images]
