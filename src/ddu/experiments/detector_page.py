"""The page of detectors: tables, with costs as ratios, and figures of a file of rows, beside it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from ddu.errors import InputError
from ddu.experiments.experiment import ROWS
from ddu.experiments.measure import SCORES
from ddu.experiments.scores import Scores, file_name, scores_folder, set_name
from ddu.files import FilePath, write_bytes
from ddu.metrics import RiskCoverage, risk_coverage
from ddu.report import as_png, corruption_figure, reliability_diagram, risk_coverage_figure, roc_figure, score_histogram
from ddu.results import METRICS, Row, RowFile, RowKey, Table, latest, tabulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = "figures"


def folder_of(rows: Path) -> Path:
    """Where what belongs to a file of rows is kept: beside `rows.csv`, and in the folder `NAME` beside `NAME.csv`."""
    return rows.parent if rows.stem == Path(ROWS).stem else rows.with_suffix("")


def write_report(file: FilePath, rows: Iterable[Row] | None = None) -> list[Path]:
    """Writes tables and, where matplotlib is installed, figures beside `rows.csv`, or to the folder `NAME` of NAME.csv.

    Score histograms, ROC and risk-coverage curves and reliability diagrams are made from the saved scores of each
    detector's first seed. Where there are several corrupted sets, one figure of the AUROC against severity, over all
    seeds, stands for them.

    Args:
        file: The rows of a `Comparison` or an `Evaluation`.
        rows: Those of them to report; by default all.

    Returns:
        What was written.
    """
    file = Path(file)
    folder = folder_of(file)
    rows = latest(RowFile(file).read() if rows is None else rows)
    tables = {"table.md": to_markdown, "table.csv": to_csv, "table.tex": to_latex}
    contents = {folder / name: make(rows).encode() for name, make in tables.items()}
    if find_spec("matplotlib") is not None:
        for data in dict.fromkeys(row.data for row in rows):
            of_data = [row for row in rows if row.data == data]
            several = f" {set_name(data)}" if len(of_data) < len(rows) else ""
            for name, figure in _figures(of_data, folder / SCORES):
                contents[folder / FIGURES / f"{file_name(name + several)}.png"] = as_png(figure)
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
    return list(contents)


def _figures(rows: Sequence[Row], folder: Path) -> Iterator[tuple[str, "Figure"]]:
    """Figures of one training set, and what to call them."""
    scores = _first_scores(rows, folder)
    corrupted = {(row.ood, row.severity) for row in rows if row.severity is not None}
    by_severity = _by_severity(rows) if len(corrupted) > 1 else None
    if by_severity is not None:
        yield "auroc by severity", by_severity
    # Curves for each corruption and severity would be hundreds
    ood = dict.fromkeys(_name(row) for row in rows if row.ood and (row.severity is None or len(corrupted) == 1))
    if scores:
        yield from _figures_of_scores(scores, rows[0].data, list(ood))


def _figures_of_scores(scores: Mapping[str, Scores], known: str, ood: Sequence[str]) -> Iterator[tuple[str, "Figure"]]:
    curves = {name: refusal_curve(said) for name, said in scores.items()}
    yield f"risk-coverage {set_name(known)}", risk_coverage_figure(curves)
    for one in ood:
        asked = {name: said for name, said in scores.items() if one in said.ood}
        if asked:
            pairs = {name: (said.test.epistemic, said.ood[one].epistemic) for name, said in asked.items()}
            yield f"roc {set_name(one)}", roc_figure(pairs)
            curves = {name: refusal_curve(said, one) for name, said in asked.items()}
            yield f"risk-coverage {set_name(one)}", risk_coverage_figure(curves)
    drawn: list[Scores] = []
    for name, said in scores.items():
        sets = {known: said.test, **{one: said.ood[one] for one in ood if one in said.ood}}
        yield f"scores {name}", score_histogram({set_name(one): judged.epistemic for one, judged in sets.items()}, name)
        # Detectors around one network share its probabilities
        if not any(torch.equal(said.logits, other.logits) for other in drawn):
            drawn.append(said)
            yield f"reliability {name}", reliability_diagram(said.probs, said.labels)


def _by_severity(rows: Sequence[Row]) -> "Figure | None":
    try:
        return corruption_figure(rows)
    except InputError:  # no corruption that all detectors have at every severity, so there is no mean to draw
        return None


def _first_scores(rows: Iterable[Row], folder: Path) -> dict[str, Scores]:
    """The scores of each detector, with the network in its name where it stands on several."""
    found: dict[tuple[str, str], Scores] = {}
    for row in rows:
        if (row.detector, row.network) not in found:
            scores = Scores.load(scores_folder(folder, row))
            if scores is not None:
                found[row.detector, row.network] = scores
    names = [detector for detector, _ in found]
    return {
        detector if names.count(detector) == 1 else f"{detector} on {network}": scores
        for (detector, network), scores in found.items()
    }


def _name(row: Row) -> str:
    """The OoD set of a row, as `ddu.data` calls it."""
    return f"{row.ood}" if row.severity is None else f"{row.ood}:{row.severity}"


def refusal_curve(scores: Scores, ood: str | None = None) -> RiskCoverage:
    """Risk and coverage on the test set, mixed with an OoD set if one is named."""
    return risk_coverage(*scores.refusal(ood))


# What is told of a comparison at a glance
SUMMARY = ("accuracy", "ece", "auroc", "fpr95", "false_alarm_rate", "training_ratio", "inference_ratio")

_SECTIONS: dict[str, Sequence[str]] = {
    "Out of distribution": ("auroc", "aupr_out", "aupr_in", "fpr95", "detection_rate"),
    "In distribution": (
        *("accuracy", "nll", "nll_uncalibrated", "brier", "brier_uncalibrated"),
        *("ece", "ece_uncalibrated", "ece_adaptive", "false_alarm_rate"),
    ),
    "Refusing": ("aurc", "accuracy_at_80", "accuracy_at_90", "accuracy_at_95"),
    "Cost": (
        *("training_seconds", "training_ratio", "seconds_per_thousand", "inference_ratio"),
        "megabytes_per_thousand",
    ),
}
_REFUSING = (
    "Predictions are refused that are called out of distribution, the most unknown first, and then the most ambiguous. "
    "With an OoD set named, its inputs are mixed with the test set, and no prediction for them is right."
)
_RATIOS = {"training_seconds": "training_ratio", "seconds_per_thousand": "inference_ratio"}


def summarise(rows: Iterable[Row], metrics: Sequence[str] = SUMMARY) -> list[Table]:
    """One table for each training set, of those of the metrics that were measured.

    Several corruptions of the data have one column per severity: their mean.
    """
    return _tables(average_corruptions(latest(rows)), metrics)


def to_markdown(rows: Iterable[Row]) -> str:
    """Everything that was measured, a table for each kind of question."""
    parts = []
    for title, remark, tables in _sections(rows):
        parts += [f"## {title}", *([remark] if remark else []), *(table.to_markdown() for table in tables)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def to_latex(rows: Iterable[Row]) -> str:
    """The tables of `to_markdown` as `tabular`s for the package `booktabs`."""
    parts = []
    for title, remark, tables in _sections(rows):
        words = "\n".join(f"% {line}" for line in (title, remark) if line)
        parts += [words, *(table.to_latex() for table in tables)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def to_csv(rows: Iterable[Row]) -> str:
    """Every metric of every set, each corruption at each severity among them, one line each."""
    tables = [table.to_csv().splitlines(keepends=True) for table in _tables(latest(rows), [*METRICS])]
    return "".join([*tables[0][:1], *(line for table in tables for line in table[1:])]) if tables else ""


def _sections(rows: Iterable[Row]) -> list[tuple[str, str, list[Table]]]:
    """Title, remark and tables of each kind of question."""
    rows = list(rows)
    remarks = {"Refusing": _REFUSING, "Cost": _cost_remark(rows)}
    return [(title, remarks.get(title, ""), summarise(rows, metrics)) for title, metrics in _SECTIONS.items()]


def _tables(rows: Sequence[Row], metrics: Sequence[str]) -> list[Table]:
    rows = _with_ratios(rows)
    measured = {row.metric for row in rows}
    return tabulate(rows, [metric for metric in metrics if metric in measured])


def average_corruptions(rows: Iterable[Row]) -> list[Row]:
    """Rows of several corruptions as rows of their mean at each severity; other rows stay as they are.

    A mean is that of all corruptions. Where one of them failed, there is none, and the failures stay.
    """
    rows = list(rows)
    corruptions = dict[tuple[str, int | None], set[str | None]]()
    for row in rows:
        if row.severity is not None:
            corruptions.setdefault((row.data, row.severity), set()).add(row.ood)
    found, values = dict[RowKey, Row](), dict[RowKey, list[float]]()
    for row in rows:
        count = len(corruptions.get((row.data, row.severity), ()))
        mean = replace(row, ood=f"{count} corruptions")
        if count < 2:
            found[row.key] = row
        elif row.value is None:
            earlier = [found[mean.key].error] if mean.key in found else []
            found[mean.key] = replace(mean, error="; ".join([*map(str, earlier), f"{row.ood}: {row.error}"]))
        else:
            values.setdefault(mean.key, []).append(row.value)
            if len(values[mean.key]) == count:
                found[mean.key] = replace(mean, value=fmean(values[mean.key]))
    return list(found.values())


def cost_ratios(rows: Iterable[Row]) -> list[Row]:
    """Seconds of training and of inference, divided by those of the reference with the same data and seed."""
    rows = [row for row in rows if row.metric in _RATIOS and row.value is not None]
    references = _references(rows)
    unit = {
        (row.metric, row.data, row.seed): row.value
        for row in rows
        if (row.detector, row.network) == references[row.data]
    }
    return [
        replace(row, metric=_RATIOS[row.metric or ""], value=row.value / one)
        for row in rows
        if row.value is not None and (one := unit.get((row.metric, row.data, row.seed)))
    ]


def _with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Each ratio right after what it was worked out from: at the end it would make later failures good."""
    ratios = {row.key: row for row in cost_ratios(rows)}
    found: list[Row] = []
    for row in rows:
        ratio = ratios.get(replace(row.key, metric=_RATIOS.get(row.metric or "")))
        found += [row] if ratio is None else [row, ratio]
    return found


def _references(rows: Iterable[Row]) -> dict[str, tuple[str, str]]:
    """Whose costs are 1 on each training set: the softmax or, where it was not measured, what comes first."""
    measured: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        measured.setdefault(row.data, []).append((row.detector, row.network))
    return {data: next((one for one in ones if one[0] == "softmax"), ones[0]) for data, ones in measured.items()}


def _cost_remark(rows: Iterable[Row]) -> str:
    references = _references(row for row in rows if row.metric in _RATIOS)
    where = {data: f", trained on {data}" for data in references} if len(references) > 1 else {}
    costs = [f"{detector} on {network}{where.get(data, '')}" for data, (detector, network) in references.items()]
    one = f" A ratio of 1 is the cost of {'; of '.join(costs)}." if costs else ""
    return (
        f"Training is that of all networks, the fit and the calibration together; inference includes the network.{one}"
    )
