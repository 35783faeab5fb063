"""Results: one value per row, rows in a file, rows as tables beside the paper's numbers.

rows = RowFile("rows.csv")
rows.append(Row(..., metric=name, value=value) for name, value in ood_metrics(in_scores, out_scores).items())
for table in tabulate(rows.read()):
    print(table.to_markdown())
"""

from ddu.results.metrics import (
    METRICS,
    Metric,
    classification_metrics,
    false_alarm_metrics,
    ood_errors,
    ood_metrics,
    selective_metrics,
)
from ddu.results.paper import PaperFigure, PaperTable, paper_figure, paper_tables
from ddu.results.rows import Row, RowFile, RowKey, latest, source
from ddu.results.tables import Cell, Column, Line, Table, tabulate

__all__ = [
    "METRICS",
    "Cell",
    "Column",
    "Line",
    "Metric",
    "PaperFigure",
    "PaperTable",
    "Row",
    "RowFile",
    "RowKey",
    "Table",
    "classification_metrics",
    "false_alarm_metrics",
    "latest",
    "ood_errors",
    "ood_metrics",
    "paper_figure",
    "paper_tables",
    "selective_metrics",
    "source",
    "tabulate",
]
