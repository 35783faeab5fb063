"""A table of results as Markdown, LaTeX, CSV and for the terminal."""

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

from ddu.evaluation._metrics import Metric
from ddu.extras import require

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from ddu.evaluation._tables import Entry, Table

_CSV_COLUMNS = (
    *("detector", "network", "members", "data", "ood", "severity", "metric"),
    *("mean", "standard_error", "seeds", "failed", "best", "best_deterministic"),
    *("paper_mean", "paper_standard_error", "paper_table"),
)
_HEADING_WIDTH = 13  # on the terminal


def to_markdown(table: "Table") -> str:
    head, body = _cells(table, _Markup(lambda text: text.replace("|", "\\|"), bold="**{}**", underline="<ins>{}</ins>"))
    rule = ["---", "---", *("---:" for _ in table.columns)]
    lines = [f"| {' | '.join(row)} |" for row in (head, rule, *body)]
    return "\n".join([f"Trained on {table.data}", "", *lines, "", *(f"- {note}" for note in notes(table)), ""])


def to_latex(table: "Table") -> str:
    head, body = _cells(table, _Markup(_escape_latex, bold=r"\textbf{{{}}}", underline=r"\underline{{{}}}"))
    lines = [r"\begin{tabular}{ll" + "r" * len(table.columns) + "}", r"\toprule", _latex_row(head)]
    for first, row in zip(_begins_section(table), body, strict=True):
        lines += [r"\midrule"] * first + [_latex_row(row)]
    comments = [f"% {note}" for note in (f"Trained on {table.data}", *notes(table))]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *comments, ""])


def to_csv(table: "Table") -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for line, entries in zip(table.lines, table.entries, strict=True):
        for column, entry in zip(table.columns, entries, strict=True):
            value, paper = entry.value, entry.paper
            writer.writerow(
                (
                    *(line.detector, line.network, line.members, table.data),
                    *(column.ood, column.severity, column.metric),
                    *((value.mean, value.standard_error, value.count) if value else (None, None, 0)),
                    *(entry.failed, entry.best, entry.best_deterministic),
                    *((paper.mean, paper.standard_error, paper.table) if paper else (None, None, None)),
                )
            )
    return text.getvalue()


def to_rich(table: "Table") -> "RichTable":
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
    entries = [entry for line in table.entries for entry in line]
    lines = []
    uneven = any(entry.value is not None and entry.value.count != table.seeds for entry in entries)
    unless = ", where n does not say otherwise" if uneven else ""
    if table.seeds > 1:
        lines.append(f"Mean ± standard error of the mean over {table.seeds} seeds{unless}.")
    elif table.seeds == 1:
        lines.append(f"One seed, so there is no standard error{unless}.")
    if any(entry.best for entry in entries):
        within = ", and what is within two standard errors of the difference" if table.seeds > 1 else ""
        lines.append(f"Bold: the best{within}. Underlined: the same among single networks.")
    if table.seeds == 1 and len(table.lines) > 1 and any(column.description.noisy for column in table.columns):
        lines.append("Times and memory of one seed are not ranked, since their noise is unknown.")
    if any(entry.paper for entry in entries):
        lines.append("In brackets: the paper's figure, mean ± standard error.")
    return lines + [f"Failed: {row.run}: {' '.join((row.error or '').split())}" for row in table.failures]


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
        [markup.escape(line.detector), markup.escape(line.network)]
        + [
            _cell(entry, column.description, table.seeds, markup)
            for entry, column in zip(entries, table.columns, strict=True)
        ]
        for line, entries in zip(table.lines, table.entries, strict=True)
    ]
    return head, body


def _cell(entry: "Entry", metric: Metric, usual_seeds: int, markup: _Markup) -> str:
    words = "–"
    remarks = [f"{entry.failed} failed"] if entry.failed else []
    if entry.value is not None:
        words = metric.write(entry.value.mean, entry.value.standard_error)
        remarks = [f"n = {entry.value.count}"] * (entry.value.count != usual_seeds) + remarks
    cell = markup.escape(words)
    if entry.best_deterministic:
        cell = markup.underline.format(cell)
    if entry.best:
        cell = markup.bold.format(cell)
    parts = [f"({', '.join(remarks)})"] if remarks else []
    if entry.paper is not None:
        parts.append(f"[{metric.write(entry.paper.mean, entry.paper.standard_error)}]")
    return markup.gap.join([cell, *map(markup.escape, parts)])


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
