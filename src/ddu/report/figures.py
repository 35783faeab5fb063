"""Figures of scores, predictions and rows. Each function returns a figure.

Scores are uncertainties: larger means more uncertain, and out of distribution is the positive class.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ddu.errors import InputError
from ddu.messages import require
from ddu.metrics import (
    MeanAndStandardError,
    RiskCoverage,
    auroc,
    calibration_bins,
    expected_calibration_error,
    mean_and_standard_error,
    roc_curve,
)
from ddu.results import METRICS, Row, latest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Scores further above the threshold than this many times the span below it share the last bar
_TAIL = 3


def entropy_histogram(entropies: Mapping[str, Tensor], threshold: float, num_classes: int) -> "Figure":
    """Softmax entropy of each set, with the threshold above which an input is ambiguous.

    Args:
        entropies: Name of each set, and the entropies of its inputs in nats, (input,).
        threshold: Where ambiguity begins.
        num_classes: Its logarithm is the largest entropy there is.
    """
    values = {name: numbers(name, entropy) for name, entropy in entropies.items()}
    figure, axes = empty_panel("softmax entropy in nats", "share of the set")
    draw_histograms(axes, values, 0.0, math.log(num_classes))
    _mark(axes, threshold, f"ambiguous above {threshold:.2f}")
    return figure


def epistemic_histogram(epistemic: Mapping[str, Tensor], threshold: float) -> "Figure":
    """Epistemic score of each set, with the threshold above which an input is out of distribution.

    The far tail of unknown inputs would squeeze everything else into one bar, so it is cut; what is cut is counted in
    the last bar, and the axis says so.

    Args:
        epistemic: Name of each set, and the scores of its inputs, (input,).
        threshold: Where the known ends.
    """
    values = {name: numbers(name, score) for name, score in epistemic.items()}
    everything = np.concatenate(list(values.values()))
    low = min(float(everything.min()), threshold)
    high = _rounded(threshold + _TAIL * (threshold - low))
    cut = int((everything > high).sum())
    high = high if cut else max(float(everything.max()), threshold)
    note = f"\n{cut:,} of {len(everything):,} inputs are above {_words(high)},\nall in the last bar" if cut else ""
    figure, axes = empty_panel(f"epistemic score{note}", "share of the set")
    draw_histograms(axes, values, low, high)
    _mark(axes, threshold, f"out of distribution above {_words(threshold)}")
    return figure


def _mark(axes: "Axes", threshold: float, words: str) -> None:
    axes.axvline(threshold, color="black", linewidth=1, linestyle=(0, (2, 2)))
    axes.annotate(
        f"{words} →",
        xy=(threshold, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -2),
        textcoords="offset points",
        horizontalalignment="left",
        verticalalignment="top",
        fontsize=9,
    )
    legend_above(axes)


def _words(value: float) -> str:
    """A score in a sentence: whole numbers where they are large."""
    return (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}").replace("-", "−")


def _rounded(value: float) -> float:
    """`value` to two significant digits."""
    return float(f"{value:.2g}")


# Scores further out than this many times the span of the first set share the outermost bars
_SCORE_TAIL = 2

# A curve of more points than this looks the same and takes longer to load
_POINTS = 400

# A curve of at most so many epochs has a dot for each: of one epoch there is no line
_MARKED_EPOCHS = 30


def score_histogram(scores: Mapping[str, Tensor], label: str = "uncertainty") -> "Figure":
    """Scores of each set. The first is in distribution and sets the scale: what lies far out is cut, and counted.

    Args:
        scores: Name of each set, and the scores of its inputs, (input,). Infinite ones lie further out than all others.
        label: What the score is.
    """
    values = {name: numbers(name, score, infinite=True) for name, score in scores.items()}
    low, high = score_range(values)
    everything = np.concatenate(list(values.values()))
    cut = int(((everything < low) | (everything > high)).sum())
    note = f"\n{cut:,} of {len(everything):,} further out, in the outermost bars" if cut else ""
    figure, axes = empty_panel(f"{label}{note}", "share of the set")
    draw_histograms(axes, values, low, high)
    legend_above(axes)
    return figure


def score_range(values: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """What a histogram of scores shows: all of the first set, and of the others what does not lie too far out."""
    everything = np.concatenate(list(values.values()))
    seen = everything[np.isfinite(everything)]
    if not seen.size:
        seen = np.zeros(1)
    known = next(iter(values.values()))
    known = known[np.isfinite(known)] if np.isfinite(known).any() else seen
    reach = _SCORE_TAIL * (known.max() - known.min() or 1.0)
    return float(max(seen.min(), known.min() - reach)), float(min(seen.max(), known.max() + reach))


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
    legend_below(axes, "AUROC")
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
    legend_below(axes, "area below the curve")
    return figure


def training_figure(curves: Mapping[str, Sequence[float]], quantity: str, *, share: bool = False) -> "Figure":
    """A quantity after each epoch of a training, from the first on.

    Args:
        curves: Name of each curve, and its values; NaN where there is none.
        quantity: What it is.
        share: Whether it is written in per cent.
    """
    ticker = require("matplotlib.ticker", extra="report", purpose="ddu.report.figures")
    figure, axes = empty_panel("epoch", quantity, percent_y=share)
    for index, (name, values) in enumerate(curves.items()):
        marker = "o" if len(values) <= _MARKED_EPOCHS else None
        axes.plot(range(1, len(values) + 1), values, label=name, marker=marker, markersize=3, **line_style(index))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True, min_n_ticks=1))
    legend_above(axes)
    return figure


def promise_figure(promise: str, promised: Sequence[float], shares: Mapping[str, Sequence[float]]) -> "Figure":
    """What came of a promise, and what it costs, against what was promised; on the dotted diagonal it is kept exactly.

    Args:
        promise: What is promised, for the axis.
        promised: The rates.
        shares: Name and values of each line, one for each rate.
    """
    figure, axes = empty_panel(promise, "share of test inputs", percent_x=True)
    axes.plot(promised, promised, color="black", linewidth=0.8, linestyle=(0, (2, 2)))
    for index, (name, values) in enumerate(shares.items()):
        axes.plot(promised, values, label=name, marker="o", markersize=3, **line_style(index))
    axes.set_ylim(bottom=0)
    legend_above(axes)
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
    legend_below(axes)
    return figure


def corruption_panels(rows: Iterable[Row], metric: str = "auroc", columns: int = 5) -> "Figure":
    """A metric against severity for each corruption, a panel each: the mean over seeds.

    Args:
        rows: As for `corruption_figure`.
        metric: The metric to draw.
        columns: Panels side by side.
    """
    measured = [row for row in latest(rows) if row.severity is not None and row.metric == metric and row.ood]
    if not measured:
        raise InputError(f"No row has the metric {metric!r} and a severity: there is nothing to draw.")
    corruptions = list(dict.fromkeys(row.ood for row in measured if row.ood))
    lines = list(_curves(measured))
    names = [one[0] if len({network for _, network in lines}) == 1 else f"{one[0]} on {one[1]}" for one in lines]
    figure_module = require("matplotlib.figure", extra="report", purpose="ddu.report.figures")
    columns = min(columns, len(corruptions))
    width, height = 2.3 * columns, -(-len(corruptions) // columns)
    # So many names as fit side by side
    abreast = max(1, int(width / (0.09 * max(map(len, names)) + 0.6)))
    legend = 0.2 * -(-len(names) // abreast)
    figure = figure_module.Figure(figsize=(width, 1.9 * height + 0.4 + legend), layout="constrained")
    panels = figure.subplots(height, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, corruption in zip(panels, corruptions, strict=False):
        curves = _curves([row for row in measured if row.ood == corruption])
        dress(axes, "", "", percent_y=METRICS[metric].share)
        for index, line in enumerate(lines):
            points = curves.get(line, {})
            axes.plot(list(points), [point.mean for point in points.values()], label=names[index], **line_style(index))
        axes.set_title(corruption.rpartition(":")[2].replace("_", " "), fontsize=9)
        axes.set_xticks(sorted({row.severity for row in measured if row.severity is not None}))
    for axes in panels[len(corruptions) :]:
        axes.set_axis_off()
    for axes in panels[: len(corruptions)][-columns:]:
        axes.tick_params(labelbottom=True)
    figure.supxlabel("severity of corruption", fontsize=9)
    figure.supylabel(METRICS[metric].label, fontsize=9)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=abreast, frameon=False, fontsize=9
    )
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


# Readable on white and on black, and told apart without colour by their lines
COLOURS = ("#2f7fc1", "#d99000", "#c0447f", "#3f9b6b", "#7f7f7f", "#7a5bc0")
_DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
_BINS = 36


def as_png(figure: "Figure") -> bytes:
    """The content of a PNG file with a figure."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return image.getvalue()


def empty_panel(x: str, y: str, *, percent_x: bool = False, percent_y: bool = True) -> "tuple[Figure, Axes]":
    """A figure with one panel, its axes named."""
    figure_module = require("matplotlib.figure", extra="report", purpose="ddu.report.figures")
    figure = figure_module.Figure(figsize=(4.6, 3.5), layout="constrained")
    axes = figure.add_subplot()
    dress(axes, x, y, percent_x=percent_x, percent_y=percent_y)
    return figure, axes


def dress(axes: "Axes", x: str, y: str, *, percent_x: bool = False, percent_y: bool = True) -> None:
    """Names the axes and writes their numbers, shares in per cent."""
    ticker = require("matplotlib.ticker", extra="report", purpose="ddu.report.figures")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
    for axis, percent in ((axes.xaxis, percent_x), (axes.yaxis, percent_y)):
        axis.set_major_formatter(ticker.FuncFormatter(_write_percent if percent else _write_number))
    axes.spines[["top", "right"]].set_visible(False)


def _write_percent(value: float, _: object) -> str:
    return f"{100 * value:.4g}%"


def _write_number(value: float, _: object) -> str:
    return f"{value:,.4g}".replace("-", "−")


def line_style(index: int) -> dict[str, Any]:
    """Colour and dashes of the line with this number; the first twenty-four differ."""
    turn, colour = divmod(index, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": _DASHES[(index + turn) % len(_DASHES)], "linewidth": 1.6}


def draw_histograms(axes: "Axes", values: Mapping[str, np.ndarray], low: float, high: float) -> None:
    """The share of each set in equal bins; what is further out counts in the outermost ones."""
    edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    for index, (name, value) in enumerate(values.items()):
        share, _ = np.histogram(value.clip(edges[0], edges[-1]), bins=edges)
        share = share / len(value)
        style = line_style(index)
        axes.stairs(share, edges, fill=True, facecolor=style["color"], alpha=0.3)
        axes.stairs(share, edges, label=name, **{"edgecolor": style.pop("color")} | style)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)


def legend_above(axes: "Axes") -> None:
    """The names of what is drawn, above the panel."""
    axes.legend(
        loc="lower center",
        bbox_to_anchor=(0.44, 1.0),
        ncols=3,
        frameon=False,
        fontsize=9,
        columnspacing=1,
        handlelength=1.7,
    )


def legend_below(axes: "Axes", title: str | None = None) -> None:
    """The names of what is drawn, a line each below the panel, which keeps its size: the figure grows by as much."""
    names, figure = axes.get_legend_handles_labels()[1], axes.get_figure(root=True)
    assert figure is not None
    width, height = figure.get_size_inches()
    # In inches: a character of the legend, a line of it, and what surrounds both
    lines = len(names) + (title is not None)
    figure.set_size_inches(max(width, 0.8 + 0.084 * max(map(len, names))), height + 0.15 + 0.19 * lines)
    figure.legend(title=title, loc="outside lower center", frameon=False, fontsize=9, alignment="left")


def numbers(name: str, values: Tensor, *, infinite: bool = False) -> np.ndarray:
    """The values as an array; none at all, those that are no numbers, and infinite ones unless told are refused."""
    array = values.detach().double().cpu().numpy()
    bad = int((np.isnan(array) if infinite else ~np.isfinite(array)).sum())
    if array.size == 0 or bad:
        raise InputError(
            f"A histogram needs {'numbers' if infinite else 'finite values'}, at least one per set. {name!r} has "
            f"{array.size}, of which {bad} are {'NaN' if infinite else 'NaN or infinite'}."
        )
    return array
