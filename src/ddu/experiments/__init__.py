"""Experiments: specification -> rows -> page.

comparison = read_comparison("compare.yaml")
rows = comparison.measure("results/mnist")   # trains and measures what is missing
comparison.write_page("results/mnist")       # tables and figures from the rows alone
"""

from ddu.experiments.compare import Comparison, Contender, NetworkSetup
from ddu.experiments.comparison_file import parse_comparison, parse_contender, read_comparison
from ddu.experiments.demo import Demo
from ddu.experiments.detector_page import (
    average_corruptions,
    cost_ratios,
    summarise,
    to_csv,
    to_latex,
    to_markdown,
    write_report,
)
from ddu.experiments.evaluate import Evaluation
from ddu.experiments.experiment import Experiment
from ddu.experiments.learning_curves import LearningCurves
from ddu.experiments.measure import measure_cost
from ddu.experiments.quality import Quality
from ddu.experiments.reported import ReportedSource
from ddu.experiments.reproduction import Judgement, Reproduction
from ddu.experiments.reproductions import REPRODUCTIONS
from ddu.experiments.run_report import RunReport
from ddu.experiments.scores import Judged, Scores
from ddu.experiments.two_moons import TwoMoons

__all__ = [
    "REPRODUCTIONS",
    "Comparison",
    "Contender",
    "Demo",
    "Evaluation",
    "Experiment",
    "Judged",
    "Judgement",
    "LearningCurves",
    "NetworkSetup",
    "Quality",
    "ReportedSource",
    "Reproduction",
    "RunReport",
    "Scores",
    "TwoMoons",
    "average_corruptions",
    "cost_ratios",
    "measure_cost",
    "parse_comparison",
    "parse_contender",
    "read_comparison",
    "summarise",
    "to_csv",
    "to_latex",
    "to_markdown",
    "write_report",
]
