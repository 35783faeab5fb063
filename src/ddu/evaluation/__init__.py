"""Evaluation: protocols that turn scores into values, values as rows in a file, rows as tables.

rows = RowFile("results.csv")
rows.append(Row(..., metric=name, value=value) for name, value in ood_metrics(in_scores, out_scores).items())
for table in tabulate(rows.read()):
    print(table.to_markdown())
"""

from ddu.evaluation._row_file import RowFile as RowFile
from ddu.evaluation._rows import Row as Row
from ddu.evaluation._rows import RowKey as RowKey
from ddu.evaluation._rows import latest as latest
from ddu.evaluation._rows import versions as versions

__all__ = ["Row", "RowFile", "RowKey", "latest", "versions"]
