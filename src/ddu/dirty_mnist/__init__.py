"""Ambiguous-MNIST: digits that could be read two ways, made from MNIST; and Dirty-MNIST, MNIST with them mixed in.

train, test = ddu.data.load("mnist", "train"), ddu.data.load("mnist", "test")
make_dirty_mnist("dirty_mnist", train, test)                 # once, in minutes
inputs, labels, soft_labels, groups = load_dirty("dirty_mnist", "train", train)
"""

from ddu.data.sources.dirty_mnist import SoftLabelled, load_ambiguous, load_dirty
from ddu.dirty_mnist.make import SCALES, Settings, make_dirty_mnist
from ddu.dirty_mnist.mixtures import Mixing
from ddu.dirty_mnist.picture import draw_samples
from ddu.dirty_mnist.quality import Quality, measure_quality, read_quality
from ddu.dirty_mnist.selection import FilterResult, Filters, Stratification

__all__ = [
    "SCALES",
    "FilterResult",
    "Filters",
    "Mixing",
    "Quality",
    "Settings",
    "SoftLabelled",
    "Stratification",
    "draw_samples",
    "load_ambiguous",
    "load_dirty",
    "make_dirty_mnist",
    "measure_quality",
    "read_quality",
]
