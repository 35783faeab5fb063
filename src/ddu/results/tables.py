"""Rows of several seeds as tables: mean and standard error, the best marked, the paper's figure beside each."""

import csv
import html
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, nan
from operator import itemgetter
from textwrap import fill
from typing import TYPE_CHECKING, TypeVar

from ddu.errors import InputError
from ddu.messages import require
from ddu.metrics import MeanAndStandardError, mean_and_standard_error
from ddu.results.metrics import METRICS, Metric, describe
from ddu.results.paper import PaperFigure, paper_figure
from ddu.results.rows import Row, latest

if TYPE_CHECKING:
    from rich.table import Table as RichTable

T = TypeVar("T")

# In the label of a network
_WIDTH = re.compile(r" x[0-9.]+")
_SUBSET = re.compile(r", ([0-9.]+) % of the data$")


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
        head, body = _cells(self, _Markup(_escape_markdown, bold="**{}**", underline="<ins>{}</ins>"))
        rule = ["---", "---", *("---:" for _ in self.columns)]
        lines = [f"| {' | '.join(row)} |" for row in (head, rule, *body)]
        notes = [f"- {note}" for note in (*self._own_notes, *self._failed)]
        return "\n".join([f"Trained on {self.data}", "", *lines, "", *notes, "", *_papers_table(self)])

    def to_latex(self) -> str:
        """The table as a LaTeX `tabular` for the package `booktabs`, with notes as comments below it."""
        head, body = _cells(self, _Markup(_escape_latex, bold=r"\textbf{{{}}}", underline=r"\underline{{{}}}"))
        lines = [r"\begin{tabular}{ll" + "r" * len(self.columns) + "}", r"\toprule", _latex_row(head)]
        for first, row in zip(_begins_section(self), body, strict=True):
            lines += [r"\midrule"] * first + [_latex_row(row)]
        comments = [f"% {note}" for note in (f"Trained on {self.data}", *self.notes)]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *comments, ""])

    def to_html(self, title: str) -> str:
        """The table for a page, turned round so that many metrics fit on a phone: a row each, a column per detector."""
        head, body = _cells(self, _Markup(html.escape, bold="<strong>{}</strong>", underline="<u>{}</u>"))
        names = [f'<th scope="col" class="value">{detector} on {network}</th>' for detector, network, *_ in body]
        lines = [
            [f'<th scope="row">{title}</th>', *(f'<td class="value">{cell}</td>' for cell in cells)]
            for title, *cells in zip(head[2:], *(line[2:] for line in body), strict=True)
        ]
        notes = "".join(f"<br>{html.escape(note)}" for note in self.notes)
        return "\n".join(
            [
                f"<table><caption>{html.escape(title)}, trained on {html.escape(self.data)}.{notes}</caption>",
                f'<thead><tr><th scope="col">Metric</th>{"".join(names)}</tr></thead>',
                *("<tbody>", *(f"<tr>{''.join(line)}</tr>" for line in lines), "</tbody></table>"),
            ]
        )

    def to_csv(self) -> str:
        """Every cell as a line of CSV, with all its digits: shares between 0 and 1, what does not exist empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_CSV_COLUMNS)
        for line, cells in zip(self.lines, self.cells, strict=True):
            for column, cell in zip(self.columns, cells, strict=True):
                value, paper = cell.value, cell.paper
                writer.writerow(
                    (
                        *(line.detector, line.network, line.members, self.data, line.run),
                        *(column.ood, column.severity, column.metric),
                        *((value.mean, value.standard_error, value.count) if value else (None, None, 0)),
                        *(cell.failed, cell.best, cell.best_deterministic),
                        *((paper.mean, paper.standard_error, paper.table) if paper else (None, None, None)),
                        None if paper is None else "same" if cell.same_scale else "other",
                    )
                )
        return text.getvalue()

    def to_rich(self) -> "RichTable":
        """The table for the terminal; the notes are apart."""
        box, markup, rich_table = (
            require(f"rich.{module}", extra="cli", purpose="Table.to_rich") for module in ("box", "markup", "table")
        )
        head, body = _cells(self, _Markup(markup.escape, bold="[bold]{}[/]", underline="[underline]{}[/]", gap="\n"))
        drawn = rich_table.Table(
            title=f"Trained on {markup.escape(self.data)}",
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for index, heading in enumerate(head):
            folded = fill(heading, _HEADING_WIDTH, break_long_words=False)
            drawn.add_column(folded, justify="right" if index > 1 else "left", no_wrap=True)
        for first, row in zip(_begins_section(self), body, strict=True):
            if first and drawn.row_count:
                drawn.add_section()
            drawn.add_row(*row)
        return drawn

    @property
    def notes(self) -> list[str]:
        """What has to be known to read the table, the paper's figures where they stand apart, and what failed."""
        return [*self._own_notes, *_papers_other_scale(self), *self._failed]

    @property
    def _failed(self) -> list[str]:
        return [f"Failed: {row.subject}: {' '.join((row.error or '').split())}" for row in self.failures]

    @property
    def _own_notes(self) -> list[str]:
        cells = [cell for line in self.cells for cell in line]
        lines = []
        uneven = any(cell.value is not None and cell.value.count != self.seeds for cell in cells)
        unless = ", where n does not say otherwise" if uneven else ""
        if self.seeds > 1:
            lines.append(f"Mean ± standard error of the mean over {self.seeds} seeds{unless}.")
        elif self.seeds == 1:
            lines.append(f"One seed, so there is no standard error{unless}.")
        if any(cell.best for cell in cells):
            within = ", and what is within two standard errors of the difference" if self.seeds > 1 else ""
            lines.append(f"Bold: the best{within}. Underlined: the same among single networks.")
        if self.seeds == 1 and len(self.lines) > 1 and any(column.description.noisy for column in self.columns):
            lines.append("Times and memory of one seed are not ranked, since their noise is unknown.")
        if any(cell.paper and cell.same_scale for cell in cells):
            lines.append("In brackets: the paper's figure, mean ± standard error.")
        return lines

    def beside(self, networks: Mapping[str, str]) -> "Table":
        """The table with the paper's figures of other networks, where ours were reduced and it has none of the same.

        Args:
            networks: The paper's architecture that stands beside ours, by the name of ours.
        """

        def with_paper(line: Line, column: Column, cell: Cell) -> Cell:
            if cell.value is None or cell.paper is not None or cell.same_scale:
                return cell
            return replace(cell, paper=_paper(self.data, line, column, reduced=True, networks=networks))

        cells = (
            tuple(with_paper(line, column, cell) for column, cell in zip(self.columns, cells, strict=True))
            for line, cells in zip(self.lines, self.cells, strict=True)
        )
        return replace(self, cells=tuple(cells))

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
    if values:
        paper = _paper(data, line, column, reduced=reduced)
    return Cell(mean_and_standard_error(values.values()) if values else None, len(failed), paper, not reduced)


def _paper(
    data: str, line: Line, column: Column, *, reduced: bool, networks: Mapping[str, str] | None = None
) -> PaperFigure | None:
    """The paper's figure for a cell; beside one that is reduced, also of a wider network or a larger ensemble."""
    if column.metric is None or column.severity is not None:
        return None
    subset, network = _SUBSET.search(line.network), _SUBSET.sub("", line.network)
    part = None if subset is None else float(subset[1]) / 100
    if reduced:
        architecture, plus, smooth = _WIDTH.sub("", network).partition("+")
        network = f"{(networks or {}).get(architecture, architecture)}{plus}{smooth}"
    members = None if reduced and not line.deterministic else line.members
    return paper_figure(line.detector, network, data, column.metric, ood=column.ood, members=members, subset=part)


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


# How a table is written

_CSV_COLUMNS = (
    *("detector", "network", "members", "data", "run", "ood", "severity", "metric"),
    *("mean", "standard_error", "seeds", "failed", "best", "best_deterministic"),
    *("paper_mean", "paper_standard_error", "paper_table", "paper_scale"),
)
_HEADING_WIDTH = 13  # on the terminal


@dataclass(frozen=True)
class _Markup:
    escape: Callable[[str], str]
    bold: str
    underline: str
    gap: str = " "  # between a value and what is said of it


def _cells(table: Table, markup: _Markup) -> tuple[list[str], list[list[str]]]:
    """The head and the body of the table, as text in a markup."""
    head = ["detector", "network", *(markup.escape(column.heading) for column in table.columns)]
    body = [
        [markup.escape(line.detector), markup.escape(table.network_name(line))]
        + [
            _written(cell, column.description, table.seeds, markup)
            for cell, column in zip(cells, table.columns, strict=True)
        ]
        for line, cells in zip(table.lines, table.cells, strict=True)
    ]
    return head, body


def _written(cell: Cell, metric: Metric, usual_seeds: int, markup: _Markup) -> str:
    words = "–"
    remarks = [f"{cell.failed} failed"] if cell.failed else []
    if cell.value is not None:
        words = metric.write(cell.value.mean, cell.value.standard_error)
        remarks = [f"n = {cell.value.count}"] * (cell.value.count != usual_seeds) + remarks
    text = markup.escape(words)
    if cell.best_deterministic:
        text = markup.underline.format(text)
    if cell.best:
        text = markup.bold.format(text)
    parts = [f"({', '.join(remarks)})"] if remarks else []
    if cell.paper is not None and cell.same_scale:
        parts.append(f"[{metric.write(cell.paper.mean, cell.paper.standard_error)}]")
    return markup.gap.join([text, *map(markup.escape, parts)])


def _papers_other_scale(table: Table) -> list[str]:
    """The paper's figures for runs that are reduced here, a line for each detector."""
    return [
        f"The paper's {detector} on {network} (other scale): "
        + ", ".join(f"{column.title} {_printed(figure, column)}" for column, figure in figures.items())
        + "."
        for (detector, network), figures in _of_other_scale(table).items()
    ]


def _papers_table(table: Table) -> list[str]:
    """The same as a table in Markdown, with the columns of ours; bold is what the paper prints in bold."""
    found = _of_other_scale(table)
    columns = [column for column in table.columns if any(column in figures for figures in found.values())]
    if not found:
        return []
    head = ["detector", "network", *(_escape_markdown(column.heading) for column in columns)]
    rule = ["---", "---", *("---:" for _ in columns)]
    body = [
        [*map(_escape_markdown, subject), *(_printed(figures.get(one), one, bold="**{}**") for one in columns)]
        for subject, figures in found.items()
    ]
    lines = [f"| {' | '.join(row)} |" for row in (head, rule, *body)]
    return ["The paper's figures, at its own scale, bold as printed in the paper:", "", *lines, ""]


def _of_other_scale(table: Table) -> dict[tuple[str, str], dict[Column, PaperFigure]]:
    """The paper's figures for runs that are reduced here, by detector and its network, and by column.

    A detector that has nothing but figures of another one on the same network is left out: they are the network's.
    """
    found = dict[tuple[str, str], dict[Column, PaperFigure]]()
    for line, cells in zip(table.lines, table.cells, strict=True):
        for column, cell in zip(table.columns, cells, strict=True):
            if cell.paper is not None and not cell.same_scale:
                found.setdefault((line.detector, _papers_network(cell.paper)), {})[column] = cell.paper
    return {
        subject: figures
        for subject, figures in found.items()
        if not any(figures.items() < others.items() for others in found.values())
    }


def _papers_network(figure: PaperFigure) -> str:
    members = "" if figure.members == 1 else f"{figure.members} x "
    part = "" if figure.subset is None else f", {100 * figure.subset:g} % of the data"
    return f"{members}{figure.network}{part}"


def _printed(figure: PaperFigure | None, column: Column, bold: str = "{}") -> str:
    if figure is None:
        return "–"
    words = column.description.write(figure.mean, figure.standard_error)
    return bold.format(words) if figure.bold else words


def _escape_markdown(text: str) -> str:
    return text.replace("|", "\\|")


def _begins_section(table: Table) -> list[bool]:
    """Whether a line is the first of those with a single network, or of the ensembles."""
    kinds = [line.deterministic for line in table.lines]
    return [i == 0 or kind != kinds[i - 1] for i, kind in enumerate(kinds)]


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "–": "--",
} | {character: f"\\{character}" for character in "&%$#_{}"}


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
