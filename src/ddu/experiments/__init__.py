"""Experiments: specification -> rows -> page.

comparison = read_comparison("compare.yaml")
rows = comparison.measure("results/mnist")   # trains and measures what is missing
comparison.write_page("results/mnist")       # tables and figures from the rows alone
"""

from ddu.experiments.compare import Comparison as Comparison
from ddu.experiments.compare import Contender as Contender
from ddu.experiments.compare import NetworkSetup as NetworkSetup
from ddu.experiments.comparison_file import parse_comparison as parse_comparison
from ddu.experiments.comparison_file import parse_contender as parse_contender
from ddu.experiments.comparison_file import read_comparison as read_comparison
from ddu.experiments.cost import measure_cost as measure_cost
from ddu.experiments.demo import Demo as Demo
from ddu.experiments.detector_page import write_report as write_report
from ddu.experiments.detector_tables import average_corruptions as average_corruptions
from ddu.experiments.detector_tables import cost_ratios as cost_ratios
from ddu.experiments.detector_tables import summarise as summarise
from ddu.experiments.detector_tables import to_csv as to_csv
from ddu.experiments.detector_tables import to_latex as to_latex
from ddu.experiments.detector_tables import to_markdown as to_markdown
from ddu.experiments.evaluate import Evaluation as Evaluation
from ddu.experiments.experiment import Experiment as Experiment
from ddu.experiments.learning_curves import LearningCurves as LearningCurves
from ddu.experiments.scores import Judged as Judged
from ddu.experiments.scores import Scores as Scores
from ddu.experiments.two_moons import TwoMoons as TwoMoons

__all__ = [
    "Comparison",
    "Contender",
    "Demo",
    "Evaluation",
    "Experiment",
    "Judged",
    "LearningCurves",
    "NetworkSetup",
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
