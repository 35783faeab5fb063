"""How the cost of a density grows with samples N, classes C, features d and layers, as exponents: cost ~ size^exponent.

    python -m benchmarks.growth         # and draws docs/images/growth.png

In every round each size is timed against the smallest, and the exponent is the slope of log cost over log size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

import ddu
from benchmarks import _results
from benchmarks._ratio import Ratio, compare, median_interval
from benchmarks.density import features
from ddu.detectors.score import Part, Score

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "growth.png"
POINTS, CLASSES, DIM = 512, 20, 256
PER_CLASS = 40


@dataclass(frozen=True)
class Growth:
    """A cost at several sizes, and the exponent that it should stay below."""

    what: str
    variable: str
    sizes: Sequence[int]
    job: Callable[[int], Callable[[], object]]
    under: float

    def measure(self) -> list[list[float]]:
        """The cost of each size over that of the first, a value per round."""
        return [[1.0], *compare(*(self.job(size) for size in self.sizes), budget=12)]


def scoring(points: int = POINTS, classes: int = CLASSES, dim: int = DIM, layers: int = 1) -> Callable[[], object]:
    """Scores points with one density per layer."""
    z, y = features(classes, dim, PER_CLASS)
    parts = [Part(str(layer), layer, ddu.GaussianDensity("full").update(z, y).prepare()) for layer in range(layers)]
    score, batch = Score(parts, [dim] * layers), z[torch.arange(points) % len(z)].repeat(1, layers)
    return lambda: score.values(batch, batch)


def fitting(samples: int = 20 * POINTS, classes: int = CLASSES, dim: int = DIM) -> Callable[[], object]:
    """The moments of samples."""
    z, y = features(classes, dim, -(-samples // classes))
    return lambda: ddu.GaussianDensity("full").update(z[:samples], y[:samples])


GROWTHS = (
    Growth("score", "points N", (128, 512, 2048, 8192), lambda size: scoring(points=size), under=1.05),
    Growth("score", "classes C", (10, 30, 100, 300), lambda size: scoring(classes=size), under=1.0),
    Growth("score", "features d", (256, 512, 1024), lambda size: scoring(dim=size), under=2.05),
    Growth("score", "layers", (1, 2, 4), lambda size: scoring(layers=size), under=1.05),
    Growth("fit", "samples N", (2560, 10240, 20480), lambda size: fitting(samples=size), under=1.05),
    Growth("fit", "classes C", (10, 30, 100), lambda size: fitting(classes=size), under=1.0),
    Growth("fit", "features d", (128, 256, 512), lambda size: fitting(dim=size), under=2.05),
)


def exponents(sizes: Sequence[int], costs: Sequence[Sequence[float]]) -> list[float]:
    """The slope of log cost over log size in each round, by least squares."""
    rounds = zip(*costs[1:], strict=True)
    return [float(np.polyfit(np.log(sizes), np.log([1.0, *row]), 1)[0]) for row in rounds]


def run() -> Iterator[Ratio]:
    """All exponents, and the figure unless nothing is kept."""
    torch.set_num_threads(1)
    measured = []
    for growth in GROWTHS:
        costs = growth.measure()
        found = exponents(growth.sizes, costs)
        measured.append((growth, costs, found))
        what = f"{growth.what}: exponent of the cost in {growth.variable}, {growth.sizes[0]} to {growth.sizes[-1]}"
        yield Ratio(what, found, under=growth.under)
    if _results.keeps:
        draw(measured)


def draw(measured: Sequence[tuple[Growth, list[list[float]], list[float]]]) -> None:
    """A panel for each variable, on log axes: the costs with their intervals, and the fitted lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    panels = figure.subplots(2, 4).flatten()
    for axes, (growth, costs, found) in zip(panels, measured, strict=False):
        medians = [median(values) for values in costs]
        ends = [median_interval(values) if len(values) > 5 else (min(values), max(values)) for values in costs]
        reach = np.abs(np.array(ends).T - medians)
        line = np.exp(np.polyval(np.polyfit(np.log(growth.sizes), np.log(medians), 1), np.log(growth.sizes)))
        axes.errorbar(growth.sizes, medians, reach, fmt="o", color="#1f5fa8", markersize=4, capsize=3)
        axes.plot(growth.sizes, line, color="#1f5fa8", linewidth=1, label=f"exponent {median(found):.2f}")
        axes.set(xscale="log", yscale="log", xlabel=growth.variable, ylabel=f"cost of {growth.what} / smallest")
        axes.set_xticks(growth.sizes, [f"{size:,}" for size in growth.sizes])
        axes.minorticks_off()
        axes.legend(frameon=False, loc="upper left")
    for axes in panels[len(measured) :]:
        axes.set_axis_off()
    figure.savefig(IMAGE, dpi=110)


if __name__ == "__main__":
    for ratio in run():
        print(ratio, flush=True)
