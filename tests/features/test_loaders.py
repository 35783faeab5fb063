"""Batches: what gives none is refused before it is read, and labels that a data set lists are known beforehand."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
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
from ddu.errors import InputError, LabelError
from ddu.features import FeatureBatch, FeatureTap, LogitsTap, extract
from ddu.features.loaders import are_given, batches_of, check_loader, expected_samples, listed_labels, split_batch
from tests.features.networks import Sum, mlp

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


# Features over a loader


def test_a_loader_streams_the_features_of_the_whole_set_in_order() -> None:
    model, x, y = mlp(4, 8, 3), torch.randn(11, 4), torch.arange(11) % 3
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    whole = FeatureTap(model)(x)
    batches = list(extract(FeatureTap(model), loader))
    assert [len(batch.features) for batch in batches] == [4, 4, 3]
    # batches of another size may be multiplied in another order
    torch.testing.assert_close(torch.cat([batch.features for batch in batches]), whole.features)
    torch.testing.assert_close(torch.cat([batch.logits for batch in batches]), whole.logits)
    assert torch.equal(torch.cat([batch.labels for batch in batches if batch.labels is not None]), y)


def test_a_loader_is_read_one_batch_at_a_time() -> None:
    read = []

    def loader() -> Iterator[tuple[Tensor, Tensor]]:
        for i in range(5):
            read.append(i)
            yield torch.randn(2, 4), torch.tensor([0, 1])

    stream = extract(FeatureTap(mlp(4, 8, 3)), loader())
    assert read == []
    next(stream)
    next(stream)
    assert read == [0, 1]


LABELS = [0, 2, 1]
A, B = torch.ones(3, 4), torch.full((3, 4), 2.0)


@pytest.mark.parametrize(
    "batch",
    [
        ((A, B), torch.tensor(LABELS)),
        [[A, B], np.array(LABELS)],
        (A, B, LABELS),
        ({"a": A, "b": B}, tuple(LABELS)),
        {"a": A, "b": B, "labels": LABELS},
        {"label": LABELS, "a": A, "b": B},
        {"a": A, "targets": LABELS, "b": B},
        {"a": A, "b": B, "target": [torch.tensor(label) for label in LABELS]},
        {"a": A, "b": B, "y": np.array(LABELS, np.int32)},
    ],
    ids=["tuple", "list", "triple", "pair of mapping", "labels", "label", "targets", "target", "y"],
)
def test_every_usual_form_of_batch_is_understood(batch: Any) -> None:
    size = len(batch)
    (found,) = extract(FeatureTap(Sum()), [batch])
    assert isinstance(found, FeatureBatch)
    assert torch.equal(found.features, A + B)
    assert isinstance(found.labels, Tensor)
    assert found.labels.tolist() == LABELS
    assert len(batch) == size


FORM = (
    "The loader must give (inputs, labels), or a mapping of inputs with the labels under 'labels', 'label', "
    "'targets', 'target' or 'y'. Got {} instead."
)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((A,), FORM.format("tuple of [Tensor]")),
        ({"a": A, "b": B}, FORM.format("dict with keys ['a', 'b']")),
        ({"labels": LABELS}, FORM.format("dict with keys ['labels']")),
        (None, FORM.format("None")),
        ("ab", FORM.format("str")),
    ],
)
def test_batches_without_inputs_and_labels_are_refused(batch: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        next(extract(FeatureTap(Sum()), [batch]))
    assert str(error.value) == message


def test_labels_that_are_a_read_only_array_are_taken() -> None:
    labels = np.array(LABELS)
    labels.setflags(write=False)
    (batch,) = extract(FeatureTap(Sum()), [(A, B, labels)])
    assert batch.labels is not None
    assert batch.labels.tolist() == LABELS


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "The loader's labels must have the shape (3,), one for each input. Got (2,) instead."),
        (torch.eye(3), "The loader's labels must have the shape (3,), one for each input. Got (3, 3) instead."),
        (("cat", "dog", "cat"), "The loader's labels must be integers. Got tuple of [str, str, str] instead."),
        (None, "The loader's labels must be integers. Got None instead."),
    ],
)
def test_labels_that_do_not_fit_the_batch_are_refused(labels: Any, message: str) -> None:
    with pytest.raises(LabelError) as error:
        next(extract(FeatureTap(Sum()), [(A, B, labels)]))
    assert str(error.value) == message


def test_a_progress_bar_is_drawn_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    loader = [((A, B), LABELS)] * 3
    list(extract(FeatureTap(Sum()), loader, progress=False))
    assert capsys.readouterr().err == ""
    list(extract(FeatureTap(Sum()), loader, progress=True))
    assert "3/3" in capsys.readouterr().err


@pytest.mark.parametrize("tap", [FeatureTap, LogitsTap])
def test_what_was_extracted_before_is_passed_on(tap: type[FeatureTap] | type[LogitsTap]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    (batch,) = extract(FeatureTap(model), [(torch.randn(5, 4), torch.arange(5) % 3)])
    assert tap(model)(batch) is batch
    (again,) = extract(tap(model), [batch])
    assert all(torch.equal(a, b) for a, b in zip(again, batch, strict=True))
    with pytest.raises(LabelError, match="The loader's labels must be integers"):
        list(extract(tap(model), [batch._replace(labels=None)]))


@pytest.mark.parametrize("sample", [(torch.zeros(2), torch.tensor(1)), (torch.zeros(2), 1), ()])
def test_samples_in_the_place_of_batches_are_not_counted(sample):
    assert expected_samples([sample, sample]) is None
    assert expected_samples([(torch.zeros(3, 2), torch.zeros(3))] * 2) == 6


def test_a_data_set_that_gives_whole_batches_is_predicted_like_any_other() -> None:
    images = data.load("digits", "test").subset(range(7))
    found = list(batches_of(images, 3))
    assert [len(batch) for batch in found] == [3, 3, 1]
    assert torch.equal(torch.cat(found), torch.stack([images[i][0] for i in range(7)]))


def test_a_list_of_arrays_that_are_read_only_or_run_backwards_is_stacked() -> None:
    rows = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    rows.flags.writeable = False
    (plain,), (reversed_,) = (list(batches_of(items, 4)) for items in (list(rows), [row[::-1] for row in rows]))
    assert plain.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert reversed_.tolist() == [[2, 1, 0], [5, 4, 3]]
    assert reversed_.dtype == np.float32
