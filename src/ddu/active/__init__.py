"""Active learning: find the samples that are worth a label, by epistemic uncertainty."""

from ddu.active.acquisition import ACQUISITION_FUNCTIONS as ACQUISITION_FUNCTIONS
from ddu.active.acquisition import ACQUISITIONS as ACQUISITIONS
from ddu.active.acquisition import Acquisition as Acquisition
from ddu.active.acquisition import AcquisitionFunction as AcquisitionFunction
from ddu.active.acquisition import Choice as Choice
from ddu.active.acquisition import Diverse as Diverse
from ddu.active.acquisition import ExcludeOutliers as ExcludeOutliers
from ddu.active.acquisition import PowerSampling as PowerSampling
from ddu.active.acquisition import Random as Random
from ddu.active.acquisition import Top as Top
from ddu.active.acquisition import diverse_top_k as diverse_top_k
from ddu.active.acquisition import find_acquisition_function as find_acquisition_function
from ddu.active.acquisition import gumbel_top_k as gumbel_top_k
from ddu.active.acquisition import list_acquisition_functions as list_acquisition_functions
from ddu.active.acquisition import top_k as top_k
from ddu.active.acquisition import within_quantile as within_quantile
from ddu.active.candidates import Candidates as Candidates
from ddu.active.candidates import LabelledSamples as LabelledSamples
from ddu.active.candidates import Uncertainties as Uncertainties
from ddu.active.learner import ActiveLearner as ActiveLearner
from ddu.active.learner import Oracle as Oracle
from ddu.active.learner import Proposal as Proposal
from ddu.active.learner import Record as Record
from ddu.active.learner import Trainer as Trainer
from ddu.active.learner import by_recipe as by_recipe

__all__ = [
    "ACQUISITIONS",
    "ACQUISITION_FUNCTIONS",
    "Acquisition",
    "AcquisitionFunction",
    "ActiveLearner",
    "Candidates",
    "Choice",
    "Diverse",
    "ExcludeOutliers",
    "LabelledSamples",
    "Oracle",
    "PowerSampling",
    "Proposal",
    "Random",
    "Record",
    "Top",
    "Trainer",
    "Uncertainties",
    "by_recipe",
    "diverse_top_k",
    "find_acquisition_function",
    "gumbel_top_k",
    "list_acquisition_functions",
    "top_k",
    "within_quantile",
]
