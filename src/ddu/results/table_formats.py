"""A table of results as Markdown, LaTeX, CSV and for the terminal."""

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

from ddu.extras import require
from ddu.results.metrics import Metric

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from ddu.results.tables import Cell, Table

_CSV_COLUMNS = (
    *("detector", "network", "members", "data", "run", "ood", "severity", "metric"),
    *("mean", "standard_error", "seeds", "failed", "best", "best_deterministic"),
    *("paper_mean", "paper_standard_error", "paper_table", "paper_scale"),
)
_HEADING_WIDTH = 13  # on the terminal


def to_markdown(table: "Table") -> str:
    """The table in Markdown, with notes below it."""
    head, body = _cells(table, _Markup(lambda text: text.replace("|", "\\|"), bold="**{}**", underline="<ins>{}</ins>"))
    rule = ["---", "---", *("---:" for _ in table.columns)]
    lines = [f"| {' | '.join(row)} |" for row in (head, rule, *body)]
    return "\n".join([f"Trained on {table.data}", "", *lines, "", *(f"- {note}" for note in notes(table)), ""])


def to_latex(table: "Table") -> str:
    """The table as a LaTeX `tabular` for the package `booktabs`, with notes as comments below it."""
    head, body = _cells(table, _Markup(_escape_latex, bold=r"\textbf{{{}}}", underline=r"\underline{{{}}}"))
    lines = [r"\begin{tabular}{ll" + "r" * len(table.columns) + "}", r"\toprule", _latex_row(head)]
    for first, row in zip(_begins_section(table), body, strict=True):
        lines += [r"\midrule"] * first + [_latex_row(row)]
    comments = [f"% {note}" for note in (f"Trained on {table.data}", *notes(table))]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *comments, ""])


def to_csv(table: "Table") -> str:
    """Every cell as a line of CSV, with all its digits: shares between 0 and 1, what does not exist empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for line, cells in zip(table.lines, table.cells, strict=True):
        for column, cell in zip(table.columns, cells, strict=True):
            value, paper = cell.value, cell.paper
            writer.writerow(
                (
                    *(line.detector, line.network, line.members, table.data, line.run),
                    *(column.ood, column.severity, column.metric),
                    *((value.mean, value.standard_error, value.count) if value else (None, None, 0)),
                    *(cell.failed, cell.best, cell.best_deterministic),
                    *((paper.mean, paper.standard_error, paper.table) if paper else (None, None, None)),
                    None if paper is None else "same" if cell.same_scale else "other",
                )
            )
    return text.getvalue()


def to_rich(table: "Table") -> "RichTable":
    """The table for the terminal; the notes are apart."""
    box, markup, rich_table = (
        require(f"rich.{module}", extra="cli", purpose="Table.to_rich") for module in ("box", "markup", "table")
    )
    head, body = _cells(table, _Markup(markup.escape, bold="[bold]{}[/]", underline="[underline]{}[/]", gap="\n"))
    drawn = rich_table.Table(
        title=f"Trained on {markup.escape(table.data)}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for index, heading in enumerate(head):
        folded = fill(heading, _HEADING_WIDTH, break_long_words=False)
        drawn.add_column(folded, justify="right" if index > 1 else "left", no_wrap=True)
    for first, row in zip(_begins_section(table), body, strict=True):
        if first and drawn.row_count:
            drawn.add_section()
        drawn.add_row(*row)
    return drawn


def notes(table: "Table") -> list[str]:
    """What has to be known to read the table, a line each."""
    cells = [cell for line in table.cells for cell in line]
    lines = []
    uneven = any(cell.value is not None and cell.value.count != table.seeds for cell in cells)
    unless = ", where n does not say otherwise" if uneven else ""
    if table.seeds > 1:
        lines.append(f"Mean ± standard error of the mean over {table.seeds} seeds{unless}.")
    elif table.seeds == 1:
        lines.append(f"One seed, so there is no standard error{unless}.")
    if any(cell.best for cell in cells):
        within = ", and what is within two standard errors of the difference" if table.seeds > 1 else ""
        lines.append(f"Bold: the best{within}. Underlined: the same among single networks.")
    if table.seeds == 1 and len(table.lines) > 1 and any(column.description.noisy for column in table.columns):
        lines.append("Times and memory of one seed are not ranked, since their noise is unknown.")
    if any(cell.paper and cell.same_scale for cell in cells):
        lines.append("In brackets: the paper's figure, mean ± standard error.")
    lines += _papers_other_scale(table)
    return lines + [f"Failed: {row.subject}: {' '.join((row.error or '').split())}" for row in table.failures]


@dataclass(frozen=True)
class _Markup:
    escape: Callable[[str], str]
    bold: str
    underline: str
    gap: str = " "  # between a value and what is said of it


def _cells(table: "Table", markup: _Markup) -> tuple[list[str], list[list[str]]]:
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


def _written(cell: "Cell", metric: Metric, usual_seeds: int, markup: _Markup) -> str:
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


def _papers_other_scale(table: "Table") -> list[str]:
    """The paper's figures for runs that are reduced here, a line for each detector."""
    found = []
    for line, cells in zip(table.lines, table.cells, strict=True):
        figures = [
            f"{column.title} {column.description.write(cell.paper.mean, cell.paper.standard_error)}"
            for column, cell in zip(table.columns, cells, strict=True)
            if cell.paper is not None and not cell.same_scale
        ]
        if figures:
            found.append(f"The paper's {line.detector} (other scale): {', '.join(figures)}.")
    return found


def _begins_section(table: "Table") -> list[bool]:
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
