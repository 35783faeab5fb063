"""Histograms of the two uncertainties, for several sets of inputs in one panel. Each function returns a figure."""

import math
from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ddu.errors import InputError
from ddu.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Readable on white and on black, and told apart without colour by their lines
COLOURS = ("#2f7fc1", "#d99000", "#c0447f", "#3f9b6b")
_DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
_BINS = 36

# Log-densities further below the threshold than this many times the span above it share the first bar
_TAIL = 3


def entropy_histogram(entropies: Mapping[str, Tensor], threshold: float, num_classes: int) -> "Figure":
    """Softmax entropy of each set, with the threshold above which an input is ambiguous.

    Args:
        entropies: Name of each set, and the entropies of its inputs in nats, (input,).
        threshold: Where ambiguity begins.
        num_classes: Its logarithm is the largest entropy there is.
    """
    values = {name: _finite(name, entropy) for name, entropy in entropies.items()}
    figure, axes = _panel("softmax entropy in nats")
    _draw(axes, values, 0.0, math.log(num_classes))
    _mark(axes, threshold, f"ambiguous above {threshold:.2f}", towards="right")
    return figure


def density_histogram(log_densities: Mapping[str, Tensor], threshold: float) -> "Figure":
    """Log-density of each set, with the threshold below which an input is out of distribution.

    The far tail of unknown inputs would squeeze everything else into one bar, so it is cut; what is cut is counted in
    the first bar, and the axis says so.

    Args:
        log_densities: Name of each set, and the log-densities of its inputs, (input,).
        threshold: Where the known ends.
    """
    values = {name: _finite(name, log_density) for name, log_density in log_densities.items()}
    everything = np.concatenate(list(values.values()))
    high = max(float(everything.max()), threshold)
    low = _rounded(threshold - _TAIL * (high - threshold))
    cut = int((everything < low).sum())
    low = low if cut else min(float(everything.min()), threshold)
    note = (
        f"\n{cut:,} of {len(everything):,} inputs are below {low:,.0f}, all in the first bar".replace("-", "−")
        if cut
        else ""
    )
    figure, axes = _panel(f"log-density of the features{note}")
    _draw(axes, values, low, high)
    _mark(axes, threshold, f"out of distribution below {threshold:,.0f}".replace("-", "−"), towards="left")
    return figure


def _panel(label: str) -> "tuple[Figure, Axes]":
    figure_module = require("matplotlib.figure", extra="report", purpose="ddu.report.figures")
    ticker = require("matplotlib.ticker", extra="report", purpose="ddu.report.figures")
    figure = figure_module.Figure(figsize=(4.6, 3.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(label)
    axes.set_ylabel("share of the set")
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(xmax=1, decimals=0))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:,.4g}".replace("-", "−")))
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _draw(axes: "Axes", values: dict[str, np.ndarray], low: float, high: float) -> None:
    edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    for (name, value), colour, dashes in zip(values.items(), cycle(COLOURS), cycle(_DASHES), strict=False):
        share, _ = np.histogram(value.clip(edges[0], edges[-1]), bins=edges)
        share = share / len(value)
        axes.stairs(share, edges, fill=True, facecolor=colour, alpha=0.3)
        axes.stairs(share, edges, edgecolor=colour, linestyle=dashes, linewidth=1.6, label=name)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)


def _mark(axes: "Axes", threshold: float, words: str, towards: str) -> None:
    axes.axvline(threshold, color="black", linewidth=1, linestyle=(0, (2, 2)))
    left, arrow = towards == "left", {"left": "←", "right": "→"}[towards]
    axes.annotate(
        f"{arrow} {words}" if left else f"{words} {arrow}",
        xy=(threshold, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if left else 4, -2),
        textcoords="offset points",
        horizontalalignment="right" if left else "left",
        verticalalignment="top",
        fontsize=9,
    )
    axes.legend(
        loc="lower center",
        bbox_to_anchor=(0.44, 1.0),
        ncols=3,
        frameon=False,
        fontsize=9,
        columnspacing=1,
        handlelength=1.7,
    )


def _finite(name: str, values: Tensor) -> np.ndarray:
    array = values.detach().double().cpu().numpy()
    if array.size == 0 or not np.isfinite(array).all():
        raise InputError(
            f"A histogram needs finite values, at least one a set. {name!r} has {array.size}, "
            f"of which {int((~np.isfinite(array)).sum())} are NaN or infinite."
        )
    return array


def _rounded(value: float) -> float:
    """`value` to two significant digits."""
    return float(f"{value:.2g}")
