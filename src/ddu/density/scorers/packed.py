"""Triangular matrices packed in strips of rows without the zeros behind them, the rows of the bound first."""

import itertools

from torch import Tensor

# A full covariance is bounded by at most so many whitened coordinates, and by no more than an eighth of all. With fewer
# features the bound is no longer cheap beside the distance itself
_MOST_BOUND_ROWS = 64
_FEATURES_PER_BOUND_ROW = 8
_FEWEST_FEATURES = 256

# Triangular matrices of so many features are kept in so many strips of rows, beside those of the bound
_STRIPS = 4


def bound_rows(num_classes: int, dim: int) -> int:
    """How many coordinates bound the distances under full covariances; the class means differ in C - 1."""
    if dim < _FEWEST_FEATURES or num_classes < 3:
        return 0
    return min(max(num_classes - 1, 16), _MOST_BOUND_ROWS, dim // _FEATURES_PER_BOUND_ROW)


def packed_size(num_classes: int, dim: int) -> int:
    """How many numbers a packed triangular matrix has."""
    return sum((end - start) * end for start, end in _ends(bound_rows(num_classes, dim), dim))


def diagonal_blocks(packed: Tensor, dim: int) -> list[Tensor]:
    """The square blocks on the diagonals of packed triangular matrices, (class, row, column) each."""
    strips = row_strips(packed, bound_rows(len(packed), dim), dim)
    return [strip[..., end - strip.shape[-1] :, :] for end, strip in strips]


def pack(matrix: Tensor, packed: Tensor, rows: int) -> None:
    """Fills in one triangular matrix, (number,)."""
    start = 0
    for end, strip in row_strips(packed, rows, len(matrix)):
        strip.copy_(matrix[start:end, :end].T)
        start = end


def row_strips(packed: Tensor, rows: int, dim: int) -> list[tuple[int, Tensor]]:
    """Strips of rows of triangular matrices, each contiguous, and the column at which it ends.

    Products with parts of the rows of a larger matrix would take twice as long, for a few points at a time.
    """
    ends = _ends(rows, dim)
    parts = packed.split([(end - start) * end for start, end in ends], dim=-1)
    return [(end, part.unflatten(-1, (end, end - start))) for (start, end), part in zip(ends, parts, strict=True)]


def _ends(rows: int, dim: int) -> list[tuple[int, int]]:
    """The first row and the end of each strip; those of the bound are a strip of their own."""
    step = -(-(dim - rows) // _STRIPS) if dim >= _FEWEST_FEATURES else dim
    edges = [*([0] if rows else []), *range(rows, dim, step), dim]
    return list(itertools.pairwise(edges))
