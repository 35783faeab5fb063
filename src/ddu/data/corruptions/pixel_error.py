"""How far corrupted pixels are from the original ones."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from ddu.data.corruptions.catalogue import CORRUPTIONS, SEVERITIES, check_seed, check_set, corrupt, find_corruption
from ddu.data.corruptions.generation import Step, checked_workers, over_chunks


@dataclass(frozen=True)
class PixelErrorTable:
    """Mean absolute pixel errors, in steps of a byte.

    Attributes:
        errors: Name of each corruption, and its errors at severities 1 to 5.
    """

    errors: Mapping[str, tuple[float, ...]]

    @property
    def not_rising(self) -> dict[str, tuple[int, ...]]:
        """The corruptions whose error does not always rise, and the severities at which it is no larger than before.

        >>> PixelErrorTable({"saturate": (11.9, 15.3, 7.8, 20.0, 29.0), "fog": (1.0, 2.0, 3.0, 4.0, 5.0)}).not_rising
        {'saturate': (3,)}
        """
        falls = {
            name: tuple(s for s, before, after in zip(SEVERITIES[1:], row, row[1:], strict=False) if after <= before)
            for name, row in self.errors.items()
        }
        return {name: severities for name, severities in falls.items() if severities}

    def to_markdown(self) -> str:
        """One row per corruption, one column per severity."""
        head = ["| corruption | 1 | 2 | 3 | 4 | 5 | rises |", "|---|---|---|---|---|---|---|"]
        rows = (
            f"| {name} | {' | '.join(f'{error:.1f}' for error in row)} | {'no' if name in self.not_rising else 'yes'} |"
            for name, row in self.errors.items()
        )
        return "\n".join([*head, *rows]) + "\n"


def pixel_error_table(
    images: np.ndarray,
    *,
    corruptions: Sequence[str] = CORRUPTIONS,
    seed: int = 0,
    workers: int | None = None,
    progress: bool | None = None,
) -> PixelErrorTable:
    """Measures the mean absolute difference between corrupted and original pixels at every severity.

    Args:
        images: Bytes, (image, height, width, 3).
        corruptions: Which of `CORRUPTIONS`.
        seed: Decides all randomness.
        workers: How many processes; by default one for each core. See `generate` about scripts.
        progress: Whether to draw a bar; by default on a terminal.
    """
    check_set(images)
    check_seed(seed)
    workers = checked_workers(workers)
    names = [find_corruption(name).name for name in corruptions]
    totals = {(name, severity): 0 for name in names for severity in SEVERITIES}
    chunks = over_chunks(
        _total_error, images, names, SEVERITIES, seed=seed, workers=workers, description="Measuring", progress=progress
    )
    with closing(chunks):
        for step, total in chunks:
            totals[step.name, step.severity] += total
    return PixelErrorTable({name: tuple(totals[name, s] / images.size for s in SEVERITIES) for name in names})


def _total_error(images: np.ndarray, step: Step, seed: int) -> int:
    corrupted = corrupt(images, step.name, step.severity, seed=seed, start=step.start)
    return int(np.abs(corrupted.astype(np.int16) - images).sum(dtype=np.int64))
