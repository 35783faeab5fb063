"""What a report can be about: a run, which knows its data, or a detector around a network from elsewhere."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ddu.data import ArrayDataset
from ddu.data.registry import Root
from ddu.detectors import BaseDetector
from ddu.errors import InputError, NotSupportedError
from ddu.experiments.judging import run_facts
from ddu.experiments.trained import load_ood
from ddu.results import source as provenance
from ddu.runs import Run
from ddu.sources import DetectorSource, Source


class ReportedData(NamedTuple):
    """The sets of a report: what is judged, and what the doctor looks at."""

    test: ArrayDataset
    held_out: ArrayDataset
    train: ArrayDataset | None = None


class Reported(ABC):
    """A calibrated detector, and what is known of how it was made.

    Attributes:
        folder: Where it is.
        label: Of its network.
        data: The name of the data that it is tested on.
        method: The name of the detector.
        is_new: Whether the test inputs are known to be new: neither trained nor calibrated on.
        history: Of the training, epoch by epoch; empty where it is not known.
        detector: The detector.
    """

    folder: Path
    label: str
    data: str
    method: str
    is_new: bool
    history: Sequence[Mapping[str, float]]
    detector: BaseDetector

    @abstractmethod
    def load_data(self, root: Root) -> ReportedData:
        """What is judged, and what the doctor looks at."""

    def load_ood(self, names: Iterable[str], root: Root, *, skip_bad: bool) -> dict[str, ArrayDataset]:
        """OoD sets by name, as the network is shown its own data."""
        return load_ood(names, self.data, root, skip_bad=skip_bad)

    @abstractmethod
    def facts(self, command: str) -> dict[str, Any]:
        """The columns of a row that say what it is of, and what it was measured with."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """How it was made, for people."""

    def thresholds(self) -> dict[str, Any]:
        """How the detector judges, for people."""
        return {
            "detector": repr(self.detector),
            "temperature": f"{self.detector.temperature:.4g}",
            "entropy threshold": f"{self.detector.entropy_threshold:.4g}",
            "epistemic threshold": f"{self.detector.epistemic_threshold:.4g}",
        }


class ReportedRun(Reported):
    """A run: it is tested on its own test set."""

    is_new = True

    def __init__(self, run: Run):
        self.run, self.folder, self.label, self.data = run, run.folder, run.spec.label, run.spec.data
        self.method = str(run.spec.method)

    @property
    def detector(self) -> BaseDetector:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As of the run; a run without one is refused."""
        return self.run.detector

    @property
    def history(self) -> Sequence[Mapping[str, float]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As of the run."""
        return self.run.history

    def load_data(self, root: Root) -> ReportedData:
        """The sets of the run, split as they were."""
        sets = self.run.load_data(root=root)
        return ReportedData(sets.test, sets.validation, sets.train)

    def facts(self, command: str) -> dict[str, Any]:
        """Those of the run."""
        return run_facts(self.run, command)

    def settings(self) -> dict[str, Any]:
        """The specification, the thresholds, the command, versions and commit."""
        run, origin = self.run, self.run.origin
        return {
            "folder": str(run.folder),
            **{name: value for name, value in run.spec.to_json().items() if name != "recipe"},
            "recipe": run.spec.to_json()["recipe"],
            "classes": run.info.num_classes,
            "input shape": " × ".join(map(str, run.info.shape)),
            "samples trained on or held out": f"{run.samples:,}",
            "smaller than the paper's": run.reductions,
            "weights of epoch": run.metrics["epoch"],
            "seconds of training": round(run.metrics["seconds"]),
            **self.thresholds(),
            "fingerprint": run.fingerprint,
            **origin | {"versions": _in_words(origin["versions"])},
        }


class ReportedSource(Reported):
    """A detector around a network from elsewhere, tested on data with labels that is named.

    Args:
        source: A detector that `ddu fit` wrote, or any network with the detector that was fitted to it.
        data: The name of the data: its test split, or all of it.
    """

    is_new, history = False, ()

    def __init__(self, source: Source, data: str):
        if not isinstance(source, DetectorSource):
            raise NotSupportedError(
                f"{source.name} is an exported graph, which has no logits to report on: name what it was exported from."
            )
        if source.calibration is None or source.entropy_threshold is None:
            raise InputError(
                f"The detector of {source.name} has no thresholds to report on: calibrate it on held-out data with "
                "labels."
            )
        self.source, self.data, self.detector = source, data, source.detector
        self.folder = source.folder or Path(source.name)
        self.label = str(source.description["network"])
        self.method = str(source.description.get("method") or type(source.detector).__name__)

    @cached_property
    def _made(self) -> dict[str, Any]:
        return {name: value for name, value in self.source.description.items() if name != "kind"}

    def load_data(self, root: Root) -> ReportedData:
        """The data, which stands in for what was held out; the training data is not known."""
        test = self.source.load_data(self.data, "test", root=root)
        return ReportedData(test, test)

    def load_ood(self, names: Iterable[str], root: Root, *, skip_bad: bool) -> dict[str, ArrayDataset]:
        """OoD sets by name, as the network is shown an image."""
        found = super().load_ood(names, root, skip_bad=skip_bad)
        return {name: one.shown_by(self.source.preprocessing) for name, one in found.items()}

    def facts(self, command: str) -> dict[str, Any]:
        """Those of the source."""
        seed, digits = self._made.get("seed", 0), self.source.fingerprint
        return {"network": self.label, "data": self.data, "seed": seed, "run": digits, **provenance(command)}

    def settings(self) -> dict[str, Any]:
        """What `ddu fit` recorded, and the thresholds."""
        made = self._made | {"versions": _in_words(self._made.get("versions"))}
        return {"folder": str(self.folder), "tested on": self.data} | made | self.thresholds()


def _in_words(versions: Mapping[str, str] | None) -> str:
    return ", ".join(f"{name} {version}" for name, version in (versions or {}).items())
