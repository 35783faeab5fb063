"""Training: recipes with the paper's numbers, and a loop on Lightning that can be interrupted."""

from ddu.distributed import is_main_process as is_main_process
from ddu.training.loop import Training as Training
from ddu.training.loop import fit as fit
from ddu.training.loop import read_history as read_history
from ddu.training.members import fit_members as fit_members
from ddu.training.objectives import CrossEntropy as CrossEntropy
from ddu.training.objectives import DUQObjective as DUQObjective
from ddu.training.objectives import Objective as Objective
from ddu.training.objectives import objective_for as objective_for
from ddu.training.recipes import RECIPES as RECIPES
from ddu.training.recipes import Recipe as Recipe
from ddu.training.recipes import find_recipe as find_recipe
from ddu.training.recipes import parse_changes as parse_changes

__all__ = [
    "RECIPES",
    "CrossEntropy",
    "DUQObjective",
    "Objective",
    "Recipe",
    "Training",
    "find_recipe",
    "fit",
    "fit_members",
    "is_main_process",
    "objective_for",
    "parse_changes",
    "read_history",
]
