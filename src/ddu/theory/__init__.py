"""The mathematics behind the paper's insights, as functions that can be checked. `docs/theory.md` derives them.

`dirichlet`: how much softmax entropies of equally good networks scatter. `objectives`: why one mixture cannot be the
best classifier and the best density. `ensembles`: what the disagreement of an ensemble says about its members.
"""

from ddu.theory.dirichlet import (
    entropy_covariance,
    entropy_variance,
    expected_entropy,
    fit_dirichlet,
    mutual_information,
)
from ddu.theory.ensembles import EntropyOrder, compare_entropies
from ddu.theory.objectives import CrossEntropies, Mixture, cross_entropies, fit_conditional, fit_joint, fit_marginal

__all__ = [
    "CrossEntropies",
    "EntropyOrder",
    "Mixture",
    "compare_entropies",
    "cross_entropies",
    "entropy_covariance",
    "entropy_variance",
    "expected_entropy",
    "fit_conditional",
    "fit_dirichlet",
    "fit_joint",
    "fit_marginal",
    "mutual_information",
]
