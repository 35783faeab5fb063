"""Log-densities of many points under one Gaussian per class: whitened once, scored with matrix products only.

A scorer is an `nn.Module` whose buffers are everything it needs, in the dtype and on the device it scores in. None of
them solves a linear system or forms a d × d matrix it was not given. Called as a module, it computes the same in steps
that do not depend on the data, as an exported graph does.
"""

from ddu.density.scorers.diagonal import DiagonalScorer as DiagonalScorer
from ddu.density.scorers.full import FullScorer as FullScorer
from ddu.density.scorers.low_rank import LowRankScorer as LowRankScorer
from ddu.density.scorers.packed import bound_rows as bound_rows
from ddu.density.scorers.packed import diagonal_blocks as diagonal_blocks
from ddu.density.scorers.packed import packed_size as packed_size
from ddu.density.scorers.pruning import PruningScorer as PruningScorer
from ddu.density.scorers.scorer import Scorer as Scorer
from ddu.density.scorers.shared import SharedScorer as SharedScorer

__all__ = [
    "DiagonalScorer",
    "FullScorer",
    "LowRankScorer",
    "PruningScorer",
    "Scorer",
    "SharedScorer",
    "bound_rows",
    "diagonal_blocks",
    "packed_size",
]
