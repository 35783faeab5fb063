"""What all figures have in common: the panel, the styles of their lines, histograms in one panel."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ddu.errors import InputError
from ddu.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Readable on white and on black, and told apart without colour by their lines
COLOURS = ("#2f7fc1", "#d99000", "#c0447f", "#3f9b6b", "#7f7f7f", "#7a5bc0")
_DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
_BINS = 36


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


def legend_beside(axes: "Axes", title: str | None = None) -> None:
    """The names of what is drawn, right of the panel; the figure grows with them, and the panel keeps its size."""
    names, figure = axes.get_legend_handles_labels()[1], axes.get_figure(root=True)
    assert figure is not None
    width, height = figure.get_size_inches()
    # In inches: a character of the legend, a line of it, and what surrounds both
    figure.set_size_inches(width + 0.6 + 0.084 * max(map(len, names)), max(height, 0.8 + 0.19 * len(names)))
    axes.legend(title=title, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=9, alignment="left")


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
