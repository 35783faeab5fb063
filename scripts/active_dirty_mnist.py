"""Why the curves of results/active_dirty_mnist.csv are as they are: the tables below them in docs/active-learning.md.

    DDU_DATA=folder python scripts/active_dirty_mnist.py

First, are ambiguous digits the unknown ones? Networks are trained again on what each acquisition had been taught, and
judge the clean digits that are left in the pool and 3,000 ambiguous ones. Second, what is an ambiguous label worth?
Networks learn the 20 initial digits, and 280 more that are clean or ambiguous. Takes a few minutes on two cores.
"""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from ddu.active import METHODS, Candidates, CurvePoint, draw_sets, find_protocol, make_learner
from ddu.results import RowFile
from ddu.metrics import auroc, mean_and_standard_error

ROWS = Path(__file__).parents[1] / "results/active_dirty_mnist.csv"
ACQUISITIONS = ("density", "entropy", "ensemble_mi", "ensemble_pe")
LABELS = (20, 60, 100, 180, 300)
AMBIGUOUS = 3000
MORE_LABELS = 280
EPOCHS = (4, 16)  # of the reduced protocol, and four times as many
SEEDS = range(3)


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


def worth(epochs: int, seed: int, *, ambiguous: bool) -> float:
    """The accuracy on clean test digits that more labels give, of ambiguous or of clean digits."""
    protocol = find_protocol("dirty_mnist", "cpu", epochs=epochs)
    sets = draw_sets(protocol, seed)
    learner = make_learner(protocol, METHODS["random"], sets, seed, progress=False)
    some = np.random.default_rng(seed).choice(np.flatnonzero(sets.ambiguous == ambiguous), MORE_LABELS, replace=False)
    learner.teach(some, sets.pool.labels[some])
    accuracy = learner.measure()
    assert accuracy is not None
    return accuracy


def print_row(cells: Iterable[str]) -> None:
    """Prints a row of Markdown."""
    print(f"| {' | '.join(cells)} |", flush=True)


def summed_up(values: Iterable[float]) -> str:
    """Mean ± standard error."""
    found = mean_and_standard_error(values)
    return f"{found.mean:.3f} ± {found.standard_error:.3f}"


def main() -> None:
    """Prints both tables, mean ± standard error over seeds."""
    points = [point for point in RowFile(ROWS, CurvePoint).read() if point.acquisition in ACQUISITIONS]
    points.sort(key=lambda point: (point.acquisition, point.seed, point.labels))
    curves = [list(curve) for _, curve in groupby(points, key=lambda point: (point.acquisition, point.seed))]
    print_row(["acquisition", *(f"{labels} labels" for labels in LABELS)])
    print_row(["---", *["---:"] * len(LABELS)])
    for name in ACQUISITIONS:
        found = [ambiguous_is_unknown(curve) for curve in curves if curve[0].acquisition == name]
        print_row([name, *(summed_up(one[labels] for one in found) for labels in LABELS)])
    print()
    print_row([f"{MORE_LABELS} labels more", *(f"{epochs} epochs" for epochs in EPOCHS)])
    print_row(["---", *["---:"] * len(EPOCHS)])
    for kind, ambiguous in (("clean", False), ("ambiguous", True)):
        accuracies = ([worth(epochs, seed, ambiguous=ambiguous) for seed in SEEDS] for epochs in EPOCHS)
        print_row([kind, *map(summed_up, accuracies)])


if __name__ == "__main__":
    main()
