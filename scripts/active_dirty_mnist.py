"""What the acquisitions of results/active_dirty_mnist.csv think of the pool: are ambiguous digits the unknown ones?

    DDU_DATA=folder python scripts/active_dirty_mnist.py

Networks are trained again on what each had been taught, and judge the clean digits that are left in the pool and 3,000
ambiguous ones. Prints the table of docs/active-learning.md; takes a few minutes on two cores.
"""

from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from ddu.active import METHODS, Candidates, CurvePoint, draw_sets, find_protocol, make_learner
from ddu.evaluation import RowFile
from ddu.metrics import auroc, mean_and_standard_error

ROWS = Path(__file__).parents[1] / "results/active_dirty_mnist.csv"
ACQUISITIONS = ("density", "entropy")
LABELS = (20, 60, 100, 180, 300)
AMBIGUOUS = 3000


def ambiguous_is_unknown(curve: list[CurvePoint]) -> dict[int, float]:
    """For some numbers of labels, AUROC of the acquisition's score: ambiguous against clean samples of the pool."""
    first, protocol = curve[0], find_protocol("dirty_mnist", "cpu")
    sets = draw_sets(protocol, first.seed)
    some = np.random.default_rng(0).choice(np.flatnonzero(sets.ambiguous), AMBIGUOUS, replace=False)
    learner = make_learner(protocol, METHODS[first.acquisition], sets, first.seed, progress=False)
    found = {}
    for point in curve:
        if point.labels in LABELS:
            groups = [np.intersect1d(group, learner.unlabelled()) for group in (np.flatnonzero(~sets.ambiguous), some)]
            clean, ambiguous = (
                Candidates(learner.detector, sets.pool, group, progress=False).uncertainties.epistemic
                for group in groups
            )
            found[point.labels] = auroc(torch.from_numpy(clean), torch.from_numpy(ambiguous))
        if point.indices:
            learner.teach(point.indices, sets.pool.labels[point.indices])
    return found


def main() -> None:
    """Prints a line for each acquisition, mean ± standard error over seeds."""
    points = [point for point in RowFile(ROWS, CurvePoint).read() if point.acquisition in ACQUISITIONS]
    points.sort(key=lambda point: (point.acquisition, point.seed, point.labels))
    curves = [list(curve) for _, curve in groupby(points, key=lambda point: (point.acquisition, point.seed))]
    print("|", " | ".join(["acquisition", *(f"{labels} labels" for labels in LABELS)]), "|")
    print("|", " | ".join(["---", *["---:"] * len(LABELS)]), "|")
    for name in ACQUISITIONS:
        found = [ambiguous_is_unknown(curve) for curve in curves if curve[0].acquisition == name]
        cells = [mean_and_standard_error(one[labels] for one in found) for labels in LABELS]
        print(
            "|",
            " | ".join([name, *(f"{cell.mean:.2f} ± {cell.standard_error:.2f}" for cell in cells)]),
            "|",
            flush=True,
        )


if __name__ == "__main__":
    main()
