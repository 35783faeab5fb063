"""Feature collapse: densities with and without sensitivity and smoothness, and how a network stretches distances.

    ddu reproduce feature-collapse

If features of unknown inputs lie on top of those of known ones, no density tells them apart. A bi-Lipschitz network
K_L d(x, x') <= d(f(x), f(x')) <= K_U d(x, x') cannot do that. So beside the densities stand the ratios of the distance
of features to that of inputs (`ddu.measures.distance_ratios`), for pairs of a test input and an OoD input and for test
inputs and the same with a little noise. The scale of features is arbitrary, so the 1 % and the 99 % quantile are given
as multiples of the median: the nearer both are to 1, the more alike distances are treated. They are what some pairs
show, not bounds of all.

Different from the paper, which shows this with Figure 1 alone: here are all four combinations of residual connections
and spectral norm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ddu import data
from ddu.data.registry import Root
from ddu.detectors import DDU
from ddu.experiments.compare import NetworkSetup
from ddu.experiments.experiment import Say, silent
from ddu.experiments.measure import ask
from ddu.experiments.reproduction import Judgement, Work, mean_value, only_one, training_samples
from ddu.experiments.seeds import Measured, OneFigure, measure_seeds
from ddu.experiments.trained import TrainedNetwork, limited, load_ood
from ddu.experiments.training_pool import network_job, trained_networks
from ddu.files import FilePath
from ddu.measures import distance_ratios
from ddu.messages import require
from ddu.metrics import auroc, fpr_at_tpr
from ddu.report.figures import draw_histograms, dress, score_range
from ddu.results import Row
from ddu.runs import RunSpec, data_digest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL = "small noise"
LOW, HIGH = "distance_ratio_low", "distance_ratio_high"

# The noise of small changes, where 1 is about the deviation of a pixel; inputs per pass
_NOISE, _BATCH = 0.01, 500


@dataclass(frozen=True)
class FeatureCollapse(OneFigure):
    """The specification.

    Attributes:
        data: What the networks are trained on.
        ood: A set that is out of distribution.
        networks: The networks, by name.
        limit: Use only so many training samples; None uses all.
        inputs: Test inputs, and OoD inputs, that are looked at; None for all.
        seeds: All networks are trained once per seed.
    """

    figure: ClassVar[str] = "densities-and-distances.png"

    data: str
    ood: str
    networks: Mapping[str, NetworkSetup]
    limit: int | None = None
    inputs: int | None = None
    seeds: tuple[int, ...] = (0,)

    def work(self) -> list[Work]:
        """The networks of one seed."""
        samples, shown = training_samples(self.data, self.limit), self.inputs or 10_000
        return [Work(self._spec(name, 0), samples, 1, (self.ood,), samples + 5 * shown) for name in self.networks]

    def measure(self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent) -> list[Row]:
        """Trains and measures the networks of each seed that has no rows yet; see `Experiment.measure`."""
        everything, test = data.load_parts(self.data, root=data_root)
        (ood,) = load_ood([self.ood], self.data, data_root).values()
        sets = {"test": limited(test, self.inputs), self.ood: limited(ood, self.inputs)}
        options: dict[str, Any] = {"data_root": data_root, "command": command, "say": say}

        def measure(seed: int) -> Measured:
            jobs = [network_job(folder, f"{name}-seed{seed}", self._spec(name, seed)) for name in self.networks]
            values, arrays = list[dict[str, Any]](), dict[str, np.ndarray]()
            for job, network in zip(jobs, trained_networks(jobs, sets, **options), strict=True):
                say(f"Seed {seed}: measure {job.spec.label}")
                metrics, drawn = self._look_at(network)
                values += [{"network": job.spec.label, **metric} for metric in metrics]
                arrays |= {f"{job.spec.label}, {name}": array for name, array in drawn.items()}
            return Measured(values, arrays)

        last = [*self.networks][-1]
        return measure_seeds(
            self,
            "feature-collapse",
            folder,
            measure,
            last={"network": self._spec(last, 0).label, "ood": SMALL, "metric": HIGH},
            digest=data_digest(everything, test, ood),
            command=command,
            data=self.data,
            detector="ddu_paper",
            reductions=self._spec(last, 0).reductions(training_samples(self.data, self.limit)),
        )

    def draw(self, arrays: Mapping[str, np.ndarray]) -> "Figure":
        """Densities above, and ratios of distances below, a column per network.

        Args:
            arrays: The content of arrays.npz.
        """
        figure_module = require("matplotlib.figure", extra="report", purpose="ddu reproduce feature-collapse")
        labels = [self._spec(name, 0).label for name in self.networks]
        figure = figure_module.Figure(figsize=(3.4 * len(labels), 5.2), layout="constrained")
        panels = figure.subplots(2, len(labels), squeeze=False)
        for (above, below), label in zip(panels.T, labels, strict=True):
            scores = {name: arrays[f"{label}, {name}"] for name in ("test", self.ood)}
            ratios = {name: np.log10(arrays[f"{label}, {name}"]) for name in ("to the OoD set", SMALL)}
            dress(above, "− log density", "share of the set")
            draw_histograms(above, scores, *score_range(scores))
            dress(below, "log10 of distance ratio / median", "share of pairs")
            draw_histograms(below, ratios, -1.0, 1.0)
            above.set_title(label, fontsize=10)
            for axes in (above, below):
                axes.legend(frameon=False, fontsize=8)
        return figure

    def _look_at(self, network: TrainedNetwork) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
        """What the density and the distances of one network are worth, as rows and as arrays."""
        detector = DDU.paper(network.model)
        detector.fit(network.batches("train", detector), progress=False)
        scores = {name: ask(detector, network.batches(name, detector))[0].epistemic for name in ("test", self.ood)}
        known, unknown = scores.values()
        ratios = {self.ood: self._ratios(network, detector, to_ood=True), SMALL: self._ratios(network, detector)}
        values: list[dict[str, Any]] = [
            {"ood": self.ood, "metric": "auroc", "value": auroc(known.double(), unknown.double())},
            {"ood": self.ood, "metric": "fpr95", "value": fpr_at_tpr(known.double(), unknown.double(), 0.95)},
        ]
        for name, ratio in ratios.items():
            low, high = ratio.quantile(torch.tensor([0.01, 0.99], dtype=ratio.dtype)).tolist()
            values += [{"ood": name, "metric": LOW, "value": low}, {"ood": name, "metric": HIGH, "value": high}]
        arrays = {**scores, "to the OoD set": ratios[self.ood], SMALL: ratios[SMALL]}
        return values, {name: array.float().numpy() for name, array in arrays.items()}

    def _ratios(self, network: TrainedNetwork, detector: DDU, *, to_ood: bool = False) -> Tensor:
        """Ratios of distances to OoD inputs, or to the same inputs with noise, as multiples of their median."""
        test, other = network.sets["test"], network.sets[self.ood if to_ood else "test"]
        generator, found = torch.Generator().manual_seed(0), []
        for start in range(0, min(len(test), len(other)), _BATCH):
            rows = range(start, min(start + _BATCH, len(test), len(other)))
            x, near = test.__getitems__(rows)[0], other.__getitems__(rows)[0]
            if not to_ood:
                near = x + _NOISE * torch.randn(x.shape, generator=generator)
            found.append(distance_ratios(x, near, *(detector.tap(inputs).features for inputs in (x, near))))
        ratios = torch.cat(found)
        return ratios / ratios.median()

    def _spec(self, name: str, seed: int) -> RunSpec:
        setup = self.networks[name]
        return RunSpec(setup.model, self.data, setup.recipe, None, seed, self.limit, options=setup.options)


def judge(rows: Sequence[Row]) -> Judgement:
    """Whether the regularised network has the best density, and treats distances most alike."""
    networks = list(dict.fromkeys(row.network for row in rows))
    ood = only_one({row.ood for row in rows if row.ood != SMALL}, "OoD set")
    *others, best = networks

    def of(metric: str, where: str | None = ood) -> dict[str, float]:
        return {name: mean_value(rows, metric, network=name, ood=where) for name in networks}

    density, low, high = of("auroc"), of(LOW), of(HIGH)
    straight = [name for name in others if not name.startswith(best.partition(" ")[0].partition("+")[0])]
    listed = {name: f"{name} {density[name]:.2%}" for name in networks}
    return Judgement.of(
        {
            f"AUROC of the density of {best} {density[best]:.2%}, of others: "
            f"{', '.join(listed[name] for name in others)}; asked: the first ahead": all(
                density[best] > density[name] for name in others
            ),
            f"Overlap of its densities: AUROC {density[best]:.2%}; asked: at least 99 %": density[best] >= 0.99,
            f"Sensitivity, the least stretched pairs as a multiple of the median ratio: {best} {low[best]:.2f}, "
            f"without residual connections {', '.join(f'{name} {low[name]:.2f}' for name in straight)}; asked: the "
            "first higher": all(low[best] > low[name] for name in straight),
            f"Smoothness, the most stretched pairs as a multiple of the median ratio: {best} {high[best]:.2f}, without "
            f"spectral norm {', '.join(f'{name} {high[name]:.2f}' for name in others if '+sn' not in name)}; asked: "
            "the first lower": all(high[best] < high[name] for name in others if "+sn" not in name),
        }
    )
