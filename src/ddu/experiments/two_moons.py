"""Two moons: where is a network sure of itself?

    ddu reproduce two-moons

2,000 points on two half circles, noise 0.1. The paper's four panels: the softmax entropy of a single network and the
predictive entropy of an ensemble are high along the boundary between the classes only; the feature density of a
residual network with spectral norm is high on the data and low everywhere else.

In numbers: the AUROC that tells the data from a grid of points further than three deviations of the noise away from it.
Different from the paper: the single network and the ensemble are trained for 150 epochs, as its text says. There, the
density of a network without residual connections (FC-Net) stays high far from the data; here it does so along a few
ridges alone, and its AUROC is 99.93 %, against 100.00 % of the residual network (seed 0, `results/two_moons`).

Its folder has two_moons.json (the specification), rows.csv, panels.npz (seed 0 on the grid), panels.png and table.md.
"""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ddu import data
from ddu.data import ArrayDataset
from ddu.detectors import DDU, Ensemble
from ddu.experiments.experiment import ROWS, Say
from ddu.extras import require
from ddu.files import write_arrays, write_bytes, write_json
from ddu.metrics import auroc
from ddu.models import create_model
from ddu.provenance import fingerprint
from ddu.results import Row, RowFile, latest, source, tabulate
from ddu.resume import one_at_a_time, read_settings, refuse_changes
from ddu.runs import RunSpec
from ddu.training import RECIPES, fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETTINGS, PANELS, FIGURE, TABLE = "two_moons.json", "panels.npz", "panels.png", "table.md"

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
        seeds: How many times to train all networks, with seeds 0, 1, ...; the points are always the same.
        epochs: Passes over the points.
        grid: Points of the grid per side.
        members: Networks of the ensemble.
    """

    seeds: int = 1
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

    def measure(
        self,
        folder: str | os.PathLike[str],
        *,
        data_root: str | os.PathLike[str] | None = None,
        command: str = "",
        say: Say = lambda words: None,
    ) -> list[Row]:
        """Trains and measures all networks for each seed that has no rows yet; see `Experiment.measure`."""
        folder, file = Path(folder), RowFile(Path(folder, ROWS))
        settings = {name: value for name, value in asdict(self).items() if name != "seeds"}
        with one_at_a_time(folder):
            begun = read_settings(folder / SETTINGS, "two-moons experiment")
            refuse_changes(f"The experiment in {folder}", begun or settings, settings)
            write_json(folder / SETTINGS, settings)
            moons = data.load("two_moons", root=data_root)
            run = fingerprint(settings, moons.digest())
            # The rows of a seed are appended together: the last one is there only if all of them are
            done = {row.seed for row in file.read() if (row.run, row.detector) == (run, _LAST)}
            if not (folder / PANELS).is_file():
                done.discard(0)
            for seed in range(self.seeds):
                if seed in done:
                    continue
                panels = list(self._panels(moons, seed, lambda words, seed=seed: say(f"Seed {seed}: {words}")))
                if seed == 0:
                    self._save(folder / PANELS, moons, panels)
                file.append(self._rows(panels, moons, seed, run, command))
            return latest(file.read())

    def write_page(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Writes panels.png, the paper's four panels for seed 0, and table.md, with the AUROC over all seeds."""
        folder = Path(folder)
        rows, image = latest(RowFile(folder / ROWS).read()), io.BytesIO()
        with np.load(folder / PANELS) as arrays:
            self.draw(arrays, rows).savefig(image, format="png", dpi=110)
        write_bytes(folder / FIGURE, image.getvalue())
        write_bytes(folder / TABLE, "\n".join(table.to_markdown() for table in tabulate(rows)).encode())
        return [folder / FIGURE, folder / TABLE]

    def draw(self, arrays: Mapping[str, np.ndarray], rows: Iterable[Row]) -> "Figure":
        """The paper's four panels: dark is uncertain, and each panel has a scale of its own.

        Args:
            arrays: The content of panels.npz.
            rows: Of which those of seed 0 have the AUROC.
        """
        figure_module = require("matplotlib.figure", extra="report", purpose="ddu reproduce two-moons")
        figure = figure_module.Figure(figsize=(12, 3.4), layout="constrained")
        values = {(row.network, row.detector): row.value for row in rows if row.seed == 0}
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
            predict = DDU(train(network, seed)).fit([(points, labels)]).predict
            yield panel(network, "softmax entropy", lambda z, predict=predict: predict(z).aleatoric)
            yield panel(network, "feature density", lambda z, predict=predict: predict(z).epistemic)
        say(f"train an ensemble of {self.members}")
        members = [train("ResFFN", self.members * seed + member) for member in range(self.members)]
        decompose, name = Ensemble(members).decompose, f"{self.members}-ensemble"
        yield panel(name, "predictive entropy", lambda z: decompose(z).predictive_entropy, self.members)
        yield panel(name, _LAST, lambda z: decompose(z).mutual_information, self.members)

    def _save(self, path: Path, moons: ArrayDataset, panels: Iterable[Panel]) -> None:
        """Writes what the figure shows."""
        x, y = self._axes()
        shown = {f"{one.network}, {one.measure}": one.uncertainty for one in panels if one[:2] in self.shown}
        write_arrays(path, {"x": x, "y": y, "points": moons.inputs, "labels": moons.labels, **shown})

    def _rows(self, panels: Iterable[Panel], moons: ArrayDataset, seed: int, run: str, command: str) -> list[Row]:
        """The AUROC of each panel."""
        recipe = RECIPES["two_moons"].with_changes(epochs=self.epochs)
        facts: dict[str, Any] = {
            "data": "two_moons",
            "seed": seed,
            "run": run,
            "ood": "plane",
            "metric": "auroc",
            "reductions": RunSpec("resffn4_128", "two_moons", recipe).reductions(len(moons)),
            **source(command),
        }
        return [
            Row(detector=one.measure, network=one.network, members=one.members, value=one.auroc, **facts)
            for one in panels
        ]
