"""More training data: what can be learned becomes known, what is ambiguous stays so.

    ddu reproduce more-data

Networks are trained on growing parts of a data set. Of each, on the whole test set: the mean softmax entropy, which
should stay; the mean log-density of the features, which should rise; and the mean mutual information of an ensemble
trained on the same part, which should fall. The correlations are those of the entropy, and of minus the log-density,
with the mutual information, over the parts.

Different from the paper: besides its density, whose covariances are singular on the smallest parts, there is one with
shrunk covariances (`density`). Where the recipe has `samples_per_epoch`, networks of all parts take as many steps, so
that small parts are not merely trained for a shorter time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from ddu import data, measures
from ddu.data.registry import Root
from ddu.detectors import find_method
from ddu.errors import NotMeasuredError
from ddu.experiments.experiment import Say, silent
from ddu.experiments.measure import ask
from ddu.experiments.reproduction import Judgement, Work, mean_value, training_samples
from ddu.experiments.seeds import Measured, OneFigure, measure_seeds
from ddu.experiments.trained import TrainedNetwork, limited
from ddu.experiments.training_pool import Job, network_job, trained_networks
from ddu.files import FilePath
from ddu.messages import require
from ddu.report.figures import dress, line_style
from ddu.results import Row
from ddu.runs import RunSpec, data_digest
from ddu.training import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENTROPY, INFORMATION = "softmax", "ensemble_mi"
DENSITIES = ("ddu_paper", "density")
CORRELATION = "correlation_with_ensemble_mi"
STAYS = 0.3
"""An entropy that varies by at most this share of its largest value stays roughly the same; the paper's: 28 %."""

_MEANS = {ENTROPY: "mean_entropy", INFORMATION: "mean_mutual_information"} | dict.fromkeys(
    DENSITIES, "mean_log_density"
)
_STRIDE = 1000  # between the seeds of an ensemble's members


@dataclass(frozen=True)
class MoreData(OneFigure):
    """The specification.

    Attributes:
        data: What the networks are trained on.
        shares: The parts of it, as shares; the smallest first.
        model: The architecture.
        recipe: How networks are trained.
        members: Networks of an ensemble; the first of them is the single network.
        options: For `create_model`.
        limit: So many samples are all; None for all there are.
        inputs: Test inputs that are looked at; None for all.
        seeds: All networks are trained once per seed.
    """

    figure: ClassVar[str] = "uncertainty-by-training-size.png"

    data: str
    shares: tuple[float, ...]
    model: str
    recipe: Recipe
    members: int
    options: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    inputs: int | None = None
    seeds: tuple[int, ...] = (0,)

    def work(self) -> list[Work]:
        """The networks of one seed."""
        sizes = [self._size(share) for share in self.shares]
        scored = self.inputs or 10_000
        return [
            Work(self._spec(share, 0, 0), size, self.members, scored=size + scored)
            for share, size in zip(self.shares, sizes, strict=True)
        ]

    def measure(self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent) -> list[Row]:
        """Trains and measures the networks of each seed that has no rows yet; see `Experiment.measure`."""
        everything, test = data.load_parts(self.data, root=data_root)
        sets = {"test": limited(test, self.inputs)}
        options: dict[str, Any] = {"data_root": data_root, "command": command, "say": say}

        def measure(seed: int) -> Measured:
            means: dict[str, list[float]] = {name: [] for name in _MEANS}
            for share in self.shares:
                networks = list(trained_networks(self._jobs(Path(folder), share, seed), sets, **options))
                say(f"Seed {seed}: measure {share:.0%} of the data")
                for name, value in mean_uncertainties(networks).items():
                    means[name].append(value)
            arrays = {name: np.array(values) for name, values in means.items()}
            return Measured(self._values(means), {"sizes": np.array([*map(self._size, self.shares)]), **arrays})

        return measure_seeds(
            self,
            "more-data",
            folder,
            measure,
            last={"detector": DENSITIES[-1], "metric": CORRELATION},
            digest=data_digest(everything, test),
            command=command,
            data=self.data,
            reductions=self._spec(self.shares[-1], 0, 0).reductions(training_samples(self.data, self.limit)),
        )

    def draw(self, arrays: Mapping[str, np.ndarray]) -> "Figure":
        """Entropy, minus the log-density and mutual information against the training size, a panel each.

        Args:
            arrays: The content of arrays.npz.
        """
        figure_module = require("matplotlib.figure", extra="report", purpose="ddu reproduce more-data")
        figure = figure_module.Figure(figsize=(12, 3), layout="constrained")
        panels = {
            "mean softmax entropy, nats": [ENTROPY],
            "mean − log density (ddu_paper)": [DENSITIES[0]],
            "mean − log density (shrunk)": [DENSITIES[1]],
            "mean mutual information, nats": [INFORMATION],
        }
        for axes, (label, names) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
            for index, name in enumerate(names):
                sign = -1 if name in DENSITIES else 1
                axes.plot(arrays["sizes"], sign * arrays[name], marker="o", markersize=3, **line_style(index))
            dress(axes, f"training samples of {self.data}", label, percent_y=False)
            axes.set_xscale("log")
            axes.set_xticks(arrays["sizes"], labels=[f"{size:,}" for size in arrays["sizes"]])
            axes.set_xticks([], minor=True)
            if label.endswith("nats"):
                axes.set_ylim(0, 1.15 * arrays[names[0]].max())
            if label.endswith("(ddu_paper)") and (-arrays[names[0]] > 0).all():
                axes.set_yscale("log")  # singular covariances give numbers without measure
        return figure

    def _values(self, means: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
        """Rows: the means of each part, and then the correlations over the parts."""
        label = self._spec(self.shares[-1], 0, 0).label
        rows: list[dict[str, Any]] = [
            {
                "detector": name,
                "network": f"{label}, {100 * share:g} % of the data",
                "members": self.members if name == INFORMATION else 1,
                "metric": _MEANS[name],
                "value": values[place],
            }
            for place, share in enumerate(self.shares)
            for name, values in means.items()
        ]
        for name in (ENTROPY, *DENSITIES):
            uncertainty = [-value for value in means[name]] if name in DENSITIES else means[name]
            value = correlation(uncertainty, means[INFORMATION])
            rows.append({"detector": name, "network": label, "metric": CORRELATION, "value": value})
        return rows

    def _jobs(self, folder: Path, share: float, seed: int) -> list[Job]:
        return [
            network_job(folder, f"{100 * share:g}-seed{seed}-member{member}", self._spec(share, seed, member))
            for member in range(self.members)
        ]

    def _spec(self, share: float, seed: int, member: int) -> RunSpec:
        """How a network is trained; all members hold out the same samples."""
        return RunSpec(
            self.model,
            self.data,
            self.recipe,
            None,
            seed + _STRIDE * member,
            self._size(share),
            options=self.options,
            split_seed=seed if member else None,
        )

    def _size(self, share: float) -> int:
        return round(share * training_samples(self.data, self.limit))


def mean_uncertainties(networks: Sequence[TrainedNetwork]) -> dict[str, float]:
    """Mean entropy, log-densities and mutual information on the test set; all but the last of the first network."""
    first = networks[0]
    logits = torch.stack([torch.cat([batch.logits for batch in one.logits("test")]) for one in networks]).double()
    found = {
        ENTROPY: float(measures.entropy(logits[0]).mean()),
        INFORMATION: float(measures.mutual_information(logits).mean()),
    }
    for name in DENSITIES:
        detector = find_method(name).make(first.model)
        detector.fit(first.batches("train", detector), progress=False)
        found[name] = -float(ask(detector, first.batches("test", detector))[0].epistemic.double().mean())
    return found


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's correlation; zero where one of the two does not vary."""
    first, second = (torch.tensor(values, dtype=torch.float64) for values in (one, other))
    if first.std() == 0 or second.std() == 0:
        return 0.0
    return float(torch.corrcoef(torch.stack([first, second]))[0, 1])


def judge(rows: Sequence[Row]) -> Judgement:
    """Whether density rises and entropy stays as data grows, and density goes with the ensemble's information."""
    parts: dict[str, bool] = {}
    together: dict[str, float] = {}  # the correlation of the entropy, by data
    for name in dict.fromkeys(row.data for row in rows):
        own = [row for row in rows if row.data == name]

        def of(detector: str, metric: str, own: list[Row] = own) -> list[float]:
            networks = dict.fromkeys(row.network for row in own if row.metric == metric and row.detector == detector)
            if not networks:
                raise NotMeasuredError(f"No row has {metric} of detector={detector}.")
            return [mean_value(own, metric, detector=detector, network=network) for network in networks]

        entropies = of(ENTROPY, "mean_entropy")
        for detector in DENSITIES:
            densities = of(detector, "mean_log_density")
            (with_information,) = of(detector, CORRELATION)
            parts[
                f"On {name}: mean log-density ({detector}) {', '.join(f'{value:.4g}' for value in densities)}; asked: "
                "it rises with more data"
            ] = densities == sorted(densities)
            parts[
                f"On {name}: correlation of minus that ({detector}) with the ensemble's mutual information "
                f"{with_information:.2f}; asked: at least 0.8"
            ] = with_information >= 0.8
        told = ", ".join(f"{value:.3f}" for value in entropies)
        parts[f"On {name}: mean entropy {told} nats; asked: it varies by at most {STAYS:.0%} of its largest value"] = (
            max(entropies) - min(entropies) <= STAYS * max(entropies)
        )
        (together[name],) = of(ENTROPY, CORRELATION)
    told = ", ".join(f"{value:.2f} on {name}" for name, value in together.items())
    parts[f"Correlation of the entropy with the mutual information: {told}; asked: below 0.8 somewhere"] = (
        min(together.values(), default=1.0) < 0.8
    )
    return Judgement.of(parts)
