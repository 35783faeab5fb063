"""The report of one detector, or of several side by side, as one page.

    ddu report runs/a runs/b --ood fashion_mnist
    ddu report my_models:make --detector detector --data folder:photos --ood noise

Nothing is trained or fitted: each detector is shown its test set and the OoD sets.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddu.data.registry import Root
from ddu.diagnostics import Finding, diagnose
from ddu.errors import InputError
from ddu.experiments.detector_page import refusal_curve
from ddu.experiments.experiment import Say, silent
from ddu.experiments.judging import JudgedSet, judge_set, uncertainty_histograms
from ddu.experiments.reported import Reported, ReportedRun, ReportedSource
from ddu.experiments.scores import Judged, Scores, set_name
from ddu.experiments.trained import expand, split_severity
from ddu.files import FilePath, write_bytes
from ddu.messages import require
from ddu.report import (
    inline_svg,
    reliability_diagram,
    render_page,
    risk_coverage_figure,
    roc_figure,
    training_figure,
)
from ddu.results import Row, Table, tabulate
from ddu.runs import Run
from ddu.types import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More lines in one histogram cannot be told apart
_MOST_SETS = 6

_TABLES: dict[str, Sequence[str]] = {
    "Out of distribution": ("auroc", "aupr_out", "fpr95", "detection_rate"),
    "In distribution": ("accuracy", "nll", "brier", "ece", "ece_uncalibrated", "temperature", "false_alarm_rate"),
    "Refusing the most uncertain": ("aurc", "accuracy_at_80", "accuracy_at_95"),
}


@dataclass(frozen=True)
class Subject:
    """A detector of the report, and what it made of every set.

    Attributes:
        name: What the page calls it.
        about: The run, or the source.
        test: The test set.
        ood: The OoD sets, by name.
        findings: What the doctor found.
    """

    name: str
    about: Reported
    test: JudgedSet
    ood: Mapping[str, JudgedSet]
    findings: Sequence[Finding] = ()

    @cached_property
    def scores(self) -> Scores:
        """What metrics and curves are made from."""
        detector, test = self.about.detector, self.test
        assert detector.epistemic_threshold is not None
        ood = {name: _uncertainties(one) for name, one in self.ood.items()}
        threshold = detector.epistemic_threshold
        return Scores(test.logits, test.labels, detector.temperature, threshold, _uncertainties(test), ood)

    @property
    def sets(self) -> list[tuple[str, int, dict[str, float], Verdict | None]]:
        """Of each set its name, its size, the share of each verdict, and the verdict that is hoped for."""
        known = ("of the test set", len(self.test), self.test.verdict_shares, None)
        unknown = [
            (f"of {set_name(name)}", len(one), one.verdict_shares, Verdict.OUT_OF_DISTRIBUTION)
            for name, one in self.ood.items()
        ]
        return [known, *unknown]

    def rows(self, command: str) -> list[Row]:
        """The numbers, under the name of the subject."""
        facts: dict[str, Any] = self.about.facts(command) | {"detector": self.about.method, "network": self.name}
        found = {None: self.scores.in_distribution_metrics()}
        found |= {name: self.scores.ood_metrics(name) for name in self.ood}
        return [
            Row(**facts, ood=ood, severity=severity, metric=metric, value=value)
            for name, values in found.items()
            for ood, severity in [split_severity(name)]
            for metric, value in values.items()
        ]


@dataclass(frozen=True)
class RunReport:
    """The specification of a report.

    Attributes:
        runs: The runs, or detectors around networks from elsewhere, one or several.
        ood: The out-of-distribution sets by name; none leaves out what is said of them.
        samples: Inputs in each gallery.
        skip_bad: Leave out images of the OoD sets that cannot be read.
    """

    runs: tuple[Run | ReportedSource, ...]
    ood: tuple[str, ...] = ()
    samples: int = 8
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if not self.runs:
            raise InputError("A report needs at least one source: name the folder of one.")
        folders = [run.folder.resolve() for run in self.runs]
        for run, folder in zip(self.runs, folders, strict=True):
            if folders.count(folder) > 1:
                raise InputError(f"{run.folder} is named twice: name each folder once.")
        count = len(expand(self.ood))
        if count > _MOST_SETS:
            raise InputError(
                f"A page shows at most {_MOST_SETS} OoD sets. Got {count}: `ddu evaluate` takes any number."
            )

    def measure(self, *, data_root: Root = None, say: Say = silent) -> list[Subject]:
        """Shows the sets to the detector of each run.

        Args:
            data_root: Where the data is; see `ddu.data.load`.
            say: Is told what is being done.
        """
        for module in ("matplotlib", "jinja2", "PIL"):
            require(module, extra="report", purpose="ddu report")
        reported, subjects = self._about, list[Subject]()
        detectors = [one.detector for one in reported]  # a run without one is refused before others are looked at
        for about, detector, name in zip(reported, detectors, self.names, strict=True):
            say(f"Read the data of {name}: {', '.join([about.data, *self.ood])}")
            sets = about.load_data(data_root)
            unknown = about.load_ood(expand(self.ood), data_root, skip_bad=self.skip_bad)
            judged = dict[str, JudgedSet]()
            for words, inputs in {"the test set": sets.test, **unknown}.items():
                say(f"Judge {words}: {len(inputs):,} inputs")
                judged[words] = judge_set(detector, inputs, f"judging {words}")
            test = judged.pop("the test set")
            say("Look at the feature space, as `ddu doctor` does")
            findings = diagnose(detector, sets.held_out, train=sets.train).findings
            subjects.append(Subject(name, about, test, judged, findings))
        return subjects

    def write_page(self, subjects: Sequence[Subject], output: FilePath, *, command: str = "") -> Path:
        """Writes the page of what `measure` gave; nothing is measured."""
        output = Path(output)
        rows = [row for subject in subjects for row in subject.rows(command)]
        page = render_page(
            Path(__file__).with_name("run_report.html"),
            subjects=subjects,
            ood=expand(self.ood),
            samples=self.samples,
            rows=rows,
            tables=_tables(rows),
            figures={title: _svgs(figures) for title, figures in _figures(subjects)},
            histograms={one.name: _svgs(_histograms(one, several=len(subjects) > 1)) for one in subjects},
            settings=_settings(subjects),
            command=command,
        )
        output.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(output, page.encode())
        return output

    @property
    def _about(self) -> list[Reported]:
        return [ReportedRun(one) if isinstance(one, Run) else one for one in self.runs]

    @property
    def names(self) -> list[str]:
        """What the page calls them: one is called by its network, several by as much of their path as differs."""
        if len(self.runs) == 1:
            return [self._about[0].label]
        parts = [run.folder.resolve().parts for run in self.runs]
        length = next(n for n in range(1, 1 + max(map(len, parts))) if len({one[-n:] for one in parts}) == len(parts))
        return ["/".join(one[-length:]) for one in parts]


def _uncertainties(judged: JudgedSet) -> Judged:
    return Judged(judged.prediction.epistemic, judged.prediction.aleatoric)


def _tables(rows: Sequence[Row]) -> dict[str, list[Table]]:
    """The tables of each kind of question that was asked."""
    measured = {row.metric for row in rows}
    return {
        title: tabulate(rows, metrics)
        for title, metrics in {title: [m for m in all_of if m in measured] for title, all_of in _TABLES.items()}.items()
        if metrics
    }


def _svgs(figures: "Iterator[tuple[Figure, str]]") -> list[tuple[str, str]]:
    """Figures for the page, and their captions, which describe them to those who cannot see them."""
    return [(inline_svg(figure, words), words) for figure, words in figures]


def _histograms(subject: Subject, *, several: bool) -> "Iterator[tuple[Figure, str]]":
    """Both uncertainties of the test set, the held-out inputs of the calibration, and the OoD sets."""
    calibration, test = subject.about.detector.calibration, subject.test
    assert calibration is not None
    held_out, ood = calibration.held_out, {set_name(name): one.prediction for name, one in subject.ood.items()}
    assert held_out.entropy is not None
    entropies = {"test set": test.prediction.aleatoric, "held out": held_out.entropy}
    epistemic = {"test set": test.prediction.epistemic, "held out": held_out.epistemic}
    entropies |= {name: one.aleatoric for name, one in ood.items()}
    epistemic |= {name: one.epistemic for name, one in ood.items()}
    of = f"{subject.name}: " if several else ""
    for figure, words in uncertainty_histograms(entropies, epistemic, subject.about.detector, test.logits.shape[1]):
        yield figure, f"{of}{words}"


def _figures(subjects: Sequence[Subject]) -> "Iterator[tuple[str, Iterator[tuple[Figure, str]]]]":
    """Section by section; where there are several runs, a figure compares them."""
    if any(subject.ood for subject in subjects):
        yield "roc", _roc(subjects)
    yield "refusing", _refusing(subjects)
    yield "reliability", _reliability(subjects)
    if any(subject.about.history for subject in subjects):
        yield "training", _training(subjects)


def _roc(subjects: Sequence[Subject]) -> "Iterator[tuple[Figure, str]]":
    if len(subjects) == 1:
        test, ood = subjects[0].scores.test, subjects[0].scores.ood
        pairs = {set_name(name): (test.epistemic, one.epistemic) for name, one in ood.items()}
        yield roc_figure(pairs), "ROC curves of the epistemic score, of each OoD set against the test set."
        return
    for name in subjects[0].ood:
        pairs = {one.name: (one.scores.test.epistemic, one.scores.ood[name].epistemic) for one in subjects}
        yield (
            roc_figure(pairs),
            f"ROC curves of the epistemic score of each run, {set_name(name)} against its test set.",
        )


def _refusing(subjects: Sequence[Subject]) -> "Iterator[tuple[Figure, str]]":
    if len(subjects) == 1:
        scores = subjects[0].scores
        curves = {"test set": refusal_curve(scores)}
        curves |= {f"with {set_name(name)}": refusal_curve(scores, name) for name in scores.ood}
        yield risk_coverage_figure(curves), "Risk and coverage: of the test set, and mixed with each OoD set."
        return
    for name in (None, *subjects[0].ood):
        curves = {one.name: refusal_curve(one.scores, name) for one in subjects}
        mixed = "" if name is None else f" mixed with {set_name(name)}"
        yield risk_coverage_figure(curves), f"Risk and coverage of each run, on its test set{mixed}."


def _reliability(subjects: Sequence[Subject]) -> "Iterator[tuple[Figure, str]]":
    for one in subjects:
        of = f"{one.name}: " if len(subjects) > 1 else ""
        figure = reliability_diagram(one.scores.probs, one.scores.labels)
        yield figure, f"{of}Reliability diagram of the test set, after temperature scaling."


_PARTS = {"train": "training", "val": "held out"}


def _training(subjects: Sequence[Subject]) -> "Iterator[tuple[Figure, str]]":
    """Loss and accuracy by epoch; of several runs what was held out, or trained on where nothing was."""
    for quantity in ("loss", "accuracy"):
        curves = dict[str, list[float]]()
        for one in subjects:
            history = one.about.history
            found = [part for part in _PARTS if history and f"{part}_{quantity}" in history[0]]
            for part in found if len(subjects) == 1 else found[-1:]:
                name = _PARTS[part] if len(subjects) == 1 else f"{one.name}, {_PARTS[part]}"
                curves[name] = [row[f"{part}_{quantity}"] for row in history]
        if curves:
            figure = training_figure(curves, quantity, share=quantity == "accuracy")
            ends = ", ".join(f"{name} {values[-1]:.3g}" for name, values in curves.items())
            yield figure, f"The {quantity} after each epoch. At the end: {ends}."


def _settings(subjects: Sequence[Subject]) -> list[tuple[str, list[str], bool]]:
    """Name and values of every setting, one value for each subject, and whether they differ."""
    found = [_flat(subject.about.settings()) for subject in subjects]
    names = dict.fromkeys(name for one in found for name in one)
    values = [(name, [one.get(name, "–") for one in found]) for name in names]
    return [(name, ones, len(set(ones)) > 1) for name, ones in values]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings in settings by their path, all as words; those that are not set are left out.

    >>> _flat({"model": "lenet", "recipe": {"epochs": 3, "warmup": None}})
    {'model': 'lenet', 'recipe.epochs': '3'}
    """
    found = dict[str, str]()
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif value not in (None, "", []):
            found[f"{prefix}{name}"] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return found
