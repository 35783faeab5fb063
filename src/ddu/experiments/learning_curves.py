"""Learning curves: the accuracy of an active learner against the number of its labels.

    ddu active --data dirty_mnist --acquisition density ensemble_mi entropy random --seeds 3

The folder of the experiment has
    rows.csv     a row per curve, number of labels and metric
    curves.png   accuracy against labels, and the share of ambiguous samples where the pool has some
    table.md     the number of labels that it took to reach 80, 90 and 95 %
    learners/    the state of the learner of each curve, to resume from
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddu.active import AcquisitionFunction, ActiveLearner, Random, Record, by_recipe, find_acquisition_function
from ddu.data.registry import Root
from ddu.engines import OneByOne, current_engine
from ddu.errors import InputError
from ddu.experiments.active_protocols import Protocol, Sets, Source, draw_sets, read_source
from ddu.experiments.experiment import ROWS, Say, silent
from ddu.experiments.reproduction import Work, training_samples
from ddu.experiments.training_pool import at_once
from ddu.files import FilePath, write_bytes
from ddu.messages import require
from ddu.metrics import MeanAndStandardError, mean_and_standard_error
from ddu.models import create_model
from ddu.provenance import fingerprint
from ddu.report.figures import as_png, dress, line_style
from ddu.results import Row, RowFile, source
from ddu.resume import one_at_a_time, refuse_changes
from ddu.runs import RunSpec, input_options, network_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEARNERS, FIGURE, TABLE = "learners", "curves.png", "table.md"
_USUAL_TEST = 10_000
LEVELS = (0.8, 0.9, 0.95)
"""Accuracies: the table says how many labels it took to reach them."""
_CLAIMED = (0.7, *LEVELS)  # those that the paper names among them


@dataclass(frozen=True)
class LearningCurves:
    """Learning curves of acquisition functions on one protocol, one curve per seed: an `Experiment`.

    Attributes:
        protocol: The data, the number of labels, the network and its training.
        acquisitions: Names of `ddu.active.list_acquisition_functions()`.
        seeds: The seeds.
        exclude_above: Exclude the candidates above this quantile of epistemic uncertainty; None excludes none.
    """

    protocol: Protocol
    acquisitions: tuple[str, ...] = ("density", "entropy", "random")
    seeds: tuple[int, ...] = (0,)
    exclude_above: float | None = None

    def __post_init__(self) -> None:
        for curve in self.curves:
            _ = curve.function  # a wrong name is found here

    @property
    def curves(self) -> "list[Curve]":
        """All curves; seeds outermost, so that a run that is stopped has about as many of each acquisition function."""
        return [
            Curve(self.protocol, name, seed, self.exclude_above) for seed in self.seeds for name in self.acquisitions
        ]

    def work(self) -> list[Work]:
        """The networks of one seed: those of all rounds of a curve are one entry."""
        return [curve.work() for curve in self.curves if curve.seed == self.seeds[0]]

    def measure(self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent) -> list[Row]:
        """Measures what is missing, round by round, and returns the rows of all curves; see `Experiment`."""
        rounds = self.rounds(folder, data_root=data_root, command=command, say=say)
        return [row for rows in rounds for row in rows]

    def rounds(
        self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent
    ) -> Iterator[list[Row]]:
        """The same as `measure`, with the rows of each round as soon as they are on disk."""
        engine = current_engine()
        if isinstance(engine, OneByOne):
            say("reading data")
            samples = read_source(self.protocol, data_root)
            for curve in self.curves:
                yield from curve.rounds(Path(folder), samples, command=command, say=say)
            return
        say(f"{len(self.curves)} curves{at_once(engine, len(self.curves))}")
        measure = partial(_measure_curve, folder=Path(folder), data_root=data_root, command=command)
        for _, rounds in engine.map(measure, self.curves):
            if isinstance(rounds, Exception):
                raise rounds
            yield from rounds

    def write_page(self, folder: FilePath) -> list[Path]:
        """Writes the figure and the table of the rows in a folder, those of other data left out."""
        folder = Path(folder)
        rows = [row for row in RowFile(folder / ROWS).read() if row.data == self.protocol.data]
        write_bytes(folder / FIGURE, as_png(curve_figure(rows)))
        write_bytes(folder / TABLE, curve_table(rows).encode())
        return [folder / FIGURE, folder / TABLE]


@dataclass(frozen=True)
class Curve:
    """One learning curve; the attributes are those of `LearningCurves`."""

    protocol: Protocol
    acquisition: str
    seed: int = 0
    exclude_above: float | None = None

    @property
    def function(self) -> AcquisitionFunction:
        """The acquisition function."""
        return find_acquisition_function(self.acquisition).excluding(self.exclude_above)

    @property
    def adapted(self) -> Protocol:
        """The protocol, with images that are large enough for the network."""
        return self.protocol.with_images_of(self.function.image_size)

    @property
    def network(self) -> tuple[str, dict[str, Any]]:
        """The name and the options of the network, but for the shape of its inputs."""
        function = self.function
        return function.network or self.protocol.network, {**self.protocol.options, **function.network_options}

    @property
    def reductions(self) -> str | None:
        """How it differs from the paper's, in words; None if it does not."""
        excluded = None if self.exclude_above is None else f"candidates above quantile {self.exclude_above:g} excluded"
        return "; ".join(filter(None, [self.adapted.reductions(), excluded])) or None

    def work(self) -> Work:
        """The networks of all rounds; each is shown candidates and test set, and the held-out samples every epoch."""
        protocol, (network, options) = self.adapted, self.network
        labels = range(protocol.initial, protocol.until + 1, protocol.per_round)
        recipe = protocol.recipe.with_changes(validation_share=0.0)
        shown = (protocol.test or _USUAL_TEST) + recipe.epochs * protocol.validation
        if not isinstance(self.function.rule, Random):
            pool = training_samples(protocol.data) if protocol.pool is None else protocol.pool + protocol.ambiguous
            shown += min(protocol.candidates or pool, pool)
        spec = RunSpec(network, protocol.data, recipe, None, options=options)
        count = len(labels) * self.function.num_members
        return Work(spec, round(sum(labels) / len(labels)), count, scored=shown, side=protocol.image_size, shared=False)

    def settings(self, digest: str) -> dict[str, Any]:
        """Everything that decides the values, but for the seed.

        Args:
            digest: Of all samples.
        """
        name, options = self.network
        return {
            "protocol": self.adapted.settings(),
            "method": self.function.method,
            "rule": repr(self.function.rule),
            "members": self.function.num_members,
            "network": name,
            "options": options,
            "digest": digest,
        }

    def sets(self, samples: Source) -> Sets:
        """The samples of the curve."""
        return draw_sets(self.adapted, self.seed, samples)

    def learner(self, sets: Sets, *, say: Say = silent) -> ActiveLearner:
        """A learner that has no labels but the initial ones."""
        name, options = self.network
        return ActiveLearner(
            model_factory=partial(create_model, name, **{**input_options(sets.pool.info), **options}),
            detector=self.function.make_detector,
            pool=sets.pool,
            labelled=sets.labelled,
            oracle=lambda indices: sets.pool.labels[indices],
            acquisition=self.function.rule,
            members=self.function.num_members,
            validation=sets.validation,
            test=sets.test,
            trainer=by_recipe(self.protocol.recipe),
            per_round=self.protocol.per_round,
            candidates=self.protocol.candidates,
            seed=self.seed,
            progress=False,
            on_stage=lambda stage: say(f"{self.acquisition}, seed {self.seed}: {stage}"),
            settings=self.settings(sets.digest),
        )

    def state(self, folder: Path) -> Path:
        """Where the learner is saved in the folder of the experiment."""
        return folder / LEARNERS / f"{self.acquisition}-seed{self.seed}"

    def rounds(self, folder: Path, samples: Source, *, command: str = "", say: Say = silent) -> Iterator[list[Row]]:
        """The rows of each round. Those that are in the folder are not measured again, and come first.

        The learner is saved before its rows are appended, and rows that a kill left out are made from its records. So
        whenever it is killed, the same call continues to the same curve.

        Args:
            folder: The folder of the experiment.
            samples: All samples of the protocol.
            command: The command to record in the rows.
            say: Is told what is being done.
        """
        sets = self.sets(samples)
        learner = self.learner(sets, say=say)
        facts = self._facts(learner)
        columns: dict[str, Any] = {**facts, **source(command)}
        file, state = RowFile(folder / ROWS), self.state(folder)
        end = min(self.protocol.until, len(sets.labelled) + len(sets.pool))

        def keep(record: Record) -> None:
            values, there = _values(record, learner.records, sets.ambiguous), points.setdefault(record.labels, {})
            new = {
                metric: Row(**columns, labels=record.labels, metric=metric, value=value)
                for metric, value in values.items()
                if metric not in there
            }
            file.append(new.values())
            there.update(new)

        with one_at_a_time(state):
            learner.resume(state)
            points = self._read(file, facts)
            for record in learner.records:
                keep(record)
            done = [labels for labels, rows in sorted(points.items()) if labels <= end and "round_seconds" in rows]
            yield from (list(points[labels].values()) for labels in done)
            if done == [*range(len(sets.labelled), end, self.protocol.per_round), end]:
                return
            for record in learner.run(end):
                learner.save(state)
                keep(record)
                if record.labels not in done:
                    yield list(points[record.labels].values())

    def _facts(self, learner: ActiveLearner) -> dict[str, Any]:
        """The columns that all rows of the curve share."""
        return {
            "detector": self.acquisition,
            "network": network_label(*self.network),
            "members": self.function.num_members,
            "data": self.protocol.data,
            "seed": self.seed,
            "reductions": self.reductions,
            "run": fingerprint(learner.network_settings),
        }

    def _read(self, file: RowFile, facts: Mapping[str, Any]) -> dict[int, dict[str, Row]]:
        """The rows of the curve by number of labels and metric; a curve with other settings is refused."""
        points: dict[int, dict[str, Row]] = {}
        where = f"The curve of {self.acquisition} with seed {self.seed} in {file.path}"
        for row in file.read():
            same = (row.detector, row.data, row.seed) == (self.acquisition, self.protocol.data, self.seed)
            if same and row.labels is not None and row.metric is not None:
                refuse_changes(where, {name: getattr(row, name) for name in facts}, facts)
                points.setdefault(row.labels, {})[row.metric] = row
        return points


def _measure_curve(curve: Curve, folder: Path, data_root: Root, command: str) -> list[list[Row]]:
    """The rounds of a curve, measured by itself."""
    return list(curve.rounds(folder, read_source(curve.protocol, data_root), command=command))


def _values(record: Record, records: list[Record], ambiguous: np.ndarray) -> dict[str, float]:
    """What is measured in a round, by the names of `METRICS`."""
    assert record.accuracy is not None
    values = {"accuracy": record.accuracy}
    acquired = [index for earlier in records[: record.round] for index in earlier.indices]
    if ambiguous.any() and acquired:
        values["ambiguous_share"] = float(ambiguous[acquired].mean())
    return {**values, "round_seconds": round(record.seconds, 3)}


# The page


def labels_to_reach(curve: Mapping[int, float], level: float) -> int | None:
    """The fewest labels with which an accuracy was reached; None if it never was.

    >>> labels_to_reach({20: 0.5, 25: 0.81, 30: 0.79, 35: 0.92}, 0.8)
    25
    """
    return min((labels for labels, accuracy in curve.items() if accuracy >= level), default=None)


@dataclass(frozen=True)
class CurveSummary:
    """The curves of one acquisition function, over all seeds.

    Attributes:
        acquisition: The acquisition function.
        network: The network, and how many of them are trained.
        accuracy: The accuracy by number of labels.
        ambiguous: The share of ambiguous samples among those that were acquired, by number of labels.
        labels: For each of `LEVELS`, the labels needed; None if no seed got there. A seed that did not get there counts
            with the end of its curve, so that with fewer `reached` than `seeds` the mean is a lower bound.
        reached: For each of `LEVELS`, how many seeds got there.
        seeds: How many seeds there are.
        seconds: The time of one curve, the mean over seeds.
    """

    acquisition: str
    network: str
    accuracy: dict[int, MeanAndStandardError]
    ambiguous: dict[int, MeanAndStandardError]
    labels: dict[float, MeanAndStandardError | None]
    reached: dict[float, int]
    seeds: int
    seconds: float


def summarise_curves(rows: Iterable[Row]) -> list[CurveSummary]:
    """A summary per acquisition function, in the order of their first rows."""
    by_function: dict[str, list[Row]] = {}
    for row in rows:
        by_function.setdefault(row.detector, []).append(row)
    return [_summary(of_one) for of_one in by_function.values()]


def _summary(rows: list[Row]) -> CurveSummary:
    last, curves = rows[-1], _by_seed(rows, "accuracy")
    found = {level: [labels_to_reach(curve, level) for curve in curves] for level in LEVELS}
    reached = {level: sum(labels is not None for labels in needed) for level, needed in found.items()}
    at_least = {
        level: [max(curve) if labels is None else labels for labels, curve in zip(needed, curves, strict=True)]
        for level, needed in found.items()
    }
    return CurveSummary(
        acquisition=last.detector,
        network=f"{last.members} x {last.network}" if last.members > 1 else last.network,
        accuracy=_mean_curve(curves),
        ambiguous=_mean_curve(_by_seed(rows, "ambiguous_share")),
        labels={level: mean_and_standard_error(at_least[level]) if reached[level] else None for level in LEVELS},
        reached=reached,
        seeds=len(curves),
        seconds=sum(sum(curve.values()) for curve in _by_seed(rows, "round_seconds")) / len(curves),
    )


def _by_seed(rows: Iterable[Row], metric: str) -> list[dict[int, float]]:
    """The values of a metric by number of labels, a curve per seed."""
    curves: dict[int, dict[int, float]] = {}
    for row in rows:
        if row.metric == metric and row.labels is not None and row.value is not None:
            curves.setdefault(row.seed, {})[row.labels] = row.value
    return list(curves.values())


def _mean_curve(curves: list[dict[int, float]]) -> dict[int, MeanAndStandardError]:
    sizes = sorted({labels for curve in curves for labels in curve})
    return {size: mean_and_standard_error(curve[size] for curve in curves if size in curve) for size in sizes}


def curve_rows(rows: Iterable[Row]) -> list[Row]:
    """What each curve comes to, as rows without a number of labels.

    The mean accuracy over all numbers of labels, the accuracy at the end, the labels that it took to reach 70 % and
    `LEVELS` (none where it did not), and the share of ambiguous samples among all that were acquired.
    """
    found = list[Row]()
    curves: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        curves.setdefault((row.data, row.detector, row.seed), []).append(row)
    for own in curves.values():
        (curve,), shares = _by_seed(own, "accuracy"), _by_seed(own, "ambiguous_share")
        values: dict[str, float | None] = {
            "mean_accuracy": sum(curve.values()) / len(curve),
            "accuracy": curve[max(curve)],
            **{f"labels_to_{100 * level:.0f}": labels_to_reach(curve, level) for level in _CLAIMED},
            "ambiguous_share": shares[0][max(shares[0])] if shares else None,
        }
        one = replace(own[-1], labels=None)
        found += [
            replace(one, metric=metric, value=float(value)) for metric, value in values.items() if value is not None
        ]
    return found


def curve_table(rows: Iterable[Row]) -> str:
    """The labels that each acquisition function needed, and its last accuracy: mean ± standard error, in Markdown.

    Args:
        rows: The rows of one data set.
    """
    rows = list(rows)
    summaries = summarise_curves(rows)
    ambiguous = any(summary.ambiguous for summary in summaries)
    ends = {max(summary.accuracy) for summary in summaries}
    levels = [f"to {100 * level:.0f} %" for level in LEVELS]
    heading = ["acquisition", "network", "seeds", *levels, "at the end", *(["ambiguous"] if ambiguous else [])]
    lines = [heading, ["---"] * len(heading)]
    for summary in summaries:
        (end, accuracy), shares = [*summary.accuracy.items()][-1], [None, *summary.ambiguous.values()]
        needed = [_labels_needed(summary, level) for level in LEVELS]
        ended = _percent(accuracy) if len(ends) == 1 else f"{_percent(accuracy)} at {end}"
        share = [_percent(shares[-1])] if ambiguous else []
        lines.append([summary.acquisition, summary.network, str(summary.seeds), *needed, ended, *share])
    return "\n".join([_title(rows), "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def _title(rows: list[Row]) -> str:
    title = f"Active learning on {rows[0].data}, labels needed to reach an accuracy: mean ± standard error over seeds."
    everyone = dict.fromkeys(row.detector for row in rows)
    for words in dict.fromkeys(row.reductions for row in rows if row.reductions):
        whose = dict.fromkeys(row.detector for row in rows if row.reductions == words)
        named = "" if whose == everyone else f" by {', '.join(whose)}"
        title += f" Reduced from the full protocol{named}: {words}."
    return title


def _labels_needed(summary: CurveSummary, level: float) -> str:
    """The labels that an accuracy took, in words; "-" if no seed got there."""
    needed, reached = summary.labels[level], summary.reached[level]
    if needed is None:
        return "-"
    if reached < summary.seeds:
        return f"> {needed.mean:.0f} ({reached} of {summary.seeds} seeds)"
    error = "" if needed.standard_error is None else f" ± {needed.standard_error:.0f}"
    return f"{needed.mean:.0f}{error}"


def _percent(value: MeanAndStandardError | None) -> str:
    if value is None:
        return "-"
    error = "" if value.standard_error is None else f" ± {100 * value.standard_error:.1f}"
    return f"{100 * value.mean:.1f}{error} %"


def curve_figure(rows: Iterable[Row]) -> "Figure":
    """Accuracy against labels, and the share of ambiguous samples where there are some: mean ± standard error.

    Args:
        rows: The rows of one data set.
    """
    rows = list(rows)
    summaries = summarise_curves(rows)
    if not summaries:
        raise InputError("There are no rows of learning curves to draw.")
    figure_module = require("matplotlib.figure", extra="report", purpose="curve_figure")
    panels = 2 if any(summary.ambiguous for summary in summaries) else 1
    figure = figure_module.Figure(figsize=(1 + 4.6 * panels, 4.2), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    seeds = max(summary.seeds for summary in summaries)
    errors = f"\nmean ± standard error over {seeds} seeds" if seeds > 1 else ""
    dress(axes[0], f"labels{errors}", f"accuracy on the test set of {rows[0].data.removeprefix('dirty_')}")
    for level in LEVELS:
        axes[0].axhline(level, color="black", linewidth=0.5, alpha=0.4)
    for index, summary in enumerate(summaries):
        needed = ", ".join(_labels_needed(summary, level) for level in LEVELS)
        _draw(axes[0], summary.accuracy, index, f"{summary.acquisition}: {needed}")
    if panels == 2:
        dress(axes[1], "labels", "ambiguous, of all that was acquired")
        for index, summary in enumerate(summaries):
            _draw(axes[1], summary.ambiguous, index)
        axes[1].set_ylim(-0.02, 1.02)
    levels = ", ".join(f"{100 * level:.0f}" for level in LEVELS)
    axes[0].legend(frameon=False, fontsize=8, loc="lower right", title=f"labels to {levels} %", title_fontsize=8)
    figure.suptitle(f"Active learning on {rows[0].data}", fontsize=11)
    return figure


def _draw(axes: "Axes", curve: Mapping[int, MeanAndStandardError], index: int, label: str | None = None) -> None:
    style = line_style(index)
    mean = [value.mean for value in curve.values()]
    error = [value.standard_error or 0.0 for value in curve.values()]
    axes.plot(list(curve), mean, label=label, **style)
    low, high = ([m + sign * e for m, e in zip(mean, error, strict=True)] for sign in (-1, 1))
    axes.fill_between(list(curve), low, high, color=style["color"], alpha=0.15, linewidth=0)
