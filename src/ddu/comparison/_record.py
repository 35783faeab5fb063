"""Rows of detectors in a file: what is missing is measured, what fails is a row too."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddu.comparison._measure import measure
from ddu.comparison._networks import Members, TrainedNetwork
from ddu.comparison._scores import IN_DISTRIBUTION_METRICS, OOD_METRICS, Scores
from ddu.detectors import BaseDetector
from ddu.evaluation import Row, RowFile, RowKey, versions


@dataclass(frozen=True)
class Subject:
    """Whose rows they are; the attributes are those of `Row`."""

    detector: str
    network: str
    data: str
    seed: int
    members: int = 1


def file_name(words: str) -> str:
    """Words as the name of a file.

    >>> file_name("ddu on resnet18+sn")
    'ddu-on-resnet18+sn'
    """
    return "".join(character if character.isalnum() or character in "_.+=" else "-" for character in words)


@dataclass(frozen=True)
class Recorder:
    """Measures detectors on the same OoD sets, and keeps their rows in a file and their scores in a folder.

    Attributes:
        rows: Where rows are appended.
        scores: The folder for scores.
        ood: The OoD sets, by the names of `ddu.data`.
        false_alarm_rate: What detectors are calibrated for.
        command: What to write down as the command that gives the rows again.
    """

    rows: RowFile
    scores: Path
    ood: Sequence[str]
    false_alarm_rate: float
    command: str = ""

    def is_done(self, subject: Subject) -> bool:
        """Whether every row of a detector is there, and its scores."""
        wanted = {self._key(subject, None, metric) for metric in (*IN_DISTRIBUTION_METRICS, *_COST)}
        wanted |= {self._key(subject, name, metric) for name in self.ood for metric in OOD_METRICS}
        return self.rows.done(wanted) == wanted and self._scores_file(subject).is_file()

    def record(
        self, subject: Subject, network: TrainedNetwork | Members, make: Callable[[Any], BaseDetector]
    ) -> Exception | None:
        """Measures a detector, saves its scores and appends the rows that are missing; or the row of its failure.

        Returns:
            What went wrong, if something did.
        """
        started = time.perf_counter()
        try:
            scores, cost = measure(
                make(network.model), network, ood=self.ood, false_alarm_rate=self.false_alarm_rate, seed=subject.seed
            )
            values = self._values(scores, cost)
        except Exception as error:
            self.record_failure(subject, error, time.perf_counter() - started)
            return error
        scores.save(self._scores_file(subject))
        keys = {self._key(subject, ood, metric): value for (ood, metric), value in values.items()}
        done, seconds = self.rows.done(keys), time.perf_counter() - started
        self.rows.append(
            Row(**key._asdict(), value=value, seconds=seconds, **self._facts(subject))
            for key, value in keys.items()
            if key not in done
        )
        return None

    def record_failure(self, subject: Subject, error: Exception, seconds: float | None = None) -> None:
        """Appends the row of a detector that could not be measured."""
        key = RowKey(subject.detector, subject.network, subject.data, subject.seed)
        self.rows.append([Row.failed(error, **key._asdict(), seconds=seconds, **self._facts(subject))])

    def read_scores(self, subject: Subject) -> Scores:
        """What a detector that was measured said of each input."""
        return Scores.load(self._scores_file(subject))

    def _scores_file(self, subject: Subject) -> Path:
        name = file_name(f"{subject.detector} on {subject.network} seed{subject.seed}")
        return self.scores / f"{name}.npz"

    def _values(self, scores: Scores, cost: dict[str, float]) -> dict[tuple[str | None, str], float]:
        """Every value, by OoD set and metric."""
        found = {None: scores.in_distribution_metrics() | cost}
        found |= {name: scores.ood_metrics(name) for name in self.ood}
        return {(name, metric): value for name, metrics in found.items() for metric, value in metrics.items()}

    def _key(self, subject: Subject, ood: str | None, metric: str) -> RowKey:
        name, severity = split_severity(ood)
        return RowKey(subject.detector, subject.network, subject.data, subject.seed, name, severity, metric)

    def _facts(self, subject: Subject) -> dict[str, Any]:
        return {"members": subject.members, "command": self.command or None, "versions": versions()}


# Memory is not measured on every system
_COST = ("training_seconds", "seconds_per_thousand")


def split_severity(ood: str | None) -> tuple[str | None, int | None]:
    """The name of an OoD set and, of a corruption of CIFAR-10, its severity.

    >>> split_severity("cifar10_c:fog:3"), split_severity("svhn")
    (('cifar10_c:fog', 3), ('svhn', None))
    """
    if ood is None or not ood.startswith("cifar10_c:"):
        return ood, None
    name, _, severity = ood.rpartition(":")
    return name, int(severity)
