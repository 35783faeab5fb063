"""Active learning: the samples worth a label, by epistemic uncertainty and nothing else."""

from ddu.active._acquisition import ACQUISITIONS as ACQUISITIONS
from ddu.active._acquisition import Acquisition as Acquisition
from ddu.active._acquisition import Choice as Choice
from ddu.active._acquisition import Diverse as Diverse
from ddu.active._acquisition import LeaveOutFar as LeaveOutFar
from ddu.active._acquisition import PowerSampling as PowerSampling
from ddu.active._acquisition import Random as Random
from ddu.active._acquisition import Top as Top
from ddu.active._acquisition import diverse_top_k as diverse_top_k
from ddu.active._acquisition import gumbel_top_k as gumbel_top_k
from ddu.active._acquisition import top_k as top_k
from ddu.active._acquisition import within_quantile as within_quantile
from ddu.active._candidates import Candidates as Candidates
from ddu.active._candidates import Uncertainties as Uncertainties
from ddu.active._curves import LEVELS as LEVELS
from ddu.active._curves import CurvePoint as CurvePoint
from ddu.active._curves import CurveSummary as CurveSummary
from ddu.active._curves import labels_to_reach as labels_to_reach
from ddu.active._curves import measure_curve as measure_curve
from ddu.active._curves import summarise_curves as summarise_curves
from ddu.active._figure import CurveTable as CurveTable
from ddu.active._figure import curve_figure as curve_figure
from ddu.active._figure import curve_table as curve_table
from ddu.active._learner import ActiveLearner as ActiveLearner
from ddu.active._learner import Oracle as Oracle
from ddu.active._learner import Proposal as Proposal
from ddu.active._learner import Record as Record
from ddu.active._protocols import METHODS as METHODS
from ddu.active._protocols import PROTOCOLS as PROTOCOLS
from ddu.active._protocols import Method as Method
from ddu.active._protocols import Protocol as Protocol
from ddu.active._protocols import Sets as Sets
from ddu.active._protocols import draw_sets as draw_sets
from ddu.active._protocols import find_method as find_method
from ddu.active._protocols import find_protocol as find_protocol
from ddu.active._protocols import make_learner as make_learner
from ddu.active._training import LabelledSamples as LabelledSamples
from ddu.active._training import Trainer as Trainer
from ddu.active._training import by_recipe as by_recipe

__all__ = [
    "ACQUISITIONS",
    "LEVELS",
    "METHODS",
    "PROTOCOLS",
    "Acquisition",
    "ActiveLearner",
    "Candidates",
    "Choice",
    "CurvePoint",
    "CurveSummary",
    "CurveTable",
    "Diverse",
    "LabelledSamples",
    "LeaveOutFar",
    "Method",
    "Oracle",
    "PowerSampling",
    "Proposal",
    "Protocol",
    "Random",
    "Record",
    "Sets",
    "Top",
    "Trainer",
    "Uncertainties",
    "by_recipe",
    "curve_figure",
    "curve_table",
    "diverse_top_k",
    "draw_sets",
    "find_method",
    "find_protocol",
    "gumbel_top_k",
    "labels_to_reach",
    "make_learner",
    "measure_curve",
    "summarise_curves",
    "top_k",
    "within_quantile",
]
