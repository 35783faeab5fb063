"""Checks: what is refused, in which words, and what comes through."""

from typing import Any

import numpy as np
import pytest
import torch

from ddu.density import check_features, check_labels
from ddu.errors import FeatureError, LabelError


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (np.array([["a", "b"]]), "The features must be numbers. Got an array of dtype <U1."),
        (
            torch.ones(2, 3, dtype=torch.complex64),
            "Complex features of dtype torch.complex64 are not supported: take their real part or modulus.",
        ),
        (torch.ones(2, 0), "Features must have at least one column. Got shape (2, 0)."),
        (
            np.array([[1.0, np.inf], [np.nan, 1.0], [0.0, 0.0]], dtype=np.float16),
            "2 of 3 rows of features are not finite; the first value is inf at row 0, column 1. Check the network's "
            "weights and inputs, or drop those rows.",
        ),
        (
            torch.tensor([[1.0], [1e39]]).bfloat16(),
            "1 of 2 rows of features are not finite; the first value is inf at row 1, column 0. Check the network's "
            "weights and inputs, or drop those rows.",
        ),
    ],
    ids=["text", "complex", "no columns", "nan and overflow", "bfloat16"],
)
def test_bad_features_are_refused(z: Any, message: str) -> None:
    with pytest.raises(FeatureError) as caught:
        check_features(z)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array(["cat", "dog"]), "The labels must be numbers. Got an array of dtype <U3."),
        (
            torch.tensor([True, False]),
            "Labels must be integers from 0 to the number of classes - 1. Got dtype torch.bool: convert class indices "
            "with y.long(), one-hot or soft labels with y.argmax(1).",
        ),
        (
            torch.tensor([[0], [1]]),
            "Labels must have shape (samples,). Got (2, 1): use y.argmax(1) on one-hot labels, y.flatten() on a "
            "column.",
        ),
    ],
    ids=["text", "boolean", "column"],
)
def test_bad_labels_are_refused(y: Any, message: str) -> None:
    with pytest.raises(LabelError) as caught:
        check_labels(y, samples=2)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("f2", torch.float32),
        ("f4", torch.float32),
        ("f8", torch.float64),
        ("g", torch.float64),
        ("i1", torch.float64),
        ("u8", torch.float64),
        ("?", torch.float64),
    ],
)
def test_numpy_features_keep_their_values(dtype: str, expected: torch.dtype) -> None:
    array = np.array([[0, 1], [1, 0]]).astype(dtype)
    tensor = check_features(array)
    assert tensor.dtype == expected
    assert tensor.tolist() == [[0, 1], [1, 0]]


def test_lists_are_taken() -> None:
    assert check_features([[1.0, 2.0]]).tolist() == [[1.0, 2.0]]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", ">i4", "u4", "i8", "u8"])
def test_labels_of_any_integer_dtype_are_taken(dtype: str) -> None:
    labels = check_labels(np.array([0, 2, 1], dtype=dtype), samples=3, num_classes=3)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [0, 2, 1]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_unsigned_torch_labels_are_taken(dtype: torch.dtype) -> None:
    assert check_labels(torch.tensor([0, 2, 1]).to(dtype), samples=3).tolist() == [0, 2, 1]
