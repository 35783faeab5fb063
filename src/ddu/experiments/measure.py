"""Detectors around one trained network: fitted, calibrated, asked about every set, timed and weighed, as rows."""

import ctypes
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ddu.detectors import BaseDetector, Evidence, join_evidence
from ddu.errors import InputError
from ddu.experiments.experiment import Say, silent
from ddu.experiments.scores import IN_DISTRIBUTION_METRICS, OOD_METRICS, Judged, Scores, scores_folder
from ddu.experiments.trained import Members, TrainedNetwork, split_severity
from ddu.features import FeatureBatch
from ddu.measures import entropy
from ddu.results import Row, RowFile, RowKey, latest, source

T = TypeVar("T")

SCORES = "scores"

Maker = Callable[[Any], BaseDetector]
"""Makes a detector of a network, or of a list of them."""

Subject = RowKey
"""A detector around a network: the key of its rows, without OoD set and metric."""

# Costs are those of a thousand test inputs, or all there are, in batches of 250
_COST_INPUTS, _COST_BATCH = 1000, 250

# Memory is not measured on every system
_COSTS = ("training_seconds", "seconds_per_thousand")


@dataclass(frozen=True)
class Recorder:
    """Measures detectors on the same OoD sets, and keeps their rows in a file and their scores in a folder.

    Attributes:
        rows: Where rows are appended.
        scores: The folder for scores.
        ood: The OoD sets, by the names of `ddu.data`.
        false_alarm_rate: The rate that detectors are calibrated for.
        command: The command to record with the rows.
        in_metrics: What is recorded of the test set.
        ood_metrics: What is recorded of each OoD set.
        timed: Whether what predictions cost is measured too.
    """

    rows: RowFile
    scores: Path
    ood: Sequence[str]
    false_alarm_rate: float
    command: str = ""
    in_metrics: Sequence[str] = IN_DISTRIBUTION_METRICS
    ood_metrics: Sequence[str] = OOD_METRICS
    timed: bool = True

    def missing(self, subjects: Iterable[Subject]) -> dict[Subject, list[str]]:
        """The detectors that lack rows, and the sets, "test" among them, that each has none of.

        All sets of a detector that failed, so that the next run tries again. Rows without the scores that they were
        made from, as in a fresh clone, are not measured again.
        """
        everything, rows = ["test", *self.ood], latest(self.rows.read())
        keys, measured = {row.key for row in rows}, {row.key for row in rows if row.status == "ok"}

        def lacks(subject: Subject, name: str) -> bool:
            return subject in keys or not measured.issuperset(self._wanted(subject, name))

        found = {subject: [name for name in everything if lacks(subject, name)] for subject in subjects}
        return {subject: names for subject, names in found.items() if names}

    def record(
        self,
        network: TrainedNetwork | Members,
        makers: Mapping[Subject, Maker],
        say: Say = silent,
        *,
        reductions: str | None = None,
    ) -> None:
        """Measures what is missing of detectors around one network, and appends it to the rows.

        Each set runs through the network once, and is let go when all detectors have seen it. A detector that fails,
        or an OoD set that it cannot be asked about, is a row that says so; the others are measured all the same.

        Args:
            network: The network.
            makers: The detectors.
            say: Is told what is being done.
            reductions: How the run of the network is smaller than the paper's.
        """
        missing = self.missing(makers)
        trials = [Trial(one, makers[one], network, self.false_alarm_rate) for one in missing]
        for trial in trials:
            with suppress(Exception):  # the first set that it is shown fails likewise, and that is recorded
                network.expect(trial.detector)
        for name in ("train", "validation", "test", *self.ood):
            for trial in [trial for trial in trials if name not in self.ood or name in missing[trial.subject]]:
                try:
                    values = trial.see(name)
                    if name in missing[trial.subject]:
                        trial.scores.save(scores_folder(self.scores, trial.subject), _ood(name))
                        kept = self.in_metrics if name == "test" else self.ood_metrics
                        self._append(trial, name, {metric: values[metric] for metric in kept}, reductions)
                except Exception as error:
                    self.fail(trial.subject, error, say, name, seconds=trial.seconds, reductions=reductions)
                    if name not in self.ood:
                        trials.remove(trial)
            network.forget(name)
        for trial in trials:
            if self.timed and "test" in missing[trial.subject]:
                try:
                    self._append(trial, "test", trial.costs(), reductions)
                except Exception as error:
                    self.fail(trial.subject, error, say, seconds=trial.seconds, reductions=reductions)

    def fail(self, subject: Subject, error: Exception, say: Say, name: str = "test", **facts: Any) -> None:
        """Appends the row of a detector that failed, or whose network could not be trained.

        Args:
            subject: The detector.
            error: What went wrong.
            say: Is told of it.
            name: The set that it failed on.
            **facts: Further columns of the row.
        """
        row = Row.failed(error, **asdict(row_key(subject, name)), **facts, **source(self.command))
        self.rows.append([row])
        say(f"Failed: {row.subject}: {row.error}")

    def _append(self, trial: "Trial", name: str, values: Mapping[str, float], reductions: str | None) -> None:
        facts: dict[str, Any] = {"seconds": trial.seconds, "reductions": reductions, **source(self.command)}
        self.rows.append(
            Row(**asdict(row_key(trial.subject, name, metric)), value=value, **facts)
            for metric, value in values.items()
        )

    def _wanted(self, subject: Subject, name: str) -> list[RowKey]:
        """The keys of the rows that a set gives; those of the test set include the costs."""
        metrics = (*self.in_metrics, *(_COSTS if self.timed else ())) if name == "test" else self.ood_metrics
        return [row_key(subject, name, metric) for metric in metrics]


def _ood(name: str) -> str | None:
    """A set as the column `ood` has it."""
    return None if name in ("train", "validation", "test") else name


def row_key(subject: Subject, name: str, metric: str | None = None) -> RowKey:
    """The key of a row of a detector, from a set and a metric."""
    ood, severity = split_severity(_ood(name))
    return replace(subject, ood=ood, severity=severity, metric=metric)


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
            The metrics of what it says, with standard errors where they are known; none for the first two.
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
        evidence, labels = self._timed(lambda: ask(detector, batches))
        judged = Judged(evidence.epistemic, entropy(evidence.logits / detector.temperature))
        if name != "test":
            self.scores = self.scores.with_ood(name, judged)
            return self.scores.ood_metrics(name) | self.scores.ood_errors(name)
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


def ask(detector: BaseDetector, batches: Iterable[Any]) -> tuple[Evidence, Tensor]:
    """What the detector makes of a set, and the labels."""
    found, labels = [], []
    for batch in batches:
        inputs, truth = (batch, batch.labels) if isinstance(batch, FeatureBatch) else batch
        found.append(detector.evidence(inputs))
        labels.append(truth)
    evidence = join_evidence(found)
    return Evidence(evidence.logits.cpu(), evidence.epistemic.cpu()), torch.cat(labels).cpu()


_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure_cost(function: Callable[[Tensor], Any], inputs: Tensor, *, repeats: int = 3) -> dict[str, float]:
    """Seconds and peak memory that a function takes for a thousand inputs.

    It is called once to warm up, once to measure memory, and `repeats` times to measure seconds, of which the median
    counts. Both are scaled to a thousand inputs in proportion: give a thousand to have the memory exact.

    Args:
        function: Takes all inputs at once; what it returns is dropped.
        inputs: Inputs, (input, ...).
        repeats: How often the function is timed.

    Returns:
        seconds_per_thousand; megabytes_per_thousand, how far memory rose above what was in use before: the device's
        own on CUDA, the resident memory of the process on Linux; left out where the system cannot tell.
    """
    if len(inputs) == 0 or repeats < 1:
        raise InputError(
            f"inputs must be non-empty and repeats at least 1. Got {len(inputs)} inputs and {repeats} repeats."
        )
    thousands = len(inputs) / 1000
    function(inputs)
    peak = _peak_bytes(lambda: function(inputs), inputs.device)
    seconds = statistics.median(_seconds(lambda: function(inputs), inputs.device) for _ in range(repeats))
    cost = {"seconds_per_thousand": seconds / thousands}
    if peak is not None:
        cost["megabytes_per_thousand"] = peak / 1e6 / thousands
    return cost


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    _wait_for(device)
    started = time.perf_counter()
    call()
    _wait_for(device)
    return time.perf_counter() - started


def _peak_bytes(call: Callable[[], Any], device: torch.device) -> int | None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    _return_free_memory()
    if not _restart_peak():
        return None
    before = _resident("VmRSS")
    call()
    return max(0, _resident("VmHWM") - before)


def _restart_peak() -> bool:
    """Lets the peak of resident memory begin again from what is in use now, where the system can do that."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def _return_free_memory() -> None:
    """Gives memory that was freed back to the system, so that using it again counts."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", _STATUS.read_text(), flags=re.MULTILINE)
    if found is None:
        raise OSError(f"{_STATUS} has no {field}.")
    return 1024 * int(found[1])


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
