"""Refuses bad features and labels in words: what is wrong, where, both numbers, and the way out."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ddu.density.moments import ClassMoments
from ddu.errors import FeatureError, InputError, LabelError
from ddu.messages import check_entries

Array = Tensor | np.ndarray
ArrayT = TypeVar("ArrayT", Tensor, np.ndarray)

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def check_features(z: Array, *, dim: int | None = None) -> Tensor:
    """Features as a finite tensor (sample, feature) of single or double precision."""
    tensor = _as_tensor(z, "features", FeatureError).detach()
    if tensor.ndim != 2:
        raise FeatureError(
            f"Features must have shape (samples, features). Got {tuple(tensor.shape)}: "
            + ("reshape a single sample with z[None, :]." if tensor.ndim == 1 else "pool or flatten them first.")
        )
    if tensor.is_complex():
        raise FeatureError(
            f"Complex features of dtype {tensor.dtype} are not supported: take their real part or modulus."
        )
    if dim is not None and tensor.shape[1] != dim:
        raise FeatureError(
            f"The density was fitted on {dim} features, these have {tensor.shape[1]}. "
            "Use features of the same layer of the same network, or fit again."
        )
    if tensor.shape[1] == 0:
        raise FeatureError(f"Features must have at least one column. Got shape {tuple(tensor.shape)}.")
    if not tensor.is_floating_point():
        tensor = tensor.double()
    # NaN and infinity show in the sum, at a fraction of the cost of looking at every value
    if not torch.isfinite(tensor.sum()) and not (finite := torch.isfinite(tensor)).all():
        raise FeatureError(_not_finite(tensor, finite))
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def check_labels(y: Array, *, samples: int, num_classes: int | None = None) -> Tensor:
    """Labels as an int64 tensor (sample,) in 0 … num_classes - 1."""
    tensor = _as_tensor(y, "labels", LabelError)
    if tensor.dtype not in _INTEGERS:
        raise LabelError(
            f"Labels must be integers from 0 to the number of classes - 1. Got dtype {tensor.dtype}: "
            "convert class indices with y.long(), one-hot or soft labels with y.argmax(1)."
        )
    if tensor.ndim != 1:
        raise LabelError(
            f"Labels must have shape (samples,). Got {tuple(tensor.shape)}: use y.argmax(1) on one-hot labels, "
            "y.flatten() on a column."
        )
    if len(tensor) != samples:
        raise LabelError(f"There are {samples} rows of features but {len(tensor)} labels: give one label per row.")
    tensor = tensor.long()
    if len(tensor) and int(tensor.min()) < 0:
        raise LabelError(
            f"Labels must not be negative. Got {int(tensor.min())} at position {int(tensor.argmin())}: "
            "drop unlabelled samples before fitting."
        )
    if num_classes is not None and len(tensor) and int(tensor.max()) >= num_classes:
        raise LabelError(
            f"Labels must be below the number of classes, {num_classes}. Got {int(tensor.max())} at position "
            f"{int(tensor.argmax())}: check that labels are indices from 0 to {num_classes - 1}."
        )
    return tensor


def check_classes(classes: object, num_classes: int | None = None) -> list[int]:
    """Some of the classes of a model, at least two, each once, in any order."""
    numbers = classes.tolist() if isinstance(classes, Tensor | np.ndarray) else classes
    items = list(numbers) if isinstance(numbers, Sequence) and not isinstance(numbers, str) else []
    is_right = all(isinstance(c, int | np.integer) and not isinstance(c, bool) and c >= 0 for c in items)
    if not is_right or len(items) < 2 or len(set(items)) < len(items):
        raise InputError(
            "The 'classes' must be at least two numbers of classes of the model, each once, such as [0, 3, 7]. "
            f"Got {classes!r} instead."
        )
    if num_classes is not None and max(items) >= num_classes:
        raise InputError(f"The 'classes' must be below the number of classes, {num_classes}. Got {max(items)} instead.")
    return [int(c) for c in items]


def check_counts(counts: Tensor) -> None:
    """Every class has the two samples that a variance needs."""
    empty = (counts == 0).nonzero().flatten().tolist()
    if empty:
        raise LabelError(
            f"{_name(empty)} 0 of the {int(counts.sum())} samples, out of {len(counts)} classes. Every class needs at "
            "least 2 to have a density: add samples, or number the classes that do occur from 0 without gaps."
        )
    single = (counts == 1).nonzero().flatten().tolist()
    if single:
        raise LabelError(
            f"{_name(single)} 1 sample, and a variance needs at least 2: add samples, or leave the class out."
        )


def check_removable(moments: ClassMoments, label: int, rows: Tensor) -> None:
    """Samples of a class can be among those that its moments have seen."""
    seen = int(moments.count[label])
    if len(rows) > seen:
        raise LabelError(
            f"Cannot forget {len(rows)} samples of class {label}: only {seen} have been seen. "
            "Give downdate the samples that were given to fit or update."
        )
    spread = (rows - moments.mean[label]).square().sum()
    if spread > moments.squares[label].sum() * (1 + 1e-6):
        raise FeatureError(
            f"These {len(rows)} samples of class {label} spread further ({float(spread):.4g}) than all {seen} that "
            f"have been seen ({float(moments.squares[label].sum()):.4g}), so they were not among them. Give downdate "
            "the samples that were given to fit or update."
        )


def check_device(device: object) -> None:
    """Refuses a dtype, which `nn.Module.to` takes and what was learned here does not."""
    if not isinstance(device, torch.device | str | None):
        raise InputError(
            f"to() takes a device, such as 'cuda' or torch.device('cpu'). Got {device!r} instead. Learned tensors keep "
            "their precision; features are scored in their own."
        )


def check_mean(name: str, tensors: Mapping[str, Tensor], num_classes: int | None) -> tuple[int, int]:
    """The numbers of classes and features, from the shape of the learned means among others."""
    shape = tuple(tensors[name].shape) if name in tensors else ()
    if len(shape) != 2 or 0 in shape or num_classes not in (None, shape[0]):
        raise InputError(
            f"The learned tensor {name!r} must have the shape ({num_classes or 'classes'}, features). "
            f"Got {shape} instead."
        )
    return shape


def check_state(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Learned tensors have the names, types and shapes of others, which may be on the device "meta", and are finite."""
    check_entries("the learned tensors", dict(tensors), like)
    for name, wanted in like.items():
        tensor = tensors[name]
        if (tensor.dtype, tensor.shape) != (wanted.dtype, wanted.shape):
            raise InputError(
                f"The learned tensor {name!r} must be {wanted.dtype} of shape {tuple(wanted.shape)}. Got "
                f"{tensor.dtype} of shape {tuple(tensor.shape)} instead."
            )
        # As in `check_features`: a mask of every value is costly in memory
        if not torch.isfinite(tensor.sum()) and (bad := int((~torch.isfinite(tensor)).sum())):
            raise InputError(f"The learned tensor {name!r} has {bad} of {tensor.numel()} values that are not finite.")


def _name(classes: list[int]) -> str:
    listed = ", ".join(map(str, classes[:5])) + (", ..." if len(classes) > 5 else "")
    return f"Class {listed} has" if len(classes) == 1 else f"Classes {listed} have"


def _as_tensor(values: Array, what: str, error: type[Exception]) -> Tensor:
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        raise error(f"The {what} must be numbers. Got an array of dtype {array.dtype}.")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    # torch shares memory with what it is given, and takes neither read-only, reversed nor byte-swapped arrays
    return torch.from_numpy(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).copy())


def _not_finite(tensor: Tensor, finite: Tensor) -> str:
    rows = (~finite).any(1).nonzero().flatten()
    row = int(rows[0])
    column = int((~finite[row]).nonzero()[0])
    where = (
        f"{len(rows)} of {len(tensor)} rows of features are not finite; the first value is "
        f"{float(tensor[row, column])} at row {row}, column {column}."
    )
    if tensor.dtype == torch.float16 and not torch.isnan(tensor).any():
        limit = int(torch.finfo(torch.float16).max)
        return f"{where} float16 overflows beyond {limit}: run the network in float32 or bfloat16."
    return f"{where} Check the network's weights and inputs, or drop those rows."
