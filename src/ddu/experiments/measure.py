"""Detectors around one trained network: fitted, calibrated, asked about every set and timed, as rows."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ddu.detectors import BaseDetector, Evidence
from ddu.experiments.cost import measure_cost
from ddu.experiments.experiment import Say
from ddu.experiments.ood_sets import set_name, split_severity
from ddu.experiments.scores import IN_DISTRIBUTION_METRICS, OOD_METRICS, Judged, Scores, file_name, has_scores
from ddu.experiments.trained import Members, TrainedNetwork
from ddu.features import FeatureBatch
from ddu.measures import entropy
from ddu.results import Row, RowFile, RowKey, latest, source

T = TypeVar("T")

SCORES = "scores"

Maker = Callable[[Any], BaseDetector]
"""Makes a detector of a network, or of a list of them."""

# Costs are those of a thousand test inputs, or all there are, in batches of 250
_COST_INPUTS, _COST_BATCH = 1000, 250

# Memory is not measured on every system
_COSTS = ("training_seconds", "seconds_per_thousand")


@dataclass(frozen=True)
class Subject:
    """A detector around a network; the attributes are those of `Row`."""

    detector: str
    network: str
    data: str
    seed: int
    run: str
    members: int = 1
    reductions: str | None = None

    def key(self, ood: str | None, metric: str | None) -> RowKey:
        """The key of one of its rows."""
        name, severity = split_severity(ood)
        return RowKey(
            self.detector, self.network, self.data, self.seed, self.run, self.members, name, severity, None, metric
        )

    def scores_folder(self, folder: Path) -> Path:
        """Where its scores are in the folder of all scores."""
        name = f"{self.detector} on {self.network} {set_name(self.data)} seed{self.seed}"
        return folder / file_name(f"{name} x{self.members} {self.run}" if self.members > 1 else f"{name} {self.run}")


@dataclass(frozen=True)
class Recorder:
    """Measures detectors on the same OoD sets, and keeps their rows in a file and their scores in a folder.

    Attributes:
        rows: Where rows are appended.
        scores: The folder for scores.
        ood: The OoD sets, by the names of `ddu.data`.
        false_alarm_rate: The rate that detectors are calibrated for.
        command: The command to record with the rows.
    """

    rows: RowFile
    scores: Path
    ood: Sequence[str]
    false_alarm_rate: float
    command: str = ""

    def missing(self, subject: Subject) -> list[str]:
        """The sets, "test" among them, that a detector has no rows or scores of.

        All of them if it failed, so that the next run tries again.
        """
        everything, rows = ["test", *self.ood], latest(self.rows.read())
        if subject.key(None, None) in {row.key for row in rows}:
            return everything
        measured = {row.key for row in rows if row.status == "ok"}
        folder = subject.scores_folder(self.scores)
        return [
            name
            for name in everything
            if not (measured.issuperset(_wanted(subject, name)) and has_scores(folder, _ood(name)))
        ]

    def record(
        self, network: TrainedNetwork | Members, makers: Mapping[Subject, Maker], say: Say = lambda words: None
    ) -> None:
        """Measures what is missing of detectors around one network, and appends it to the rows.

        Each set runs through the network once, and is let go when all detectors have seen it. A detector that fails,
        or an OoD set that it cannot be asked about, is a row that says so; the others are measured all the same.
        """
        missing = {subject: self.missing(subject) for subject in makers}
        trials = [Trial(one, makers[one], network, self.false_alarm_rate) for one in makers if missing[one]]
        for trial in trials:
            with suppress(Exception):  # the first set that it is shown fails likewise, and that is recorded
                network.expect(trial.detector)
        for name in ("train", "validation", "test", *self.ood):
            for trial in [trial for trial in trials if name not in self.ood or name in missing[trial.subject]]:
                try:
                    values = trial.see(name)
                    if name in missing[trial.subject]:
                        trial.scores.save(trial.subject.scores_folder(self.scores), _ood(name))
                        self._append(trial, _ood(name), values)
                except Exception as error:
                    self._append_failure(trial.subject, error, say, _ood(name), trial.seconds)
                    if name not in self.ood:
                        trials.remove(trial)
            network.forget(name)
        for trial in trials:
            if "test" in missing[trial.subject]:
                try:
                    self._append(trial, None, trial.costs())
                except Exception as error:
                    self._append_failure(trial.subject, error, say, seconds=trial.seconds)

    def fail(self, subject: Subject, error: Exception, say: Say = lambda words: None) -> None:
        """Appends the row of a detector whose network could not be trained."""
        self._append_failure(subject, error, say)

    def _append(self, trial: "Trial", ood: str | None, values: Mapping[str, float]) -> None:
        keys = {trial.subject.key(ood, metric): value for metric, value in values.items()}
        facts = {"seconds": trial.seconds, **self._facts(trial.subject)}
        self.rows.append(Row(**key._asdict(), value=value, **facts) for key, value in keys.items())

    def _append_failure(
        self, subject: Subject, error: Exception, say: Say, ood: str | None = None, seconds: float | None = None
    ) -> None:
        row = Row.failed(error, **subject.key(ood, None)._asdict(), seconds=seconds, **self._facts(subject))
        self.rows.append([row])
        say(f"Failed: {row.subject}: {row.error}")

    def _facts(self, subject: Subject) -> dict[str, Any]:
        return {"reductions": subject.reductions, **source(self.command)}


def _ood(name: str) -> str | None:
    """A set as the column `ood` has it."""
    return None if name in ("train", "validation", "test") else name


def _wanted(subject: Subject, name: str) -> list[RowKey]:
    """The keys of the rows that a set gives; those of the test set include the costs."""
    metrics = (*IN_DISTRIBUTION_METRICS, *_COSTS) if name == "test" else OOD_METRICS
    return [subject.key(_ood(name), metric) for metric in metrics]


class Trial:
    """A detector that is shown one set after the other.

    Attributes:
        subject: Whose rows they are.
        seconds: The time that the detector took so far, without the network.
        scores: What it says of the test set and of the OoD sets that it has seen.
    """

    scores: Scores

    def __init__(self, subject: Subject, make: Maker, network: TrainedNetwork | Members, false_alarm_rate: float):
        self.subject = subject
        self.seconds = 0.0
        self._make = make
        self._network = network
        self._false_alarm_rate = false_alarm_rate
        self._training_seconds = network.training_seconds

    @cached_property
    def detector(self) -> BaseDetector:
        """The detector around the network."""
        return self._make(self._network.model)

    def see(self, name: str) -> dict[str, float]:
        """Shows it a set: it is fitted to "train", calibrated on "validation" and asked about the others.

        Returns:
            The metrics of what it says; none for the first two.
        """
        detector = self.detector
        if name == "train":
            if detector.needs_fit:
                self._learn(name, detector.fit)
            return {}
        if name == "validation":
            self._learn(name, partial(detector.calibrate, false_alarm_rate=self._false_alarm_rate))
            return {}
        batches = self._network.batches(name, detector)
        evidence, labels = self._timed(lambda: _ask(detector, batches))
        judged = Judged(evidence.epistemic, entropy(evidence.logits / detector.temperature))
        if name != "test":
            self.scores = self.scores.with_ood(name, judged)
            return self.scores.ood_metrics(name)
        assert detector.epistemic_threshold is not None
        self.scores = Scores(evidence.logits, labels, detector.temperature, detector.epistemic_threshold, judged)
        return self.scores.in_distribution_metrics()

    def _learn(self, name: str, learn: Callable[[Iterable[Any]], object]) -> None:
        batches, before = self._network.batches(name, self.detector), self.seconds
        self._timed(lambda: learn(batches))
        self._training_seconds += self.seconds - before + self._network.extraction_seconds(name, self.detector)

    def _timed(self, work: Callable[[], T]) -> T:
        """Does something whose random numbers depend on the seed alone, and adds the time that it takes."""
        started = time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.subject.seed)
            result = work()
        self.seconds += time.perf_counter() - started
        return result

    def costs(self) -> dict[str, float]:
        """Seconds and memory.

        Returns:
            training_seconds, of the network, the fit and the calibration together; seconds_per_thousand and
            megabytes_per_thousand, of whole predictions, the network included.
        """
        test = self._network.sets["test"]
        inputs, _ = test.__getitems__(range(min(_COST_INPUTS, len(test))))

        def predict(inputs: Tensor) -> None:
            for batch in inputs.split(_COST_BATCH):
                self.detector.predict(batch)

        return {"training_seconds": self._training_seconds, **measure_cost(predict, inputs)}


def _ask(detector: BaseDetector, batches: Iterable[Any]) -> tuple[Evidence, Tensor]:
    """What the detector makes of a set, and the labels."""
    found, labels = [], []
    for batch in batches:
        inputs, truth = (batch, batch.labels) if isinstance(batch, FeatureBatch) else batch
        found.append(detector.evidence(inputs))
        labels.append(truth)
    logits, epistemic = (torch.cat(column).cpu() for column in zip(*found, strict=True))
    return Evidence(logits, epistemic), torch.cat(labels).cpu()
