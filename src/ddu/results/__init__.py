"""Results: one value per row, rows in a file, rows as tables beside the paper's numbers.

rows = RowFile("rows.csv")
rows.append(Row(..., metric=name, value=value) for name, value in ood_metrics(in_scores, out_scores).items())
for table in tabulate(rows.read()):
    print(table.to_markdown())
"""

from ddu.results.metrics import METRICS as METRICS
from ddu.results.metrics import Metric as Metric
from ddu.results.metrics import classification_metrics as classification_metrics
from ddu.results.metrics import false_alarm_metrics as false_alarm_metrics
from ddu.results.metrics import ood_metrics as ood_metrics
from ddu.results.metrics import selective_metrics as selective_metrics
from ddu.results.paper import PaperFigure as PaperFigure
from ddu.results.paper import PaperTable as PaperTable
from ddu.results.paper import paper_figure as paper_figure
from ddu.results.paper import paper_tables as paper_tables
from ddu.results.row import Row as Row
from ddu.results.row import RowKey as RowKey
from ddu.results.row import latest as latest
from ddu.results.row import source as source
from ddu.results.row_file import RowFile as RowFile
from ddu.results.tables import Cell as Cell
from ddu.results.tables import Column as Column
from ddu.results.tables import Line as Line
from ddu.results.tables import Table as Table
from ddu.results.tables import tabulate as tabulate

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
    "ood_metrics",
    "paper_figure",
    "paper_tables",
    "selective_metrics",
    "source",
    "tabulate",
]
