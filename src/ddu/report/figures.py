"""Histograms of the two uncertainties, for several sets of inputs in one panel. Each function returns a figure."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ddu.report._drawing import draw_histograms, empty_panel, legend_above, numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Log-densities further below the threshold than this many times the span above it share the first bar
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
    values = {name: numbers(name, log_density) for name, log_density in log_densities.items()}
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
    figure, axes = empty_panel(f"log-density of the features{note}", "share of the set")
    draw_histograms(axes, values, low, high)
    _mark(axes, threshold, f"out of distribution below {threshold:,.0f}".replace("-", "−"), towards="left")
    return figure


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
    legend_above(axes)


def _rounded(value: float) -> float:
    """`value` to two significant digits."""
    return float(f"{value:.2g}")
