"""Rows of detectors in a file: what is missing is measured, what fails is a row too."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ddu.comparison._measure import measure
from ddu.comparison._networks import Members, TrainedNetwork
from ddu.comparison._ood import set_name, split_severity
from ddu.comparison._scores import IN_DISTRIBUTION_METRICS, OOD_METRICS, Scores
from ddu.detectors import BaseDetector
from ddu.errors import InputError
from ddu.evaluation import Row, RowFile, RowKey, latest, versions

ROWS, SCORES = "rows.csv", "scores"


def folder_of(rows: Path) -> Path:
    """Where what belongs to a file of rows is kept: beside `rows.csv`, and in the folder `NAME` beside `NAME.csv`."""
    return rows.parent if rows.stem == Path(ROWS).stem else rows.with_suffix("")


@dataclass(frozen=True)
class Subject:
    """Whose rows they are; the attributes are those of `Row`, and the fingerprint of the run, if it is known."""

    detector: str
    network: str
    data: str
    seed: int
    members: int = 1
    run: str = ""


def file_name(words: str) -> str:
    """Words as the name of a file.

    >>> file_name("ddu on resnet18+sn")
    'ddu-on-resnet18+sn'
    """
    return "".join(character if character.isalnum() or character in "_.+=" else "-" for character in words)


def scores_file(folder: Path, subject: Subject) -> Path:
    """Where the scores of a detector are."""
    name = f"{subject.detector} on {subject.network} {set_name(subject.data)} seed{subject.seed}"
    return folder / f"{file_name(name)}.npz"


def read_scores(folder: Path, subject: Subject) -> Scores | None:
    """What a detector said of each input; None if it was never measured."""
    path = scores_file(folder, subject)
    return Scores.load(path) if path.is_file() else None


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

    def check_run(self, subject: Subject) -> None:
        """Refuses a detector whose rows are those of another run that goes by the same names."""
        there = read_scores(self.scores, subject)
        if there is not None and there.run not in ("", subject.run):
            raise InputError(
                f"{self.rows.path} has rows of {subject.detector} on {subject.network}, seed {subject.seed}, of "
                f"another run on {subject.data}: its recipe, limit or options differ from this one's. Choose another "
                "file."
            )

    def is_done(self, subject: Subject) -> bool:
        """Whether every row of a detector is there, and its scores."""
        wanted = {self._key(subject, None, metric) for metric in (*IN_DISTRIBUTION_METRICS, *_COST)}
        wanted |= {self._key(subject, name, metric) for name in self.ood for metric in OOD_METRICS}
        return self.rows.done(wanted) == wanted and scores_file(self.scores, subject).is_file()

    def record(
        self, subject: Subject, network: TrainedNetwork | Members, make: Callable[[Any], BaseDetector]
    ) -> list[Row]:
        """Measures a detector, saves its scores and appends the rows that are missing, and those of failures.

        Returns:
            The rows of what failed: the whole detector, or some of the OoD sets.
        """
        started = time.perf_counter()
        try:
            measured = measure(
                make(network.model), network, ood=self.ood, false_alarm_rate=self.false_alarm_rate, seed=subject.seed
            )
        except Exception as error:
            return self.record_failures(subject, {None: error}, time.perf_counter() - started)
        values = {
            self._key(subject, ood, metric): value
            for ood, metrics in measured.values.items()
            for metric, value in metrics.items()
        }
        done, seconds = self._done(subject, values), time.perf_counter() - started
        self._save(subject, measured.scores)
        self.rows.append(
            Row(**key._asdict(), value=value, seconds=seconds, **self._facts(subject))
            for key, value in values.items()
            if key not in done
        )
        return self.record_failures(subject, measured.failures, seconds)

    def record_failures(
        self, subject: Subject, failures: Mapping[Any, Exception], seconds: float | None = None
    ) -> list[Row]:
        """Appends, and returns, the rows of what could not be measured: OoD sets, or with None the whole detector."""
        rows = [
            Row.failed(error, **self._key(subject, ood, None)._asdict(), seconds=seconds, **self._facts(subject))
            for ood, error in failures.items()
        ]
        self.rows.append(rows)
        return rows

    def _save(self, subject: Subject, scores: Scores) -> None:
        """Keeps what the same detector said of other OoD sets before."""
        scores, earlier = replace(scores, run=subject.run), read_scores(self.scores, subject)
        if earlier is not None and torch.equal(earlier.test.epistemic, scores.test.epistemic):
            scores = replace(scores, ood={**earlier.ood, **scores.ood})
        scores.save(scores_file(self.scores, subject))

    def _done(self, subject: Subject, keys: Iterable[RowKey]) -> set[RowKey]:
        """What need not be written again.

        That is nothing if the detector failed since then, which any row makes good; or if there are no scores, since
        rows alone do not tell which run they are of.
        """
        failed = self._key(subject, None, None) in {row.key for row in latest(self.rows.read())}
        return set() if failed or not scores_file(self.scores, subject).is_file() else self.rows.done(keys)

    def _key(self, subject: Subject, ood: str | None, metric: str | None) -> RowKey:
        name, severity = split_severity(ood)
        return RowKey(subject.detector, subject.network, subject.data, subject.seed, name, severity, metric)

    def _facts(self, subject: Subject) -> dict[str, Any]:
        return {"members": subject.members, "command": self.command or None, "versions": versions()}


# Memory is not measured on every system
_COST = ("training_seconds", "seconds_per_thousand")
