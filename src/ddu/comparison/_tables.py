"""Rows of a comparison as tables, with costs as ratios."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddu.evaluation import Row, Table, latest, tabulate

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
    """One table for each training set, of those of the metrics that were measured."""
    rows = _with_ratios(latest(rows))
    measured = {row.metric for row in rows}
    return tabulate(rows, [metric for metric in metrics if metric in measured])


def to_markdown(rows: Iterable[Row]) -> str:
    """Everything that was measured, a table for each kind of question."""
    rows = list(rows)
    remarks = {"Refusing": _REFUSING, "Cost": _cost_remark(rows)}
    parts = []
    for title, metrics in _SECTIONS.items():
        tables = [table.to_markdown() for table in summarise(rows, metrics)]
        parts += [f"## {title}", *([remarks[title]] if title in remarks else []), *tables]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def cost_ratios(rows: Iterable[Row]) -> list[Row]:
    """Seconds of training and of inference, divided by those of the reference with the same seed."""
    rows = [row for row in rows if row.metric in _RATIOS and row.value is not None]
    reference = _reference(rows)
    unit = {(row.metric, row.seed): row.value for row in rows if (row.detector, row.network) == reference}
    return [
        replace(row, metric=_RATIOS[row.metric or ""], value=row.value / one)
        for row in rows
        if row.value is not None and (one := unit.get((row.metric, row.seed)))
    ]


def _with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Each ratio right after what it was worked out from: at the end it would make later failures good."""
    ratios = {row.key: row for row in cost_ratios(rows)}
    found: list[Row] = []
    for row in rows:
        ratio = ratios.get(row.key._replace(metric=_RATIOS.get(row.metric or "")))
        found += [row] if ratio is None else [row, ratio]
    return found


def _reference(rows: Iterable[Row]) -> tuple[str, str] | None:
    """Whose costs are 1: the softmax or, where it was not measured, the detector that comes first."""
    measured = [(row.detector, row.network) for row in rows]
    return next((one for one in measured if one[0] == "softmax"), next(iter(measured), None))


def _cost_remark(rows: Iterable[Row]) -> str:
    reference = _reference(row for row in rows if row.metric in _RATIOS)
    one = f" A ratio of 1 is the cost of {reference[0]} on {reference[1]}." if reference else ""
    return (
        f"Training is that of all networks, the fit and the calibration together; inference includes the network.{one}"
    )
