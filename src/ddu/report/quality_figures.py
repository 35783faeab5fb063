"""Figures of the quality protocol. Each function returns a figure."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddu.errors import InputError
from ddu.report.figures import COLOURS, empty_panel, legend_above

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKERS = "os^Dv"


def pair_figure(values: Mapping[str, Mapping[str, tuple[float, float]]], pairs: Sequence[str]) -> "Figure":
    """The AUROC of several detectors on each pair of a network and training data, with 95 % intervals.

    Args:
        values: Of each detector, by pair: the mean and half the width of its interval.
        pairs: The pairs, from top to bottom.
    """
    if not pairs or not values:
        raise InputError(f"A figure needs pairs and detectors. Got {len(pairs)} and {len(values)}.")
    figure, axes = empty_panel("mean AUROC over OoD sets", "", percent_x=True, percent_y=False)
    figure.set_size_inches(6.4, 1.0 + 0.36 * len(pairs))
    for index, (name, found) in enumerate(values.items()):
        shown = [(place, *found[pair]) for place, pair in enumerate(pairs) if pair in found]
        if shown:
            places, means, widths = np.array(shown).T
            axes.errorbar(
                means,
                places + 0.12 * index,
                xerr=widths,
                fmt=_MARKERS[index % len(_MARKERS)],
                color=COLOURS[index % len(COLOURS)],
                markersize=5,
                capsize=2,
                linewidth=1.2,
                label=name,
            )
    axes.set_yticks(range(len(pairs)), labels=list(pairs))
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    legend_above(axes)
    return figure


def flagged_figure(points: Mapping[str, Sequence[tuple[float, float]]], false_alarm_rate: float) -> "Figure":
    """The share of corrupted images that is flagged, against the accuracy that their corruption costs.

    Args:
        points: For each severity, a point for each corruption: the loss of accuracy and the share that is flagged.
        false_alarm_rate: The share of clean images that is flagged.
    """
    if not points:
        raise InputError("A figure needs corruptions, and there are none.")
    figure, axes = empty_panel("accuracy lost", "flagged", percent_x=True)
    axes.axhline(false_alarm_rate, color="black", linewidth=0.8, linestyle=(0, (2, 2)))
    for index, (name, pairs) in enumerate(points.items()):
        lost, flagged = np.array(pairs).T
        axes.scatter(lost, flagged, s=22, marker=_MARKERS[index % len(_MARKERS)], color=COLOURS[index], label=name)
    axes.set_ylim(bottom=0)
    legend_above(axes)
    return figure
