"""The page of the quality protocol: rows as tables, figures and sentences."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import hypot, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from ddu.experiments.quality_pairs import (
    DEFAULT,
    FOUND_ALWAYS,
    UNCORRUPTED,
    WITHOUT_ENERGY,
    Candidate,
    Half,
    Kind,
    Pair,
)
from ddu.experiments.trained import split_severity
from ddu.metrics import mean_and_standard_error
from ddu.report import flagged_figure, pair_figure
from ddu.results import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN = 0.01
"""How far another detector may be ahead of the default on a pair before the page says so."""
WANTED = 0.99
"""The AUROC that flat, black, white and noise images are wanted to have."""

_CLEAN = (split_severity(UNCORRUPTED)[0], "accuracy", 0)
_HALVES: tuple[Half, ...] = ("choose", "confirm")
_MILD = 0.02  # a corruption that costs less accuracy than this is mild


class Estimate(NamedTuple):
    """A mean, and its standard error."""

    mean: float
    error: float

    @property
    def width(self) -> float:
        """Half the width of the 95 % interval."""
        return 1.96 * self.error

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.width:.3f}"


def estimate(values: Sequence[float], errors: Sequence[float]) -> Estimate:
    """The mean over seeds, with the error of the seeds and that of the samples, which all seeds share.

    Args:
        values: Of each seed.
        errors: The standard error of each value over the samples.

    >>> print(estimate([0.90, 0.92], [0.01, 0.01]))
    0.910 ± 0.028
    """
    over_seeds = mean_and_standard_error(values)
    return Estimate(over_seeds.mean, hypot(over_seeds.standard_error or 0.0, fmean(errors)))


def mean_of_pairs(estimates: Sequence[Estimate]) -> Estimate:
    """The mean over pairs, whose errors are independent."""
    count = len(estimates)
    return Estimate(fmean(one.mean for one in estimates), sqrt(sum(one.error**2 for one in estimates)) / count)


@dataclass(frozen=True)
class QualityPage:
    """What the rows of a protocol say.

    Attributes:
        planned: The pairs of the protocol, in order.
        candidates: The detectors, in order.
        rows: The rows, one per key.
        left_out: The detectors of pytorch-ood that are not measured, and why.
        false_alarm_rate: The rate that detectors are calibrated for.
    """

    planned: Sequence[Pair]
    candidates: Sequence[Candidate]
    rows: Sequence[Row]
    left_out: Mapping[str, str] = field(default_factory=dict)
    false_alarm_rate: float = 0.01

    @cached_property
    def pairs(self) -> list[Pair]:
        """The pairs of which something is measured, with the seeds that are."""
        measured = {(row.network, row.data, row.seed) for row in self.rows}
        found = [
            replace(pair, seeds=tuple(s for s in pair.seeds if (pair.network.label, pair.data, s) in measured))
            for pair in self.planned
        ]
        return [pair for pair in found if pair.seeds]

    def to_markdown(self, command: str, images: str) -> str:
        """The page.

        Args:
            command: What gives it again.
            images: Where its figures are, as a path that ends where their names begin.
        """
        parts = [
            _INTRODUCTION.format(command=command, networks=_networks(self.pairs), planned=_networks(self.planned)),
            self._pair_table(),
            "## Every pair\n\n" + _EVERY_PAIR.format(figure=f"{images}pairs.png", rate=f"{self.false_alarm_rate:.0%}"),
            *(self._auroc_section(half) for half in _HALVES),
            self._rivals_section(),
            self._degenerate_section(),
            self._corruption_section(images),
            self._failure_section(),
        ]
        return "\n\n".join(part.strip() for part in parts if part) + "\n"

    def figures(self) -> dict[str, "Figure"]:
        """The figures by the ends of their names."""
        names = [pair.name for pair in self.pairs if self.summary(pair, DEFAULT)]
        best = {pair.name: self._best_of_theirs(pair) for pair in self.pairs}
        shown: dict[str, dict[str, tuple[float, float]]] = {DEFAULT: {}, "best of pytorch-ood": {}, "softmax": {}}
        for pair in self.pairs:
            rival = best[pair.name]
            for label, name in ((DEFAULT, DEFAULT), ("best of pytorch-ood", rival), ("softmax", "softmax")):
                found = None if name is None else self.summary(pair, name)
                if found is not None:
                    shown[label][pair.name] = (found.mean, found.width)
        figures = {"pairs.png": pair_figure(shown, names)} if names else {}
        points = self._corruption_points(DEFAULT)
        if points:
            figures["corruptions.png"] = flagged_figure(points, self.false_alarm_rate)
        return figures

    def summary(self, pair: Pair, detector: str, *kinds: Kind, metric: str = "auroc") -> Estimate | None:
        """The mean of a metric over OoD sets of these kinds, near and far by default, and over seeds.

        The error of the mean over sets is the mean of their errors: they share the test images, and may err together.
        None if a set or a seed is missing.
        """
        return self._over(pair, detector, [one for kind in kinds or ("near", "far") for one in pair.sets(kind)], metric)

    def _over(self, pair: Pair, detector: str, sets: Sequence[str], metric: str = "auroc") -> Estimate | None:
        found = [[self._value(pair, detector, seed, one, metric) for one in sets] for seed in pair.seeds if sets]
        errors = [[self._value(pair, detector, seed, one, f"{metric}_error") for one in sets] for seed in pair.seeds]
        complete = [[value for value in values if value is not None] for values in found]
        if not found or any(len(values) < len(sets) for values in complete):
            return None
        spread = [[error or 0.0 for error in of_seed] for of_seed in errors]
        return estimate([fmean(values) for values in complete], [fmean(values) for values in spread])

    def _value(
        self, pair: Pair, detector: str, seed: int, ood: str | None, metric: str, severity: int | None = None
    ) -> float | None:
        return self._values.get((pair.network.label, pair.data, detector, seed, ood, severity, metric))

    @cached_property
    def _values(self) -> dict[tuple[str, str, str, int, str | None, int | None, str], float]:
        return {
            (row.network, row.data, row.detector, row.seed, row.ood, row.severity, row.metric): row.value
            for row in self.rows
            if row.metric is not None and row.value is not None
        }

    def _in_distribution(self, pair: Pair, detector: str, metric: str) -> float | None:
        """The mean over the seeds that are measured."""
        values = [self._value(pair, detector, seed, None, metric) for seed in pair.seeds]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    def _pair_table(self) -> str:
        lines = []
        for pair in self.pairs:
            accuracy = self._in_distribution(pair, "softmax", "accuracy")
            flagged = self._in_distribution(pair, DEFAULT, "false_alarm_rate")
            lines.append(
                [
                    pair.name,
                    pair.half,
                    pair.network.label,
                    pair.data,
                    str(len(pair.seeds)),
                    "" if accuracy is None else f"{100 * accuracy:.1f} %",
                    "" if flagged is None else f"{100 * flagged:.1f} %",
                    ", ".join(pair.sets("near")) or "none",
                    ", ".join(pair.sets("far")) or "none",
                ]
            )
        heading = "pair", "half", "network", "data", "seeds", "accuracy", "false alarms", "near OoD", "far OoD"
        return _table(heading, lines)

    def _auroc_section(self, half: Half) -> str:
        pairs = [pair for pair in self.pairs if pair.half == half]
        if not pairs:
            return ""
        title = {"choose": "Pairs to choose by", "confirm": "Pairs to confirm on"}[half]
        parts = [f"## {title}"]
        selections: list[tuple[str, str, tuple[Kind, ...]]] = [
            ("Mean AUROC over all OoD sets", "auroc", ("near", "far")),
            ("Mean AUROC over near OoD sets", "auroc", ("near",)),
            ("Mean AUROC over far OoD sets", "auroc", ("far",)),
            ("Mean FPR at 95 % TPR over all OoD sets (lower is better)", "fpr95", ("near", "far")),
        ]
        for words, metric, kinds in selections:
            with_sets = [pair for pair in pairs if any(pair.sets(kind) for kind in kinds)]
            if with_sets:
                parts += [f"**{words}**", self._detector_table(with_sets, metric, kinds)]
        return "\n\n".join(parts)

    def _detector_table(self, pairs: Sequence[Pair], metric: str, kinds: tuple[Kind, ...]) -> str:
        found = {
            one.name: [self.summary(pair, one.name, *kinds, metric=metric) for pair in pairs] for one in self.candidates
        }
        means = {name: _mean(values) for name, values in found.items()}
        sign = 1 if metric == "fpr95" else -1
        order = sorted(found, key=lambda name: (means[name] is None, sign * (means[name] or Estimate(0, 0)).mean))
        lines = [[_bold(name), _write(means[name]), *(_write(value) for value in found[name])] for name in order]
        return _table(("detector", "mean", *(pair.name for pair in pairs)), lines)

    def _best_of_theirs(self, pair: Pair) -> str | None:
        """The detector of pytorch-ood with the highest mean AUROC on a pair."""
        found = {one.name: self.summary(pair, one.name) for one in self.candidates if one.is_theirs}
        means = {name: value.mean for name, value in found.items() if value is not None}
        return max(means, key=lambda name: means[name], default=None)

    def _rivals_section(self) -> str:
        lines, behind, reasons = [], list[str](), list[str]()
        for pair in self.pairs:
            rival = self._best_of_theirs(pair)
            own, best = self.summary(pair, DEFAULT), None if rival is None else self.summary(pair, rival)
            if own is None or best is None or rival is None:
                lines.append([pair.name, pair.half, _write(own), "not measured", "", "", ""])
                continue
            lead = best.mean - own.mean
            verdict = "**yes**" if lead > MARGIN else "no"
            lines.append([pair.name, pair.half, str(own), rival, str(best), f"{-lead:+.3f}", verdict])
            if lead > MARGIN:
                behind.append(f"{pair.name} ({rival}, {lead:.3f} ahead)")
                reasons.append(self._energy_of(pair))
        measured = sum(1 for line in lines if line[-1])
        words = (
            f"More than {MARGIN} behind on {len(behind)} of {measured} pairs: {'; '.join(behind)}.{''.join(reasons)}"
            if behind
            else f"On none of {measured} pairs is a detector of pytorch-ood more than {MARGIN} ahead of the default."
        )
        heading = (
            "pair",
            "half",
            "default",
            "best of pytorch-ood",
            "its AUROC",
            "difference",
            f"more than {MARGIN} ahead?",
        )
        return f"## Is any detector of pytorch-ood ahead?\n\n{words}\n\n{_table(heading, lines)}"

    def _energy_of(self, pair: Pair) -> str:
        """What the energy of the network does to the default, in words."""
        alone, without = self.summary(pair, "energy"), self.summary(pair, WITHOUT_ENERGY)
        accuracy = self._in_distribution(pair, "softmax", "accuracy")
        if alone is None or without is None or accuracy is None:
            return ""
        return (
            f" The network of {pair.name} is right about {100 * accuracy:.1f} % of test inputs; its energy alone has "
            f"{alone.mean:.3f}, and the default without that part {without.mean:.3f}."
        )

    def _degenerate_section(self) -> str:
        pairs = [pair for pair in self.pairs if pair.sets("degenerate")]
        sets = list(dict.fromkeys(one for pair in pairs for one in pair.sets("degenerate")))
        lines, missed, count = [], list[str](), 0
        for pair in pairs:
            cells = []
            for one in sets:
                found = self._over(pair, DEFAULT, [one] if one in pair.kinds else [])
                if found is not None and one in FOUND_ALWAYS:
                    count += 1
                    if found.mean < WANTED:
                        missed.append(f"{one} on {pair.name} ({found.mean:.3f})")
                cells.append(_write(found, low=WANTED if one in FOUND_ALWAYS else None))
            lines.append([pair.name, pair.half, *cells])
        if not lines:
            return ""
        words = (
            f"Below {WANTED} in {len(missed)} of {count} cases: {', '.join(missed)}."
            if missed
            else f"All {count} of {', '.join(FOUND_ALWAYS)} reach {WANTED}."
        )
        table = _table(("pair", "half", *sets), lines)
        return f"## Degenerate images\n\n{_DEGENERATE} {words}\n\n{table}"

    def _corruption_section(self, images: str) -> str:
        pair = next((pair for pair in self.pairs if pair.corrupted), None)
        points = self._corruption_points(DEFAULT)
        if pair is None or not points:
            return ""
        mild, lines = self._corruptions(pair, DEFAULT), []
        for (name, severity), (lost, flagged) in sorted(mild.items(), key=lambda item: item[1][0]):
            if severity == 1:
                lines.append([name, f"{100 * lost:+.1f}", f"{100 * flagged:.1f}", "yes" if lost < _MILD else "no"])
        calm = [100 * flagged for (_, severity), (lost, flagged) in mild.items() if severity == 1 and lost < _MILD]
        words = (
            f"Of the {len(calm)} corruptions that cost less than {_MILD:.0%} of accuracy at severity 1, between "
            f"{min(calm):.1f} and {max(calm):.1f} % of images are flagged."
            if calm
            else f"No corruption costs less than {_MILD:.0%} of accuracy at severity 1."
        )
        text = _CORRUPTIONS.format(
            count=pair.corrupted, pair=pair.name, figure=f"{images}corruptions.png", rate=f"{self.false_alarm_rate:.0%}"
        )
        table = _table(
            ("corruption, severity 1", "accuracy lost (%)", "flagged (%)", f"mild (under {_MILD:.0%})?"), lines
        )
        return f"## Corrupted images\n\n{text}\n\n{words}\n\n{table}"

    def _corruptions(self, pair: Pair, detector: str) -> dict[tuple[str, int], tuple[float, float]]:
        """Loss of accuracy and share flagged by corruption and severity, both over all seeds."""
        found: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        for row in self.rows:
            if (row.detector, row.network, row.data) != (detector, pair.network.label, pair.data):
                continue
            if row.severity is None or row.ood is None or row.metric != "detection_rate" or row.value is None:
                continue
            clean = self._value(pair, detector, row.seed, *_CLEAN)
            left = self._value(pair, detector, row.seed, row.ood, "accuracy", row.severity)
            if clean is not None and left is not None:
                found[row.ood.partition(":")[2], row.severity].append((clean - left, row.value))
        return {key: (fmean(lost for lost, _ in v), fmean(share for _, share in v)) for key, v in found.items()}

    def _corruption_points(self, detector: str) -> dict[str, list[tuple[float, float]]]:
        points: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for pair in self.pairs:
            if pair.corrupted:
                for (_, severity), point in sorted(
                    self._corruptions(pair, detector).items(), key=lambda one: one[0][1]
                ):
                    points[f"severity {severity}"].append(point)
        return dict(points)

    def _failure_section(self) -> str:
        failures: dict[tuple[str, str], set[str]] = defaultdict(set)
        for row in self.rows:
            if row.status == "failed":
                failures[row.detector, row.error or ""].add(f"{row.data}{f' against {row.ood}' if row.ood else ''}")
        lines = [
            f"- {detector} on {', '.join(sorted(where))}: {_one_line(error)}"
            for (detector, error), where in failures.items()
        ]
        parts = ["## What is missing"]
        parts.append("Failed:\n\n" + "\n".join(lines) if lines else "No detector failed.")
        if self.left_out:
            reasons = "\n".join(f"- {name}: {_one_line(reason)}" for name, reason in self.left_out.items())
            parts.append(f"Detectors of pytorch-ood that do not score what one forward pass gives:\n\n{reasons}")
        return "\n\n".join(parts)


def _networks(pairs: Iterable[Pair]) -> int:
    """How many networks pairs have, with all their seeds."""
    return sum(len(pair.seeds) for pair in pairs)


_INTRODUCTION = """\
# Quality of the default detector

How well `ddu.DDU(model)` with its default settings finds what its network does not know, against softmax, energy,
Mahalanobis distances and every detector of pytorch-ood that runs on the same features. All of it is made from the
rows in `results/quality/` by

    {command}

Each pair is a network and training data. Of the {planned} networks, with all seeds, {networks} are measured so far;
the command trains and measures what is missing. The default was chosen on the pairs called "choose"; those called
"confirm" had no part in it. Data sets are near if they show things of the same kind as the training data (CIFAR-10,
CIFAR-100 and Tiny-ImageNet among each other; queries out of scope), and far otherwise. What a prediction costs is in
[speed](speed.md)."""

_EVERY_PAIR = """\
![The default, the best of pytorch-ood and softmax on each pair]({figure})

The mean AUROC over the OoD sets of each pair, near and far. "The best of pytorch-ood" is another detector on each
pair, picked with the OoD sets in sight. What follows ± is half of a 95 % interval. Its error is that of the seeds
(networks trained from other seeds) and of the inputs (DeLong for the AUROC, the bootstrap for the FPR) together; the
errors of several OoD sets are taken as if they went together, which is rather too wide than too narrow. Pairs with
one seed have no error of seeds. Detectors are calibrated for {rate} of false alarms on held-out data, and the table
above says what came of it."""

_DEGENERATE = """\
AUROC of the default for images that no camera takes. The first four are to be found always; the others are made from
test images and are reported. Numbers below what is wanted are bold."""

_CORRUPTIONS = """\
![Share flagged against accuracy lost]({figure})

The first {count} test images under the 19 corruptions of CIFAR-10-C at five severities, for {pair}, as means over its
seeds: one point for each corruption and severity. The dashed line is the {rate} of false alarms that the detector was
calibrated for. What is flagged should rise with what is lost."""


def _mean(values: Iterable[Estimate | None]) -> Estimate | None:
    """The mean over pairs; None if one is missing."""
    found = list(values)
    complete = [value for value in found if value is not None]
    return mean_of_pairs(complete) if found and len(complete) == len(found) else None


def _bold(name: str) -> str:
    return f"**{name}**" if name == DEFAULT else name


def _write(value: Estimate | None, low: float | None = None) -> str:
    if value is None:
        return "—"
    return f"**{value}**" if low is not None and value.mean < low else str(value)


def _table(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _one_line(words: str) -> str:
    return " ".join(words.split())
