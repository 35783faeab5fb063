"""Batches: what gives none is refused before it is read, and labels that a data set lists are known beforehand."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from ddu import data
from ddu.errors import InputError
from ddu.features import FeatureBatch, LogitsTap, extract
from ddu.features.loaders import are_given, check_loader, listed_labels, split_batch

X, Y = torch.arange(24.0).reshape(6, 4), torch.tensor([0, 2, 1, 1, 0, 2])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("It was read.")


SAMPLES = (
    "The loader is a {}, which gives one sample at a time: pass DataLoader(dataset, batch_size=...), or with "
    "batch_size=None if it gives whole batches."
)
ONE_BATCH = (
    "The loader must give batches of (inputs, labels), one after the other. Got {} instead: a single batch goes into a "
    "list, [(x, y)]."
)
NO_LOADER = "The loader must give batches of (inputs, labels). Got {} instead: pass a DataLoader, or a list [(x, y)]."


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        pytest.param(TensorDataset(X, Y), SAMPLES.format("TensorDataset"), id="data set"),
        pytest.param(Stream(), SAMPLES.format("Stream"), id="iterable data set"),
        pytest.param(X, ONE_BATCH.format("Tensor of shape (6, 4)"), id="tensor"),
        pytest.param(X.numpy(), ONE_BATCH.format("ndarray of shape (6, 4)"), id="array"),
        pytest.param((X, Y), ONE_BATCH.format("tuple of [Tensor, Tensor]"), id="tuple"),
        pytest.param([X, Y], ONE_BATCH.format("list of [Tensor, Tensor]"), id="list"),
        pytest.param({"x": X, "y": Y}, ONE_BATCH.format("dict with keys ['x', 'y']"), id="mapping"),
        pytest.param(
            FeatureBatch(X, X, Y), ONE_BATCH.format("FeatureBatch of [Tensor, Tensor, Tensor]"), id="extracted batch"
        ),
        pytest.param(None, NO_LOADER.format("None"), id="none"),
        pytest.param("train", NO_LOADER.format("str"), id="text"),
    ],
)
def test_what_gives_no_batches_is_refused_before_it_is_read(loader: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        extract(LogitsTap(torch.nn.Linear(4, 3)), loader)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "loader",
    [
        pytest.param(lambda: DataLoader(TensorDataset(X, Y), batch_size=2), id="DataLoader"),
        pytest.param(lambda: [(X, Y)], id="list"),
        pytest.param(lambda: ((X, Y), (X, Y)), id="tuple"),
        pytest.param(lambda: [[X, Y]], id="list of lists"),
        pytest.param(lambda: [{"x": X, "y": Y}], id="mappings"),
        pytest.param(lambda: [FeatureBatch(X, X, Y)], id="extracted batches"),
        pytest.param(lambda: iter([(X, Y)]), id="iterator"),
        pytest.param(list, id="empty"),
    ],
)
def test_what_gives_batches_is_taken(loader: Any) -> None:
    check_loader(loader())


@pytest.mark.parametrize("label", [3, torch.tensor(3), np.int64(3), np.array(3)], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("as_mapping", [False, True])
def test_samples_in_the_place_of_batches_are_refused(label: Any, as_mapping: bool) -> None:
    with pytest.raises(InputError) as error:
        split_batch({"x": X[0], "label": label} if as_mapping else (X[0], label))
    assert str(error.value) == (
        "The loader gives one sample at a time, the first with the label 3: pass DataLoader(samples, batch_size=...)."
    )


# Labels that are known beforehand


class Listing(Dataset[tuple[Tensor, int]]):
    """A data set in the way of torchvision's."""

    def __init__(self, targets: Any, shift: int = 0):
        self.targets, self.shift = targets, shift

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return X[index], int(self.targets[index]) + self.shift


def array_dataset() -> data.ArrayDataset:
    return data.ArrayDataset(X.numpy(), Y.numpy(), data.DataInfo("six", (4,), ("a", "b", "c")))


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        pytest.param(lambda: DataLoader(TensorDataset(X, Y), 2), Y.tolist(), id="TensorDataset"),
        pytest.param(lambda: DataLoader(TensorDataset(X, Y), 2, shuffle=True), Y.tolist(), id="shuffled"),
        pytest.param(lambda: DataLoader(Subset(TensorDataset(X, Y), [5, 0]), 2), [2, 0], id="Subset"),
        pytest.param(
            lambda: DataLoader(Subset(Subset(TensorDataset(X, Y), [5, 4, 3]), np.array([2, 0])), 2),
            [1, 2],
            id="Subset of a Subset",
        ),
        pytest.param(lambda: DataLoader(Listing(Y.tolist()), 2), Y.tolist(), id="targets in a list"),
        pytest.param(lambda: DataLoader(Listing(Y.numpy().astype(np.uint8)), 2), Y.tolist(), id="targets in an array"),
        pytest.param(lambda: data.loader(array_dataset(), 2), Y.tolist(), id="ddu.data.loader"),
        # Other labels or fewer than the data set lists
        pytest.param(lambda: DataLoader(TensorDataset(X, Y), sampler=SubsetRandomSampler([0])), None, id="sampler"),
        pytest.param(
            lambda: DataLoader(TensorDataset(X, Y), sampler=RandomSampler(Y, replacement=True)), None, id="replacement"
        ),
        pytest.param(
            lambda: DataLoader(TensorDataset(X, Y), sampler=RandomSampler(Y, num_samples=3)), None, id="fewer"
        ),
        pytest.param(lambda: DataLoader(TensorDataset(X, Y), batch_sampler=[[0, 1]]), None, id="batch sampler"),
        pytest.param(
            lambda: DataLoader(
                TensorDataset(X, Y), batch_sampler=BatchSampler(SubsetRandomSampler([0]), 1, drop_last=False)
            ),
            None,
            id="batch sampler with a sampler of its own",
        ),
        pytest.param(lambda: DataLoader(TensorDataset(X, Y), 4, drop_last=True), None, id="last batch dropped"),
        pytest.param(lambda: DataLoader(TensorDataset(X, Y), batch_size=None), None, id="no batches"),
        # No labels
        pytest.param(lambda: DataLoader(TensorDataset(X), 2), None, id="inputs alone"),
        pytest.param(lambda: DataLoader(TensorDataset(X, Y.float()), 2), None, id="floats"),
        pytest.param(lambda: DataLoader(Listing(["cat"] * 6), 2), None, id="names"),
        pytest.param(lambda: DataLoader(Stream(), 2), None, id="iterable data set"),
        pytest.param(lambda: [(X, Y)], None, id="list"),
    ],
)
def test_labels_are_known_where_the_data_set_lists_them_and_the_loader_gives_all(loader: Any, expected: Any) -> None:
    labels = listed_labels(loader())
    assert (None if labels is None else labels.tolist()) == expected


def shifted(samples: Any) -> Any:
    x, y = default_collate(samples)
    return x, y + 1


@pytest.mark.parametrize(
    ("loader", "given"),
    [
        (DataLoader(TensorDataset(X, Y), 2), True),
        (DataLoader(Listing(Y.tolist()), 2), True),
        (data.loader(array_dataset(), 2), True),
        (DataLoader(Listing(Y.tolist(), shift=1), 2), False),
        (DataLoader(TensorDataset(X, Y), 2, collate_fn=shifted), False),
    ],
    ids=["TensorDataset", "targets", "ddu.data.loader", "the data set changes them", "the loader changes them"],
)
def test_listed_labels_are_compared_with_those_given(loader: DataLoader[Any], given: bool) -> None:
    labels = listed_labels(loader)
    assert labels is not None
    assert are_given(labels, loader) is given


@pytest.mark.parametrize("changed", [0, 3, 7], ids=["smallest", "rarest", "largest"])
def test_the_labels_that_may_be_refused_are_those_compared(changed: int) -> None:
    """Each is changed in turn by the data set."""
    targets = [1, 1, 0, 0, 3, 1, 7, 7]

    class Changing(Listing):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return X[0], 1 if targets[index] == changed else targets[index]

    loader = DataLoader(Changing(targets), 2)
    labels = listed_labels(loader)
    assert labels is not None
    assert not are_given(labels, loader)
