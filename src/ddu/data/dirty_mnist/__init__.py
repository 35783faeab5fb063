"""Ambiguous-MNIST: digits that could be read two ways, made from MNIST; and Dirty-MNIST, MNIST with them mixed in.

train, test = ddu.data.load("mnist", "train"), ddu.data.load("mnist", "test")
make_dirty_mnist("dirty_mnist", train, test)                 # once, in minutes
inputs, labels, soft_labels, groups = load_dirty("dirty_mnist", "train", train)
"""

from ddu.data.dirty_mnist._load import SoftLabelled as SoftLabelled
from ddu.data.dirty_mnist._load import load_ambiguous as load_ambiguous
from ddu.data.dirty_mnist._load import load_dirty as load_dirty
from ddu.data.dirty_mnist._make import make_dirty_mnist as make_dirty_mnist
from ddu.data.dirty_mnist._mixing import Mixing as Mixing
from ddu.data.dirty_mnist._picture import draw_samples as draw_samples
from ddu.data.dirty_mnist._quality import Quality as Quality
from ddu.data.dirty_mnist._quality import measure_quality as measure_quality
from ddu.data.dirty_mnist._quality import read_quality as read_quality
from ddu.data.dirty_mnist._selection import Fate as Fate
from ddu.data.dirty_mnist._selection import Filters as Filters
from ddu.data.dirty_mnist._selection import Stratification as Stratification
from ddu.data.dirty_mnist._settings import SCALES as SCALES
from ddu.data.dirty_mnist._settings import Settings as Settings
from ddu.data.dirty_mnist._training import Training as Training

__all__ = [
    "SCALES",
    "Fate",
    "Filters",
    "Mixing",
    "Quality",
    "Settings",
    "SoftLabelled",
    "Stratification",
    "Training",
    "draw_samples",
    "load_ambiguous",
    "load_dirty",
    "make_dirty_mnist",
    "measure_quality",
    "read_quality",
]
