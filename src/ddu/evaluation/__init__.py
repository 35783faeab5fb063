"""Evaluation: protocols that turn scores into values, values as rows in a file, rows as tables.

rows = RowFile("results.csv")
rows.append(Row(..., metric=name, value=value) for name, value in ood_metrics(in_scores, out_scores).items())
for table in tabulate(rows.read()):
    print(table.to_markdown())
"""

from ddu.evaluation._cost import measure_cost as measure_cost
from ddu.evaluation._metrics import METRICS as METRICS
from ddu.evaluation._metrics import Metric as Metric
from ddu.evaluation._paper import PaperFigure as PaperFigure
from ddu.evaluation._paper import PaperTable as PaperTable
from ddu.evaluation._paper import paper_figure as paper_figure
from ddu.evaluation._paper import paper_tables as paper_tables
from ddu.evaluation._protocols import classification_metrics as classification_metrics
from ddu.evaluation._protocols import false_alarm_metrics as false_alarm_metrics
from ddu.evaluation._protocols import ood_metrics as ood_metrics
from ddu.evaluation._protocols import selective_metrics as selective_metrics
from ddu.evaluation._row_file import RowFile as RowFile
from ddu.evaluation._rows import Row as Row
from ddu.evaluation._rows import RowKey as RowKey
from ddu.evaluation._rows import latest as latest
from ddu.evaluation._rows import versions as versions
from ddu.evaluation._tables import Column as Column
from ddu.evaluation._tables import Entry as Entry
from ddu.evaluation._tables import Line as Line
from ddu.evaluation._tables import Table as Table
from ddu.evaluation._tables import tabulate as tabulate

__all__ = [
    "METRICS",
    "Column",
    "Entry",
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
    "measure_cost",
    "ood_metrics",
    "paper_figure",
    "paper_tables",
    "selective_metrics",
    "tabulate",
    "versions",
]
