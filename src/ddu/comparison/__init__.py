"""Rivals behind one protocol: detectors x OoD sets x seeds, on features that are extracted once.

comparison = read_comparison("compare.yaml")
rows = compare(comparison, "results/mnist")
for table in summarise(rows):
    print(table.to_markdown())
write_report("results/mnist/rows.csv")
"""

from ddu.comparison._catalogue import KINDS as KINDS
from ddu.comparison._catalogue import Kind as Kind
from ddu.comparison._compare import compare as compare
from ddu.comparison._config import Comparison as Comparison
from ddu.comparison._config import Entry as Entry
from ddu.comparison._config import NetworkConfig as NetworkConfig
from ddu.comparison._config import network_label as network_label
from ddu.comparison._config import read_comparison as read_comparison
from ddu.comparison._evaluate import evaluate as evaluate
from ddu.comparison._evaluate import rows_file as rows_file
from ddu.comparison._report import write_report as write_report
from ddu.comparison._scores import Judged as Judged
from ddu.comparison._scores import Scores as Scores
from ddu.comparison._tables import average_corruptions as average_corruptions
from ddu.comparison._tables import cost_ratios as cost_ratios
from ddu.comparison._tables import summarise as summarise
from ddu.comparison._tables import to_csv as to_csv
from ddu.comparison._tables import to_latex as to_latex
from ddu.comparison._tables import to_markdown as to_markdown

__all__ = [
    "KINDS",
    "Comparison",
    "Entry",
    "Judged",
    "Kind",
    "NetworkConfig",
    "Scores",
    "average_corruptions",
    "compare",
    "cost_ratios",
    "evaluate",
    "network_label",
    "read_comparison",
    "rows_file",
    "summarise",
    "to_csv",
    "to_latex",
    "to_markdown",
    "write_report",
]
