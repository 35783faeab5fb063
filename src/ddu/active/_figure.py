"""Learning curves as a figure and as a table in words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddu.active._curves import LEVELS, CurvePoint, CurveSummary, summarise_curves
from ddu.errors import InputError
from ddu.extras import require
from ddu.metrics import MeanAndStandardError
from ddu.report._drawing import dress, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def curve_figure(points: Iterable[CurvePoint]) -> "Figure":
    """Accuracy against labels: mean over seeds, ± standard error; and the share of ambiguous samples, where there are.

    Args:
        points: Of one data set.
    """
    points = list(points)
    summaries = summarise_curves(points)
    if not summaries:
        raise InputError("There are no points of learning curves to draw.")
    figure_module = require("matplotlib.figure", extra="report", purpose="ddu.active.curve_figure")
    panels = 2 if any(summary.ambiguous for summary in summaries) else 1
    figure = figure_module.Figure(figsize=(1 + 4.6 * panels, 4.2), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    seeds = max(summary.seeds for summary in summaries)
    errors = f"\nmean ± standard error over {seeds} seeds" if seeds > 1 else ""
    dress(axes[0], f"labels{errors}", f"accuracy on the test set of {points[0].data.removeprefix('dirty_')}")
    for level in LEVELS:
        axes[0].axhline(level, color="black", linewidth=0.5, alpha=0.4)
    for index, summary in enumerate(summaries):
        reached = ", ".join(labels_needed(summary, level) for level in LEVELS)
        _draw(axes[0], summary.accuracy, index, f"{summary.acquisition}: {reached}")
    if panels == 2:
        dress(axes[1], "labels", "ambiguous, of all that was acquired")
        for index, summary in enumerate(summaries):
            _draw(axes[1], summary.ambiguous, index)
        axes[1].set_ylim(-0.02, 1.02)
    levels = ", ".join(f"{100 * level:.0f}" for level in LEVELS)
    axes[0].legend(frameon=False, fontsize=8, loc="lower right", title=f"labels to {levels} %", title_fontsize=8)
    figure.suptitle(f"Active learning on {points[0].data}", fontsize=11)
    return figure


def _draw(axes: "Axes", curve: Mapping[int, MeanAndStandardError], index: int, label: str | None = None) -> None:
    style = line_style(index)
    mean = [value.mean for value in curve.values()]
    error = [value.standard_error or 0.0 for value in curve.values()]
    axes.plot(list(curve), mean, label=label, **style)
    low, high = ([m + sign * e for m, e in zip(mean, error, strict=True)] for sign in (-1, 1))
    axes.fill_between(list(curve), low, high, color=style["color"], alpha=0.15, linewidth=0)


@dataclass(frozen=True)
class CurveTable:
    """The labels that each acquisition needed to reach 80, 90 and 95 %, and where it ended.

    Attributes:
        title: What was measured, and how it differs from the paper's protocol.
        heading: The names of the columns.
        rows: The cells.
    """

    title: str
    heading: list[str]
    rows: list[list[str]]

    def to_markdown(self) -> str:
        """The table in Markdown, below its title."""
        lines = [self.heading, ["---"] * len(self.heading), *self.rows]
        return "\n".join([f"{self.title}", "", *("| " + " | ".join(line) + " |" for line in lines), ""])


def curve_table(points: Iterable[CurvePoint]) -> CurveTable:
    """What curves say in numbers: mean ± standard error over seeds.

    Args:
        points: Of one data set.
    """
    points = list(points)
    summaries = summarise_curves(points)
    last = {point.acquisition: point for point in points}
    ambiguous = any(summary.ambiguous for summary in summaries)
    ends = {max(summary.accuracy) for summary in summaries}
    rows = []
    for summary in summaries:
        point, end = last[summary.acquisition], [*summary.accuracy.values()][-1]
        network = f"{point.members} x {point.network}" if point.members > 1 else point.network
        share = [_percent([*summary.ambiguous.values()][-1] if summary.ambiguous else None)] if ambiguous else []
        needed = [labels_needed(summary, level) for level in LEVELS]
        ended = _percent(end) if len(ends) == 1 else f"{_percent(end)} at {max(summary.accuracy)}"
        rows.append([summary.acquisition, network, str(summary.seeds), *needed, ended, *share])
    levels = [f"to {100 * level:.0f} %" for level in LEVELS]
    heading = ["acquisition", "network", "seeds", *levels, "at the end", *(["ambiguous"] if ambiguous else [])]
    return CurveTable(_title(points), heading, rows)


def _title(points: list[CurvePoint]) -> str:
    reduced: dict[str, list[str]] = {}
    for point in points:
        if point.reductions and point.acquisition not in reduced.setdefault(point.reductions, []):
            reduced[point.reductions].append(point.acquisition)
    everyone = {point.acquisition for point in points}
    protocol = ""
    for words, whose in reduced.items():
        named = "" if {*whose} == everyone else f" by {', '.join(whose)}"
        protocol += f" Reduced from the full protocol{named}: {words}."
    what = f"Active learning on {points[0].data}, labels needed to reach an accuracy"
    return f"{what}: mean ± standard error over seeds.{protocol}"


def labels_needed(summary: CurveSummary, level: float) -> str:
    """The labels that an accuracy took, in words; "-" if no seed got there."""
    needed, reached = summary.labels[level], summary.reached[level]
    if needed is None:
        return "-"
    if reached < summary.seeds:
        return f"> {needed.mean:.0f} ({reached} of {summary.seeds} seeds)"
    error = "" if needed.standard_error is None else f" ± {needed.standard_error:.0f}"
    return f"{needed.mean:.0f}{error}"


def _percent(value: MeanAndStandardError | None) -> str:
    if value is None:
        return "-"
    error = "" if value.standard_error is None else f" ± {100 * value.standard_error:.1f}"
    return f"{100 * value.mean:.1f}{error} %"
