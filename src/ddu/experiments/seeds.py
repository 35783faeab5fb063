"""Experiments that are short: all rows of a seed are measured, and written, together; the page is one figure."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ddu.experiments.experiment import ROWS
from ddu.files import FilePath, write_arrays, write_bytes
from ddu.provenance import fingerprint
from ddu.report import as_png
from ddu.results import Row, RowFile, latest, source
from ddu.resume import keep_settings, one_at_a_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETTINGS, ARRAYS = "experiment.json", "arrays.npz"


class Measured(NamedTuple):
    """What one seed gave.

    Attributes:
        values: For each row what it is besides data, seed and run: detector, network, metric, value, ...
        arrays: What the figures show.
    """

    values: Sequence[Mapping[str, Any]]
    arrays: Mapping[str, np.ndarray]


class OneFigure(ABC):
    """The page of an experiment: one figure of the arrays of its first seed.

    Attributes:
        figure: The name of its file.
    """

    figure: ClassVar[str]

    @abstractmethod
    def draw(self, arrays: Mapping[str, np.ndarray]) -> "Figure":
        """The figure.

        Args:
            arrays: The content of arrays.npz.
        """

    def write_page(self, folder: FilePath) -> list[Path]:
        """Writes the figure for the first seed."""
        path = Path(folder) / self.figure
        write_bytes(path, as_png(self.draw(read_arrays(folder))))
        return [path]


def measure_seeds(
    experiment: Any,
    name: str,
    folder: FilePath,
    measure: Callable[[int], Measured],
    *,
    last: Mapping[str, Any],
    digest: str = "",
    command: str = "",
    **facts: Any,
) -> list[Row]:
    """Measures each seed that has no rows yet; see `Experiment.measure`.

    The folder gets the settings, rows.csv, and the arrays of the first seed.

    Args:
        experiment: The specification, a dataclass with `seeds`.
        name: Its name for people.
        folder: The folder of the experiment.
        measure: Measures one seed.
        last: Attributes of the last row of a seed alone: where it is on disk, all of them are.
        digest: Of the data.
        command: The command to record with the rows.
        **facts: What all rows have in common.
    """
    folder, file = Path(folder), RowFile(Path(folder, ROWS))
    settings = json.loads(json.dumps(asdict(experiment)))
    del settings["seeds"]
    with one_at_a_time(folder):
        keep_settings(folder / SETTINGS, f"{name} experiment", settings)
        run = fingerprint(settings, digest)
        done = {row.seed for row in file.read() if row.run == run and last.items() <= asdict(row).items()}
        if not (folder / ARRAYS).is_file():
            done.discard(experiment.seeds[0])
        for seed in experiment.seeds:
            if seed in done:
                continue
            values, arrays = measure(seed)
            if seed == experiment.seeds[0]:
                write_arrays(folder / ARRAYS, dict(arrays))
            common: dict[str, Any] = {**facts, **source(command), "seed": seed, "run": run}
            file.append(Row(**common, **value) for value in values)
        return [row for row in latest(file.read()) if row.run == run and row.seed in experiment.seeds]


def read_arrays(folder: FilePath) -> dict[str, np.ndarray]:
    """What the figures of an experiment show, by name."""
    with np.load(Path(folder) / ARRAYS) as arrays:
        return dict(arrays)
