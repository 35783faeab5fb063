"""Random splits of a set, and the file that keeps them with a run."""

import os
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Generator

from ddu.data._arrays import save_arrays
from ddu.data._dataset import ArrayDataset
from ddu.data._digits import stratified_split
from ddu.errors import DataError, InputError
from ddu.files import whole_file

_SIZE = "samples"  # of the set that was split


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


def save_splits(path: str | os.PathLike[str], dataset: ArrayDataset, **parts: np.ndarray) -> None:
    """Writes the indices of each part, whole or not at all.

    For example `save_splits("run/splits.npz", dataset, train=train, validation=validation)`.
    """
    if _SIZE in parts:
        raise InputError(f"A part of a split cannot be called {_SIZE!r}.")
    with whole_file(Path(path)) as file:
        save_arrays(file, {_SIZE: np.array(len(dataset)), **parts}, compressed=True)


def load_splits(path: str | os.PathLike[str], dataset: ArrayDataset) -> dict[str, np.ndarray]:
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
