"""Rows of several seeds as tables: mean and standard error, the best marked, the paper's figure beside each."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import hypot, nan
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from ddu.errors import InputError
from ddu.metrics import MeanAndStandardError, mean_and_standard_error
from ddu.results import table_formats as formats
from ddu.results.metrics import METRICS, Metric, describe
from ddu.results.paper import PaperFigure, paper_figure
from ddu.results.row import Row, latest

if TYPE_CHECKING:
    from rich.table import Table as RichTable

T = TypeVar("T")

_WIDTH = re.compile(r" x[0-9.]+")  # in the label of a network


@dataclass(frozen=True)
class Line:
    """Whose values stand in a line of a table: those of all seeds of one run."""

    detector: str
    network: str
    members: int = 1
    run: str = ""

    @property
    def deterministic(self) -> bool:
        """Whether it runs a single network, and is no ensemble."""
        return self.members == 1


@dataclass(frozen=True)
class Column:
    """What stands in a column of a table; without a metric, nothing was measured before the runs failed."""

    metric: str | None
    ood: str | None = None
    severity: int | None = None

    @property
    def description(self) -> Metric:
        """How to read the values."""
        return Metric("run") if self.metric is None else describe(self.metric)

    @property
    def heading(self) -> str:
        """The column's title, with its unit and the direction that is better.

        >>> Column("auroc", "svhn").heading
        'AUROC svhn (%) ↑'
        """
        described = self.description
        unit, arrow = "(%)" if described.share else None, {"higher": "↑", "lower": "↓", None: None}[described.better]
        return " ".join(word for word in (self.title, unit, arrow) if word)

    @property
    def title(self) -> str:
        """The metric, and the OoD set that it was measured on."""
        severity = None if self.severity is None else f"severity {self.severity}"
        return " ".join(word for word in (self.description.label, self.ood, severity) if word)


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        value: Mean, standard error and number of the seeds that have a value; None if none has.
        failed: How many seeds failed.
        paper: The paper's figure, where it has one.
        same_scale: Whether nothing was reduced against the paper, so that its figure is comparable.
        best: Whether it is the best of its column, or cannot be told from it.
        best_deterministic: The same among those that run a single network.
    """

    value: MeanAndStandardError | None
    failed: int = 0
    paper: PaperFigure | None = None
    same_scale: bool = True
    best: bool = False
    best_deterministic: bool = False


@dataclass(frozen=True)
class Table:
    """What detectors are worth on one training set; `tabulate` makes it from rows.

    In each column the best cell is bold, and the best one that runs a single network is underlined. Entries share a
    mark that agree in all digits that are written, or within two standard errors of their difference. One of which a
    seed failed gets none, and neither do times and memory of a single seed, whose noise is unknown.

    Attributes:
        data: The training data.
        lines: The detectors, those with a single network first.
        columns: What was measured.
        cells: The cells, (line, column).
        failures: The rows of runs that failed and were not made good.
    """

    data: str
    lines: tuple[Line, ...]
    columns: tuple[Column, ...]
    cells: tuple[tuple[Cell, ...], ...]
    failures: tuple[Row, ...] = ()

    def network_name(self, line: Line) -> str:
        """The network of a line; with the fingerprint of its run where another line has the same names."""
        names = [(other.detector, other.network, other.members) for other in self.lines]
        alone = names.count((line.detector, line.network, line.members)) == 1
        return line.network if alone else f"{line.network} (run {line.run})"

    @property
    def seeds(self) -> int:
        """How many seeds most cells have."""
        counts = Counter(cell.value.count for line in self.cells for cell in line if cell.value is not None)
        return max(counts, key=lambda count: (counts[count], count), default=0)

    def to_markdown(self) -> str:
        """The table in Markdown, with notes below it."""
        return formats.to_markdown(self)

    def to_latex(self) -> str:
        """The table as a LaTeX `tabular` for the package `booktabs`, with notes as comments below it."""
        return formats.to_latex(self)

    def to_csv(self) -> str:
        """Every cell as a line of CSV, with all its digits: shares between 0 and 1, what does not exist empty."""
        return formats.to_csv(self)

    def to_rich(self) -> "RichTable":
        """The table for the terminal; the notes are apart."""
        return formats.to_rich(self)

    @property
    def notes(self) -> list[str]:
        """What has to be known to read the table, and what failed, a line each."""
        return formats.notes(self)

    def only(self, columns: slice) -> "Table":
        """The table with some of its columns."""
        return replace(self, columns=self.columns[columns], cells=tuple(line[columns] for line in self.cells))


def tabulate(rows: Iterable[Row], metrics: Sequence[str] | None = None) -> list[Table]:
    """One table for each training set: detectors down, metrics across, every seed in the mean and its standard error.

    Of rows with the same key the last counts. A run that failed and was not made good later is counted in the cells
    that miss it, and told of in the notes.

    Args:
        rows: What was measured, as `RowFile.read` gives it.
        metrics: Which metrics to show, in this order; by default all there are, in the order of `METRICS`.
    """
    rows = latest(rows)
    if metrics is not None:
        _check_metrics(metrics, rows)
        rows = [row for row in rows if row.metric in (*metrics, None)]
    order = [*(metrics or METRICS)]
    return [_table(data, [row for row in rows if row.data == data], order) for data in _distinct(r.data for r in rows)]


def _table(data: str, rows: list[Row], order: Sequence[str]) -> Table:
    lines = sorted(_distinct(_line(row) for row in rows), key=lambda line: line.deterministic, reverse=True)
    measured = _distinct(Column(row.metric, row.ood, row.severity) for row in rows if row.metric is not None)
    columns = sorted(measured, key=lambda column: _place(column, order)) or [Column(metric=None)]
    by_line = {line: [row for row in rows if _line(row) == line] for line in lines}
    by_column = [
        _marked(lines, column, [_cell(data, line, column, by_line[line]) for line in lines]) for column in columns
    ]
    failures = tuple(row for row in rows if row.status == "failed")
    return Table(data, tuple(lines), tuple(columns), tuple(zip(*by_column, strict=True)), failures)


def _cell(data: str, line: Line, column: Column, rows: list[Row]) -> Cell:
    here = [row for row in rows if _concerns(row, column)]
    values = {row.seed: row.value for row in here if row.value is not None}
    failed = {row.seed for row in here if row.status == "failed"} - set(values)
    paper, reduced = None, any(row.reductions for row in here)
    if values and column.metric is not None and column.severity is None:
        network = _WIDTH.sub("", line.network) if reduced else line.network
        paper = paper_figure(line.detector, network, data, column.metric, ood=column.ood, members=line.members)
    return Cell(mean_and_standard_error(values.values()) if values else None, len(failed), paper, not reduced)


def _concerns(row: Row, column: Column) -> bool:
    """Whether a row has the column's value, or tells of a failure that kept it from being measured."""
    if (row.metric, row.ood, row.severity) == (column.metric, column.ood, column.severity):
        return True
    if row.status == "ok" or row.metric is not None:
        return False
    # A whole run failed, or a whole OoD set, or there is no other column to say it in
    return row.ood is None or (row.ood, row.severity) == (column.ood, column.severity) or column.metric is None


def _marked(lines: list[Line], column: Column, cells: list[Cell]) -> list[Cell]:
    metric = column.description
    if metric.better is None or len(lines) < 2 or (metric.noisy and not all(map(_has_known_spread, cells))):
        return cells
    best = _among_best(cells, metric)
    single = [cell if line.deterministic else Cell(None) for cell, line in zip(cells, lines, strict=True)]
    marks = zip(cells, best, _among_best(single, metric), strict=True)
    return [replace(cell, best=one, best_deterministic=other) for cell, one, other in marks]


def _has_known_spread(cell: Cell) -> bool:
    return cell.value is None or cell.value.standard_error is not None


def _among_best(cells: list[Cell], metric: Metric) -> list[bool]:
    """Which cells are the best, or no further from it than two standard errors of the difference."""
    # As written: what a reader cannot tell apart is equally good
    found = [
        (float(metric.write(cell.value.mean)), (100 if metric.share else 1) * (cell.value.standard_error or 0.0))
        if cell.value and not cell.failed
        else None
        for cell in cells
    ]
    choose = max if metric.better == "higher" else min
    mean, error = choose((one for one in found if one is not None), key=itemgetter(0), default=(nan, nan))
    return [one is not None and abs(one[0] - mean) <= 2 * hypot(one[1], error) for one in found]


def _line(row: Row) -> Line:
    return Line(row.detector, row.network, row.members, row.run)


def _place(column: Column, order: Sequence[str]) -> int:
    """By metric; the sort is stable, so OoD sets keep the order of the rows."""
    return order.index(column.metric) if column.metric in order else len(order)


def _distinct(items: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(items))


def _check_metrics(metrics: Sequence[str], rows: list[Row]) -> None:
    measured = _distinct(row.metric for row in rows if row.metric is not None)
    missing = [metric for metric in metrics if metric not in measured]
    if missing:
        raise InputError(f"No row has the metric {missing[0]!r}. There are: {', '.join(measured) or 'none'}.")
