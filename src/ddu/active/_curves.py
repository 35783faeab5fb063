"""Learning curves: measured a round at a time, kept as rows, and what they say."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ddu.active._learner import ActiveLearner, Record
from ddu.active._protocols import Method, Protocol, Sets, draw_sets, find_method, make_learner
from ddu.errors import InputError
from ddu.results import RowFile, versions
from ddu.metrics import MeanAndStandardError, mean_and_standard_error

LEVELS = (0.8, 0.9, 0.95)


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """What came of so many labels: a round of one acquisition with one seed.

    Attributes:
        acquisition: The method, one of `METHODS`.
        network: The network, with "+sn" where it has spectral norm.
        members: How many networks were trained.
        data: The protocol, one of `PROTOCOLS`.
        seed: Of the run.
        labels: How many labels the networks were trained with.
        accuracy: On the test set.
        ambiguous: The share of ambiguous samples in what had been acquired; None where nothing had been, or the pool
            has none.
        acquired: What was acquired next: indices of the pool; None in the last round.
        reductions: How the run differs from the paper's protocol; None if it does not.
        command: The command that gives the curve again.
        versions: The software it was measured with.
        seconds: How long the round took.
    """

    acquisition: str
    network: str
    members: int
    data: str
    seed: int
    labels: int
    accuracy: float
    ambiguous: float | None
    acquired: str | None
    reductions: str | None
    command: str | None
    versions: str
    seconds: float

    @property
    def indices(self) -> list[int]:
        """What was acquired next."""
        return [int(index) for index in (self.acquired or "").split()]


def measure_curve(
    protocol: Protocol,
    acquisition: str,
    seed: int,
    file: RowFile[CurvePoint],
    *,
    leave_out_above: float | None = None,
    data_root: str | os.PathLike[str] | None = None,
    command: str | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Iterator[CurvePoint]:
    """Measures one curve, and appends each point of it to a file.

    What the file has of the curve is not measured again, so a run that was killed goes on where it was, to the same
    curve.

    Args:
        protocol: What is learned, and how.
        acquisition: One of `METHODS`.
        seed: Decides samples, weights and everything else.
        file: Where the points are kept.
        leave_out_above: Leave out candidates above this quantile of epistemic uncertainty.
        data_root: Where the data is; see `ddu.data.load`.
        command: What to write down as the command that made the curve.
        on_stage: Is told what is being done.

    Yields:
        The points of the curve, those that were in the file first.
    """
    method = find_method(acquisition, leave_out_above)
    protocol = method.adapt(protocol)
    facts = {
        "acquisition": acquisition,
        "network": _network_name(protocol, method),
        "members": method.members,
        "data": protocol.data,
        "seed": seed,
        "reductions": _reductions(protocol, leave_out_above),
    }
    done = [point for point in _points_so_far(file, facts) if point.labels <= protocol.until]
    if done and done[-1].labels == protocol.until:
        yield from done
        return
    on_stage("reading data")
    sets = draw_sets(protocol, seed, data_root)
    if done and not done[-1].indices and done[-1].labels < len(sets.labelled) + len(sets.pool):
        done.pop()  # where a shorter curve ended: this one goes on
    yield from done
    if done and not done[-1].indices:
        return
    learner = make_learner(protocol, method, sets, seed, progress=False, on_stage=on_stage)
    for point in done:
        learner.teach(point.indices, sets.pool.labels[point.indices])
    for record in learner.run(protocol.until):  # or until the pool runs out
        point = _point(record, sets, learner, facts, command)
        file.append([point])
        yield point


def _point(record: Record, sets: Sets, learner: ActiveLearner, facts: dict, command: str | None) -> CurvePoint:
    assert record.accuracy is not None
    acquired = np.setdiff1d(np.arange(len(sets.pool)), learner.unlabelled())
    before = np.setdiff1d(acquired, record.indices)
    has_share = sets.ambiguous.any() and len(before)
    return CurvePoint(
        **facts,
        labels=record.labels,
        accuracy=record.accuracy,
        ambiguous=float(sets.ambiguous[before].mean()) if has_share else None,
        acquired=" ".join(map(str, record.indices)) or None,
        command=command,
        versions=versions(),
        seconds=round(record.seconds, 3),
    )


def _points_so_far(file: RowFile[CurvePoint], facts: dict) -> list[CurvePoint]:
    """The points of the same curve; one that was made otherwise is refused."""
    curve = {
        point.labels: point
        for point in file.read()
        if (point.acquisition, point.data, point.seed) == (facts["acquisition"], facts["data"], facts["seed"])
    }
    for point in curve.values():
        for name in ("network", "reductions"):
            was, now = getattr(point, name), facts[name]
            if was != now:
                raise InputError(
                    f"{file.path} has a curve of {facts['acquisition']} with seed {facts['seed']} whose {name} are "
                    f"{was!r}, and these are {now!r}: choose another folder."
                )
    return [curve[labels] for labels in sorted(curve)]


def _network_name(protocol: Protocol, method: Method) -> str:
    smooth = method.options.get("spectral_norm", True) is not None
    return f"{method.network or protocol.network}{'+sn' if smooth else ''}"


def _reductions(protocol: Protocol, leave_out_above: float | None) -> str | None:
    left_out = [] if leave_out_above is None else [f"candidates above quantile {leave_out_above:g} left out"]
    return "; ".join([*filter(None, [protocol.reductions()]), *left_out]) or None


# What curves say


def labels_to_reach(curve: Mapping[int, float], level: float) -> int | None:
    """The fewest labels with which an accuracy was reached; None if it never was.

    >>> labels_to_reach({20: 0.5, 25: 0.81, 30: 0.79, 35: 0.92}, 0.8)
    25
    """
    return min((labels for labels, accuracy in curve.items() if accuracy >= level), default=None)


@dataclass(frozen=True)
class CurveSummary:
    """The curves of one acquisition, over all seeds.

    Attributes:
        acquisition: The method.
        accuracy: For each number of labels, the accuracy.
        ambiguous: For each number of labels, the share of ambiguous samples among what was acquired.
        labels: For each of `LEVELS`, the labels needed; None if no seed got there. A seed that did not counts with
            where its curve ends, so that with fewer `reached` than `seeds` the mean is a lower bound.
        reached: For each of `LEVELS`, how many seeds got there.
        seeds: How many seeds there are.
        seconds: The time of one curve, the mean over seeds.
    """

    acquisition: str
    accuracy: dict[int, MeanAndStandardError]
    ambiguous: dict[int, MeanAndStandardError]
    labels: dict[float, MeanAndStandardError | None]
    reached: dict[float, int]
    seeds: int
    seconds: float


def summarise_curves(points: Iterable[CurvePoint]) -> list[CurveSummary]:
    """What curves say, an acquisition at a time, in the order of their first points."""
    curves: dict[str, dict[int, dict[int, CurvePoint]]] = {}
    for point in points:
        curves.setdefault(point.acquisition, {}).setdefault(point.seed, {})[point.labels] = point
    return [_summary(acquisition, list(seeds.values())) for acquisition, seeds in curves.items()]


def _summary(acquisition: str, curves: list[dict[int, CurvePoint]]) -> CurveSummary:
    accuracies = [{labels: point.accuracy for labels, point in curve.items()} for curve in curves]
    needed = {level: [labels_to_reach(curve, level) for curve in accuracies] for level in LEVELS}
    reached = {level: sum(labels is not None for labels in found) for level, found in needed.items()}
    at_least = {
        level: [max(curve) if labels is None else labels for labels, curve in zip(found, accuracies, strict=True)]
        for level, found in needed.items()
    }
    sizes = sorted({labels for curve in curves for labels in curve})
    at = {size: [curve[size] for curve in curves if size in curve] for size in sizes}
    shares = {n: [point.ambiguous for point in points if point.ambiguous is not None] for n, points in at.items()}
    return CurveSummary(
        acquisition,
        accuracy={n: mean_and_standard_error(point.accuracy for point in points) for n, points in at.items()},
        ambiguous={n: mean_and_standard_error(values) for n, values in shares.items() if values},
        labels={level: mean_and_standard_error(at_least[level]) if reached[level] else None for level in LEVELS},
        reached=reached,
        seeds=len(curves),
        seconds=float(np.mean([sum(point.seconds for point in curve.values()) for curve in curves])),
    )
