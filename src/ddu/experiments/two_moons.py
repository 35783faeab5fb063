"""Two moons: where is a network sure of itself?

    ddu reproduce two-moons

2,000 points on two half circles, noise 0.1. The paper's four panels: the softmax entropy of a single network and the
predictive entropy of an ensemble are high along the boundary between the classes only; the feature density of a
residual network with spectral norm is high on the data and low everywhere else.

In numbers: the AUROC that tells the data from a grid of points further than three deviations of the noise away from it.
Different from the paper: the single network and the ensemble are trained for 150 epochs, as its text says. There, the
density of a network without residual connections (FC-Net) stays high far from the data; here it does so along a few
ridges alone (`docs/reproduction.md`).

Its folder has experiment.json (the specification), rows.csv, arrays.npz (the first seed on the grid) and panels.png.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ddu import data
from ddu.data import ArrayDataset
from ddu.data.registry import Root
from ddu.detectors import DDU, Ensemble
from ddu.experiments.experiment import ROWS, Say, silent
from ddu.experiments.reproduction import Judgement, Work, mean_value
from ddu.experiments.seeds import Measured, measure_seeds, read_arrays
from ddu.files import FilePath, write_bytes
from ddu.messages import require
from ddu.metrics import auroc
from ddu.models import create_model
from ddu.report import as_png
from ddu.results import Row, RowFile, latest
from ddu.runs import RunSpec
from ddu.training import RECIPES, fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE = "panels.png"

NOISE = 0.1
FAR = 3 * NOISE

# The window of the panels
_X, _Y = (-2.5, 3.5), (-3.0, 3.0)

_LAST = "mutual information"  # is measured last

# All with plain ReLU, by the paper's names
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "ResFFN, spectral norm": ("resffn4_128", {"spectral_norm": 0.65, "power_steps": 5}),
    "ResFFN": ("resffn4_128", {"spectral_norm": None}),
    "FC-Net": ("fc_net4_128", {"spectral_norm": None}),
}


class Panel(NamedTuple):
    """One measure of uncertainty over the plane.

    Attributes:
        network: What was trained.
        measure: What is measured.
        members: How many networks it takes.
        uncertainty: On the grid, (row, column); larger means more uncertain.
        auroc: How well it tells the data from points far away.
    """

    network: str
    measure: str
    members: int
    uncertainty: np.ndarray
    auroc: float


@dataclass(frozen=True)
class TwoMoons:
    """The specification.

    Attributes:
        seeds: All networks are trained once per seed; the points are always the same.
        epochs: Passes over the points.
        grid: Points of the grid per side.
        members: Networks of the ensemble.
    """

    seeds: tuple[int, ...] = (0,)
    epochs: int = RECIPES["two_moons"].epochs
    grid: int = 120
    members: int = 3

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """The network and the measure of each of the paper's panels."""
        return (
            ("ResFFN", "softmax entropy"),
            (f"{self.members}-ensemble", "predictive entropy"),
            ("ResFFN, spectral norm", "feature density"),
            ("FC-Net", "feature density"),
        )

    def work(self) -> list[Work]:
        """The networks of one seed."""
        alone = [Work(self._spec(network), 2_000, ood=("plane",), shared=False) for network in NETWORKS]
        return [*alone, Work(self._spec("ResFFN"), 2_000, self.members, ("plane",), shared=False)]

    def measure(self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent) -> list[Row]:
        """Trains and measures all networks for each seed that has no rows yet; see `Experiment.measure`."""
        moons = data.load("two_moons", root=data_root)

        def measure(seed: int) -> Measured:
            panels = list(self._panels(moons, seed, lambda words: say(f"Seed {seed}: {words}")))
            values = [
                {"detector": one.measure, "network": one.network, "members": one.members, "value": one.auroc}
                for one in panels
            ]
            return Measured(values, self._arrays(moons, panels))

        return measure_seeds(
            self,
            "two-moons",
            folder,
            measure,
            last={"detector": _LAST},
            digest=moons.digest(),
            command=command,
            data="two_moons",
            ood="plane",
            metric="auroc",
            reductions=self._spec("ResFFN").reductions(len(moons)),
        )

    def write_page(self, folder: FilePath) -> list[Path]:
        """Writes panels.png, the paper's four panels for the first seed."""
        path = Path(folder) / FIGURE
        write_bytes(path, as_png(self.draw(read_arrays(folder), latest(RowFile(path.with_name(ROWS)).read()))))
        return [path]

    def draw(self, arrays: Mapping[str, np.ndarray], rows: Iterable[Row]) -> "Figure":
        """The paper's four panels: dark is uncertain, and each panel has a scale of its own.

        Args:
            arrays: The content of arrays.npz.
            rows: Of which those of the first seed have the AUROC.
        """
        figure_module = require("matplotlib.figure", extra="report", purpose="ddu reproduce two-moons")
        figure = figure_module.Figure(figsize=(12, 3.4), layout="constrained")
        values = {(row.network, row.detector): row.value for row in rows if row.seed == self.seeds[0]}
        for axes, (network, measure) in zip(figure.subplots(1, 4, sharex=True, sharey=True), self.shown, strict=True):
            uncertainty = arrays[f"{network}, {measure}"]
            # Ranks, since log-densities span several orders of magnitude; equal values have the same
            ranks = np.searchsorted(np.sort(uncertainty, axis=None), uncertainty)
            axes.pcolormesh(arrays["x"], arrays["y"], ranks, cmap="cividis_r", shading="gouraud", rasterized=True)
            for label, colour in enumerate(("white", "black")):
                x, y = arrays["points"][arrays["labels"] == label].T
                axes.plot(x, y, ".", color=colour, markersize=1, alpha=0.6)
            axes.set_title(f"{network}: {measure}\nAUROC {values[network, measure]:.3f}", fontsize=10)
            axes.set_xticks([])
            axes.set_yticks([])
        colours = "Dark: uncertain, bright: certain, by rank within a panel. Points: the data, a colour per class."
        figure.supxlabel(f"{colours} AUROC: data against points further than {FAR:g} away.", fontsize=9)
        return figure

    def _axes(self) -> tuple[np.ndarray, np.ndarray]:
        """The grid in both directions."""
        return np.linspace(*_X, self.grid, dtype=np.float32), np.linspace(*_Y, self.grid, dtype=np.float32)

    def _panels(self, moons: ArrayDataset, seed: int, say: Say) -> Iterator[Panel]:
        """Trains the networks of one seed, and measures each of them on the grid."""
        points, labels = torch.from_numpy(moons.inputs), torch.from_numpy(moons.labels)
        plane = torch.from_numpy(np.stack(np.meshgrid(*self._axes()), axis=-1).reshape(-1, 2))
        far = torch.cdist(plane, points).amin(1) > FAR

        def train(network: str, seed: int) -> nn.Module:
            name, options = NETWORKS[network]
            torch.manual_seed(seed)
            model = create_model(name, num_classes=2, sensitive=False, **options)
            return fit(model, moons, recipe="two_moons", epochs=self.epochs, seed=seed, progress=False).model

        def panel(network: str, measure: str, uncertainty: Callable[[Tensor], Tensor], members: int = 1) -> Panel:
            on_plane = uncertainty(plane)
            value = auroc(uncertainty(points), on_plane[far])
            return Panel(network, measure, members, on_plane.reshape(self.grid, self.grid).numpy(), value)

        for network in NETWORKS:
            say(f"train {network}")
            predict = DDU.paper(train(network, seed)).fit([(points, labels)]).predict
            yield panel(network, "softmax entropy", lambda z, predict=predict: predict(z).aleatoric)
            yield panel(network, "feature density", lambda z, predict=predict: predict(z).epistemic)
        say(f"train an ensemble of {self.members}")
        members = [train("ResFFN", self.members * seed + member) for member in range(self.members)]
        decompose, name = Ensemble(members).decompose, f"{self.members}-ensemble"
        yield panel(name, "predictive entropy", lambda z: decompose(z).predictive_entropy, self.members)
        yield panel(name, _LAST, lambda z: decompose(z).mutual_information, self.members)

    def _arrays(self, moons: ArrayDataset, panels: Iterable[Panel]) -> dict[str, np.ndarray]:
        """What the figure shows."""
        x, y = self._axes()
        shown = {f"{one.network}, {one.measure}": one.uncertainty for one in panels if one[:2] in self.shown}
        return {"x": x, "y": y, "points": moons.inputs, "labels": moons.labels, **shown}

    def _spec(self, network: str) -> RunSpec:
        """How a network is trained; it holds nothing out."""
        name, options = NETWORKS[network]
        recipe = RECIPES["two_moons"].with_changes(epochs=self.epochs, validation_share=0.0)
        return RunSpec(name, "two_moons", recipe, None, options={"sensitive": False, **options})


def judge(rows: Sequence[Row]) -> Judgement:
    """Whether the density knows where the data is, the entropies do not, and FC-Net's density does not."""
    density, plain = (mean_value(rows, "auroc", network=one, detector="feature density") for one in _DENSITIES)
    single = mean_value(rows, "auroc", network="ResFFN", detector="softmax entropy")
    ensemble = mean_value(rows, "auroc", detector="predictive entropy")
    return Judgement.of(
        {
            f"AUROC of the density of ResFFN with spectral norm {density:.2%}; asked: at least 99 %": density >= 0.99,
            f"AUROC of the softmax entropy {single:.2%}, of the ensemble's predictive entropy {ensemble:.2%}; asked: "
            "both below 90 %": max(single, ensemble) < 0.9,
            f"AUROC of the density of FC-Net {plain:.2%}; asked: lower than the first by at least one per cent": (
                plain < density - 0.01
            ),
        }
    )


_DENSITIES = ("ResFFN, spectral norm", "FC-Net")
