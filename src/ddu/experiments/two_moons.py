"""Two moons: where is a network sure of itself?

    ddu reproduce two-moons

2,000 points on two half circles, noise 0.1. The paper's four panels: the softmax entropy of a single network and the
predictive entropy of an ensemble are high along the boundary between the classes only; the feature density of a
residual network with spectral norm is high on the data and low everywhere else.

In numbers: the AUROC that tells the data from a grid of points further than three deviations of the noise away from it.
Different from the paper: the single network and the ensemble are trained for 150 epochs, as its text says. There, the
density of a network without residual connections (FC-Net) stays high far from the data; here it does so along a few
ridges alone, and its AUROC is 99.93 %, against 100.00 % of the residual network (seed 0, `results/two_moons.csv`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ddu import data
from ddu.detectors import DDU, Ensemble
from ddu.results import Row, versions
from ddu.extras import require
from ddu.metrics import auroc
from ddu.models import create_model
from ddu.training import fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISE = 0.1
FAR = 3 * NOISE
MEMBERS = 3
# The window of the panels
_X, _Y = (-2.5, 3.5), (-3.0, 3.0)

# All with plain ReLU
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "ResFFN, spectral norm": ("resffn4_128", {"spectral_norm": 0.65, "power_steps": 5}),
    "ResFFN": ("resffn4_128", {"spectral_norm": None}),
    "FC-Net": ("fc_net4_128", {"spectral_norm": None}),
}

# The paper's panels: network and measure
PANELS = (
    ("ResFFN", "softmax entropy"),
    (f"{MEMBERS}-ensemble", "predictive entropy"),
    ("ResFFN, spectral norm", "feature density"),
    ("FC-Net", "feature density"),
)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Panel:
    """One measure of uncertainty over the plane.

    Attributes:
        network: What was trained.
        measure: What is shown.
        uncertainty: On the grid, (row, column); larger means more uncertain.
        auroc: How well it tells the data from points far away.
    """

    network: str
    measure: str
    uncertainty: np.ndarray
    auroc: float


@dataclass(frozen=True)
class TwoMoons:
    """The whole experiment: the points and their classes, the grid's axes, and what each measure says."""

    points: np.ndarray
    labels: np.ndarray
    x: np.ndarray
    y: np.ndarray
    panels: list[Panel]

    def panel(self, network: str, measure: str) -> Panel:
        """The panel of a network and a measure."""
        return next(panel for panel in self.panels if (panel.network, panel.measure) == (network, measure))


def run(seed: int = 0, *, epochs: int = 150, grid: int = 120, progress: Progress = lambda stage: None) -> TwoMoons:
    """Trains all networks and measures them on a grid.

    Args:
        seed: Of the weights and the training; the points are always the same.
        epochs: Passes over the points.
        grid: Points of the grid a side.
        progress: Is told what is being done.
    """
    moons = data.load("two_moons")
    points, labels = torch.from_numpy(moons.inputs), torch.from_numpy(moons.labels)
    x, y = np.linspace(*_X, grid, dtype=np.float32), np.linspace(*_Y, grid, dtype=np.float32)
    plane = torch.from_numpy(np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2))
    far = torch.cdist(plane, points).amin(1) > FAR
    panels = []

    def train(network: str, seed: int) -> nn.Module:
        name, options = NETWORKS[network]
        torch.manual_seed(seed)
        model = create_model(name, num_classes=2, sensitive=False, **options)
        return fit(model, moons, recipe="two_moons", epochs=epochs, seed=seed, progress=False).model

    def measure(network: str, name: str, uncertainty: Callable[[Tensor], Tensor]) -> None:
        on_plane = uncertainty(plane)
        value = auroc(uncertainty(points), on_plane[far])
        panels.append(Panel(network, name, on_plane.reshape(grid, grid).numpy(), value))

    for network in NETWORKS:
        progress(f"Train {network}")
        model = train(network, seed)
        detector = DDU(model).fit([(points, labels)])
        measure(network, "softmax entropy", lambda z, detector=detector: detector.predict(z).aleatoric)
        measure(network, "feature density", lambda z, detector=detector: detector.predict(z).epistemic)
    progress(f"Train an ensemble of {MEMBERS}")
    members = [train("ResFFN", MEMBERS * seed + member) for member in range(MEMBERS)]
    ensemble = Ensemble(members)
    measure(f"{MEMBERS}-ensemble", "predictive entropy", lambda z: ensemble.decompose(z).predictive_entropy)
    measure(f"{MEMBERS}-ensemble", "mutual information", lambda z: ensemble.decompose(z).mutual_information)
    return TwoMoons(moons.inputs, moons.labels, x, y, panels)


def to_rows(result: TwoMoons, seed: int, command: str) -> list[Row]:
    """The AUROC of each measure, to be kept in a file."""
    facts = {"data": "two_moons", "ood": "plane", "seed": seed, "command": command, "versions": versions()}
    return [
        Row(detector=panel.measure, network=panel.network, metric="auroc", value=panel.auroc, **facts)
        for panel in result.panels
    ]


def draw(result: TwoMoons) -> "Figure":
    """The paper's four panels: dark is uncertain, and each panel has a scale of its own."""
    figure_module = require("matplotlib.figure", extra="report", purpose="ddu reproduce two-moons")
    figure = figure_module.Figure(figsize=(12, 3.4), layout="constrained")
    for axes, (network, measure) in zip(figure.subplots(1, 4, sharex=True, sharey=True), PANELS, strict=True):
        panel = result.panel(network, measure)
        # Ranks, since log-densities span several orders of magnitude; equal values have the same
        ranks = np.searchsorted(np.sort(panel.uncertainty, axis=None), panel.uncertainty)
        axes.pcolormesh(result.x, result.y, ranks, cmap="cividis_r", shading="gouraud", rasterized=True)
        for label, colour in enumerate(("white", "black")):
            x, y = result.points[result.labels == label].T
            axes.plot(x, y, ".", color=colour, markersize=1, alpha=0.6)
        axes.set_title(f"{network}: {measure}\nAUROC {panel.auroc:.3f}", fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
    return figure
