"""Random splits of a set, and the file that keeps them with a run."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from ddu.data.dataset import ArrayDataset
from ddu.errors import DataError, InputError
from ddu.files import FilePath, write_arrays

_SIZE = "samples"  # of the set that was split


def split(dataset: ArrayDataset, share: float, *, seed: int, stratified: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Indices of a random split: the rest of the samples, and `share` of them.

    Samples of one group (`dataset.groups`) stay together, so that nothing that was trained on is held out as well; the
    shares are then right to within one group.

    Args:
        dataset: What to split.
        share: Of the second part, for example 0.1 for validation.
        seed: The same seed gives the same split.
        stratified: Keep the classes' shares, to within one sample or group; see `stratified_split`.
    """
    if not 0 < share < 1:
        raise InputError(f"The share of a split must lie between 0 and 1. Got {share!r} instead.")
    generator = Generator().manual_seed(seed)
    labels, groups = _tensors(dataset)
    if stratified:
        large, small = stratified_split(labels, [1 - share, share], generator, groups)
    else:
        small, large = stratified_split(torch.zeros_like(labels), [share, 1 - share], generator, groups)
    return large.numpy(), small.numpy()


def draw(dataset: ArrayDataset, count: int, *, seed: int) -> np.ndarray:
    """Indices of at most `count` samples, drawn at random in whole groups, in ascending order."""
    group, labels = (values.numpy() for values in grouped(*_tensors(dataset)))
    order = np.random.default_rng(seed).permutation(len(labels))
    filled = np.bincount(group, minlength=len(labels))[order].cumsum()  # samples up to each group
    return np.flatnonzero(np.isin(group, order[filled <= count]))


def stratified_split(
    labels: Tensor, shares: Sequence[float], generator: Generator, groups: Tensor | None = None
) -> list[Tensor]:
    """Splits samples at random into parts in which every class has the same share, to within one sample.

    With groups, to within one group. The class of a group is the most frequent label in it; of groups with several
    labels, those that are not the most frequent have the right share on average only.

    Args:
        labels: Labels, (sample,).
        shares: The share of each part; they add up to 1.
        generator: Where the randomness comes from.
        groups: Samples of one group, (sample,), go to the same part; None if every sample is on its own.

    Returns:
        The indices of each part, in ascending order.

    >>> parts = stratified_split(torch.arange(10) % 2, [0.6, 0.4], Generator().manual_seed(0))
    >>> [len(part) for part in parts]
    [6, 4]
    """
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise InputError(f"The shares of a split must be positive and add up to 1. Got {list(shares)}.")
    group, classes = grouped(labels, groups)
    sizes = group.bincount(minlength=len(classes))
    part_of = torch.empty_like(classes)  # for each group
    cuts = torch.tensor(shares, dtype=torch.float64).cumsum(0)[:-1]
    for label in classes.unique():
        members = (classes == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        filled = sizes[members].cumsum(0)  # samples up to each group
        wanted = (cuts * filled[-1]).round().long()
        ends = (torch.nn.functional.pad(filled, (1, 0)) - wanted[:, None]).abs().argmin(1)  # the nearest whole groups
        for part, chunk in enumerate(members.tensor_split(ends)):
            part_of[chunk] = part
    return [(part_of[group] == part).nonzero().flatten() for part in range(len(shares))]


def _tensors(dataset: ArrayDataset) -> tuple[Tensor, Tensor | None]:
    """Labels, and groups if there are any."""
    return torch.from_numpy(dataset.labels), None if dataset.groups is None else torch.from_numpy(dataset.groups)


def grouped(labels: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor]:
    """The group of each sample, counted from 0 in the order of their first samples; and the label of each group.

    That is the most frequent label of its samples, and the smallest of those that are equally frequent.

    >>> grouped(torch.tensor([4, 9, 9, 1]), torch.tensor([7, 7, 7, 2]))
    (tensor([0, 0, 0, 1]), tensor([9, 1]))
    """
    if groups is None:
        return torch.arange(len(labels)), labels
    _, first, group = np.unique(groups.numpy(), return_index=True, return_inverse=True)
    group = torch.from_numpy(first.argsort().argsort()[group])
    pairs, counts = torch.stack([group, labels]).unique(dim=1, return_counts=True)
    # The labels of a group are in ascending order: a stable sort keeps the smallest of the most frequent first
    order = counts.argsort(descending=True, stable=True)
    order = order[pairs[0, order].argsort(stable=True)]
    return group, pairs[1, order][pairs[0, order].diff(prepend=torch.tensor([-1])) > 0]


def save_splits(path: FilePath, dataset: ArrayDataset, **parts: np.ndarray) -> None:
    """Writes the indices of each part, whole or not at all.

    For example `save_splits("run/splits.npz", dataset, train=train, validation=validation)`.
    """
    if _SIZE in parts:
        raise InputError(f"A part of a split cannot be called {_SIZE!r}.")
    write_arrays(Path(path), {_SIZE: np.array(len(dataset)), **parts})


def load_splits(path: FilePath, dataset: ArrayDataset) -> dict[str, np.ndarray]:
    """Reads what `save_splits` wrote, and refuses it for a set of another size."""
    try:
        with Path(path).open("rb") as file, np.load(file) as arrays:
            parts = {name: arrays[name] for name in arrays.files}
        size = int(parts.pop(_SIZE))
    except FileNotFoundError as error:
        raise DataError(f"There are no splits at {path}: save_splits writes them.") from error
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is truncated, or was not written by save_splits: {error}") from error
    if size != len(dataset):
        raise DataError(f"{path} splits {size:,} samples, and {dataset.info.name} has {len(dataset):,}.")
    return parts
