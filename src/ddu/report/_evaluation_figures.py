"""Figures of an evaluation, from saved scores, predictions and rows. Each function returns a figure.

Scores are uncertainties: larger means more uncertain, and out of distribution is the positive class.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ddu.errors import InputError
from ddu.extras import require
from ddu.metrics import (
    MeanAndStandardError,
    RiskCoverage,
    auroc,
    calibration_bins,
    expected_calibration_error,
    mean_and_standard_error,
    roc_curve,
)
from ddu.report._drawing import (
    COLOURS,
    draw_histograms,
    dress,
    empty_panel,
    legend_above,
    legend_beside,
    line_style,
    numbers,
)
from ddu.results import METRICS, Row, latest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Scores further out than this many times the span of the first set share the outermost bars
_TAIL = 2

# A curve of more points than this looks the same and takes longer to load
_POINTS = 400


def score_histogram(scores: Mapping[str, Tensor], label: str = "uncertainty") -> "Figure":
    """Scores of each set. The first is in distribution and sets the scale: what lies far out is cut, and counted.

    Args:
        scores: Name of each set, and the scores of its inputs, (input,). Infinite ones lie further out than all others.
        label: What the score is.
    """
    values = {name: numbers(name, score, infinite=True) for name, score in scores.items()}
    everything = np.concatenate(list(values.values()))
    seen = everything[np.isfinite(everything)]
    if not seen.size:
        seen = np.zeros(1)
    known = next(iter(values.values()))
    known = known[np.isfinite(known)] if np.isfinite(known).any() else seen
    reach = _TAIL * (known.max() - known.min() or 1.0)
    low, high = max(seen.min(), known.min() - reach), min(seen.max(), known.max() + reach)
    cut = int(((everything < low) | (everything > high)).sum())
    note = f"\n{cut:,} of {len(everything):,} further out, in the outermost bars" if cut else ""
    figure, axes = empty_panel(f"{label}{note}", "share of the set")
    draw_histograms(axes, values, float(low), float(high))
    legend_above(axes)
    return figure


def roc_figure(scores: Mapping[str, tuple[Tensor, Tensor]]) -> "Figure":
    """The ROC curve of each detector, with its AUROC.

    Args:
        scores: Name of each detector, and its scores of in-distribution and of out-of-distribution inputs, (input,).
    """
    figure, axes = empty_panel("in distribution, flagged", "out of distribution, flagged", percent_x=True)
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=(0, (2, 2)))
    for index, (name, (known, unknown)) in enumerate(scores.items()):
        false, true = (rate.numpy() for rate in roc_curve(known, unknown))
        shown = _thinned(false + true)
        axes.plot(false[shown], true[shown], label=f"{name}: {auroc(known, unknown):.3f}", **line_style(index))
    axes.set(xlim=(0, 1), ylim=(0, 1.01), aspect="equal")
    legend_beside(axes, "AUROC")
    return figure


def reliability_diagram(probs: Tensor, labels: Tensor, bins: int = 15, *, adaptive: bool = False) -> "Figure":
    """Accuracy against confidence in bins of confidence, and how many samples each bin has.

    A calibrated classifier's bars end on the diagonal. The calibration error is the mean gap, weighted by samples.

    Args:
        probs: Class probabilities, (sample, class).
        labels: True classes, (sample,).
        bins: The number of bins.
        adaptive: Bins of equally many samples instead of equal widths.
    """
    binned = calibration_bins(probs, labels, bins, adaptive=adaptive)
    error = expected_calibration_error(probs, labels, bins, adaptive=adaptive)
    edges, accuracy, confidence = binned.edges.numpy(), binned.accuracy.numpy(), binned.confidence.numpy()
    filled = binned.count.numpy() > 0
    figure_module = require("matplotlib.figure", extra="report", purpose="ddu.report.figures")
    figure = figure_module.Figure(figsize=(4.6, 4.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    widths = np.diff(edges)
    upper.bar(
        edges[:-1][filled], accuracy[filled], widths[filled], align="edge",
        facecolor=COLOURS[0], alpha=0.6, edgecolor="white", linewidth=0.5, label="accuracy",
    )  # fmt: skip
    upper.plot(confidence[filled], accuracy[filled], "o", color=COLOURS[1], markersize=4, label="at mean confidence")
    upper.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=(0, (2, 2)), label="calibrated")
    share = binned.count.numpy() / len(labels)
    lower.bar(
        edges[:-1], share, widths, align="edge", facecolor=COLOURS[0], alpha=0.6, edgecolor="white", linewidth=0.5
    )
    dress(upper, "", "accuracy", percent_x=True)
    dress(lower, "confidence", "samples", percent_x=True)
    upper.set(xlim=(0, 1), ylim=(0, 1))
    upper.text(0.03, 0.97, f"ECE {error:.2%}", transform=upper.transAxes, verticalalignment="top")
    legend_above(upper)
    return figure


def risk_coverage_figure(curves: Mapping[str, RiskCoverage]) -> "Figure":
    """How often each detector's answers are wrong, when it answers only its surest predictions.

    Args:
        curves: Name of each detector, and its curve.
    """
    figure, axes = empty_panel("predictions answered", "answers that are wrong", percent_x=True)
    for index, (name, curve) in enumerate(curves.items()):
        coverage, risk = curve.coverage.numpy(), curve.risk.numpy()
        shown = _thinned(coverage)
        axes.plot(coverage[shown], risk[shown], label=f"{name}: {curve.area:.4f}", **line_style(index))
    axes.set(xlim=(0, 1))
    axes.set_ylim(bottom=0)
    legend_beside(axes, "area below the curve")
    return figure


def corruption_figure(rows: Iterable[Row], metric: str = "auroc") -> "Figure":
    """A metric against the severity of corruption: mean over corruptions, ± standard error over seeds.

    Every detector is averaged over the same corruptions, those that all of them have at every severity and seed.

    Args:
        rows: Rows with a severity; other rows are passed over. `ood` names the corruption.
        metric: The metric to draw.
    """
    rows = [row for row in latest(rows) if row.severity is not None and row.metric in (metric, None)]
    measured = [row for row in rows if row.status == "ok"]
    if not measured:
        raise InputError(f"No row has the metric {metric!r} and a severity: there is nothing to draw.")
    corruptions = _common_corruptions(measured)
    curves = _curves([row for row in measured if row.ood in corruptions])
    seeds = max(point.count for points in curves.values() for point in points.values())
    errors = f", ± standard error over {seeds} seeds" if seeds > 1 else ""
    described = METRICS[metric]
    figure, axes = empty_panel(
        f"severity of corruption\nmean over {len(corruptions)} corruptions{errors}",
        described.label,
        percent_y=described.share,
    )
    one_network = len({network for _, network in curves}) == 1
    for index, ((detector, network), points) in enumerate(curves.items()):
        name = detector if one_network else f"{detector} on {network}"
        failed = sum(row.status == "failed" and (row.detector, row.network) == (detector, network) for row in rows)
        axes.errorbar(
            list(points),
            [point.mean for point in points.values()],
            yerr=[point.standard_error or 0.0 for point in points.values()] if seeds > 1 else None,
            label=f"{name} ({failed} failed)" if failed else name,
            capsize=2,
            **line_style(index),
        )
    axes.set_xticks(sorted({severity for points in curves.values() for severity in points}))
    legend_beside(axes)
    return figure


def _curves(rows: list[Row]) -> dict[tuple[str, str], dict[int, MeanAndStandardError]]:
    """For each detector and network: severity, and the mean over corruptions with its error over seeds."""
    values: dict[tuple[str, str], dict[int, dict[int, list[float]]]] = {}
    for row in rows:
        if row.severity is not None and row.value is not None:
            severities = values.setdefault((row.detector, row.network), {})
            severities.setdefault(row.severity, {}).setdefault(row.seed, []).append(row.value)
    return {
        curve: {
            severity: mean_and_standard_error(float(np.mean(of_seed)) for of_seed in by_seed.values())
            for severity, by_seed in sorted(severities.items())
        }
        for curve, severities in values.items()
    }


def _common_corruptions(rows: list[Row]) -> set[str | None]:
    found: dict[tuple[str, str, int, int | None], set[str | None]] = {}
    for row in rows:
        found.setdefault((row.detector, row.network, row.seed, row.severity), set()).add(row.ood)
    common = set.intersection(*found.values())
    if not common:
        raise InputError(
            f"None of the {len(set.union(*found.values()))} corruptions was measured for every detector, seed and "
            "severity: finish the comparison, or choose rows that belong together."
        )
    return common


def _thinned(position: np.ndarray) -> np.ndarray:
    """Indices of points that are evenly spread along a rising coordinate, the first and the last among them."""
    if len(position) <= _POINTS:
        return np.arange(len(position))
    wanted = np.linspace(position[0], position[-1], _POINTS)
    return np.unique(np.searchsorted(position, wanted).clip(max=len(position) - 1))
