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
from ddu.active._learner import ActiveLearner as ActiveLearner
from ddu.active._learner import Oracle as Oracle
from ddu.active._learner import Proposal as Proposal
from ddu.active._learner import Record as Record
from ddu.active._training import LabelledSamples as LabelledSamples
from ddu.active._training import Trainer as Trainer
from ddu.active._training import by_recipe as by_recipe

__all__ = [
    "ACQUISITIONS",
    "Acquisition",
    "ActiveLearner",
    "Candidates",
    "Choice",
    "Diverse",
    "LabelledSamples",
    "LeaveOutFar",
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
    "gumbel_top_k",
    "top_k",
    "within_quantile",
]
