"""Explains the curves of `ddu reproduce active-dirty-mnist` by two tables.

    DDU_DATA=folder python scripts/active_dirty_mnist.py

It needs the folder with its `learners/`, as `ddu reproduce active-dirty-mnist` leaves it. First, are ambiguous digits
the unknown ones? Networks are trained again on the labels that each acquisition function had chosen, and score the
clean digits that are left in the pool and 3,000 ambiguous ones. Second, what is an ambiguous label worth? Networks
learn the 20 initial digits, and 280 more that are clean or ambiguous. It takes a few minutes on two cores.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from ddu.active import Candidates
from ddu.experiments.active_protocols import Source, find_protocol, read_source
from ddu.experiments.learning_curves import Curve
from ddu.metrics import auroc, mean_and_standard_error
from ddu.results import RowFile

FOLDER = Path(__file__).parents[1] / "results/reproduction/active-dirty-mnist/cpu"
ACQUISITIONS = ("density", "entropy", "ensemble_mi", "ensemble_pe")
LABELS = (20, 60, 100, 180, 300)
AMBIGUOUS = 3000
MORE_LABELS = 280
EPOCHS = (4, 16)  # of the reduced protocol, and four times as many
SEEDS = range(3)


def ambiguous_is_unknown(name: str, seed: int, source: Source) -> dict[int, float]:
    """For some numbers of labels, the AUROC of the detector's score: ambiguous against clean samples of the pool."""
    curve = Curve(find_protocol("dirty_mnist", "cpu"), name, seed)
    sets = curve.sets(source)
    some = np.random.default_rng(0).choice(np.flatnonzero(sets.ambiguous), AMBIGUOUS, replace=False)
    learner, found = curve.learner(sets), {}
    for record in curve.learner(sets).resume(curve.state(FOLDER)).records:
        if record.labels in LABELS:
            groups = [np.intersect1d(group, learner.unlabelled()) for group in (np.flatnonzero(~sets.ambiguous), some)]
            clean, ambiguous = (
                Candidates(learner.detector, sets.pool, group, progress=False).uncertainties.epistemic
                for group in groups
            )
            found[record.labels] = auroc(torch.from_numpy(clean), torch.from_numpy(ambiguous))
        if record.indices:
            learner.teach(record.indices, sets.pool.labels[[*record.indices]])
    return found


def worth(epochs: int, seed: int, source: Source, *, ambiguous: bool) -> float:
    """The accuracy on clean test digits with more labels, of ambiguous or of clean digits."""
    curve = Curve(find_protocol("dirty_mnist", "cpu", epochs=epochs), "random", seed)
    sets = curve.sets(source)
    learner = curve.learner(sets)
    some = np.random.default_rng(seed).choice(np.flatnonzero(sets.ambiguous == ambiguous), MORE_LABELS, replace=False)
    learner.teach(some, sets.pool.labels[some])
    accuracy = learner.measure()
    assert accuracy is not None
    return accuracy


def print_row(cells: Iterable[str]) -> None:
    """Prints a row of Markdown."""
    print(f"| {' | '.join(cells)} |", flush=True)


def summed_up(values: Iterable[float]) -> str:
    """Mean ± standard error; of one value there is none."""
    found = mean_and_standard_error(values)
    error = "" if found.standard_error is None else f" ± {found.standard_error:.3f}"
    return f"{found.mean:.3f}{error}"


def main() -> None:
    """Prints both tables, mean ± standard error over seeds."""
    source = read_source(find_protocol("dirty_mnist", "cpu"))
    curves = sorted({(row.detector, row.seed) for row in RowFile(FOLDER / "rows.csv").read()})
    print_row(["acquisition", *(f"{labels} labels" for labels in LABELS)])
    print_row(["---", *["---:"] * len(LABELS)])
    for name in ACQUISITIONS:
        found = [ambiguous_is_unknown(name, seed, source) for one, seed in curves if one == name]
        print_row([name, *(summed_up(one[labels] for one in found) for labels in LABELS)])
    print()
    print_row([f"{MORE_LABELS} labels more", *(f"{epochs} epochs" for epochs in EPOCHS)])
    print_row(["---", *["---:"] * len(EPOCHS)])
    for kind, ambiguous in (("clean", False), ("ambiguous", True)):
        accuracies = ([worth(epochs, seed, source, ambiguous=ambiguous) for seed in SEEDS] for epochs in EPOCHS)
        print_row([kind, *map(summed_up, accuracies)])


if __name__ == "__main__":
    main()
