"""An ensemble of five in one dimension: what the members' entropies, their mean's entropy and their disagreement say.

    ddu reproduce five-ensemble

1,000 numbers with |x| in [2, 6]; labels are ambiguous for |x| in [3.5, 4.5], and there is nothing between -2 and 2 (the
set `one_d`). The paper's three panels: softmax outputs and softmax entropies of five networks, and the predictive
entropy and mutual information of the ensemble. In numbers: the mean of each measure, in nats, over parts of the axis.

The paper does not say what the networks are: here they have four hidden layers of 128 units, trained as on the moons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from ddu import data
from ddu.data.registry import Root
from ddu.experiments.experiment import Say, silent
from ddu.experiments.reproduction import Judgement, Work, mean_value
from ddu.experiments.seeds import Measured, OneFigure, measure_seeds
from ddu.files import FilePath
from ddu.measures import entropy, mutual_information, predictive_entropy
from ddu.messages import require
from ddu.report.figures import COLOURS, dress, legend_above, line_style
from ddu.results import Row
from ddu.runs import RunSpec
from ddu.training import RECIPES, fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "mean_uncertainty"

# Parts of the axis: distances from 0
REGIONS = {"gap": ((0.0, 2.0),), "ambiguous": ((3.5, 4.5),), "clear": ((2.0, 3.5), (4.5, 6.0))}


@dataclass(frozen=True)
class FiveEnsemble(OneFigure):
    """The specification.

    Attributes:
        seeds: All networks are trained once per seed; the numbers are always the same.
        epochs: Passes over the numbers.
        members: Networks of the ensemble.
        network: Their architecture.
    """

    figure: ClassVar[str] = "panels.png"

    seeds: tuple[int, ...] = (0,)
    epochs: int = 150
    members: int = 5
    network: str = "fc_net4_128"

    def work(self) -> list[Work]:
        """The networks of one seed."""
        return [Work(self._spec(0), 1_000, self.members, ("gap",), shared=False)]

    def measure(self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent) -> list[Row]:
        """Trains and measures the ensemble of each seed that has no rows yet; see `Experiment.measure`."""
        numbers = data.load("one_d", root=data_root)
        axis = torch.linspace(-6, 6, 481)

        def measure(seed: int) -> Measured:
            members = []
            for member in range(self.members):
                say(f"Seed {seed}: train network {member + 1} of {self.members}")
                spec = self._spec(self.members * seed + member)
                model = fit(
                    spec.make_model(numbers.info), numbers, recipe=spec.recipe, seed=spec.seed, progress=False
                ).model.eval()
                with torch.no_grad():
                    members.append(model(axis[:, None]).double())
            logits = torch.stack(members)
            measures = summarise_members(logits)
            values = [
                {"detector": name, "members": count, "ood": region, "value": float(value[_inside(axis, region)].mean())}
                for name, (count, value) in measures.items()
                for region in REGIONS
            ]
            arrays = {"x": axis, "probs": logits.softmax(-1)[..., 1], "entropies": entropy(logits)}
            arrays |= {name: value for name, (count, value) in measures.items() if count > 1}
            return Measured(
                values,
                {name: one.numpy() for name, one in arrays.items()}
                | {"data": numbers.inputs[:, 0], "y": numbers.labels},
            )

        return measure_seeds(
            self,
            "five-ensemble",
            folder,
            measure,
            last={"detector": "mutual information", "ood": "clear"},
            digest=numbers.digest(),
            command=command,
            data="one_d",
            network=self._spec(0).label,
            metric=METRIC,
        )

    def draw(self, arrays: Mapping[str, np.ndarray]) -> "Figure":
        """The paper's three panels; ambiguous parts and the gap are shaded.

        Args:
            arrays: The content of arrays.npz.
        """
        figure_module = require("matplotlib.figure", extra="report", purpose="ddu reproduce five-ensemble")
        figure = figure_module.Figure(figsize=(12, 3.4), layout="constrained")
        outputs, entropies, ensemble = figure.subplots(1, 3, sharex=True)
        for member, (probs, value) in enumerate(zip(arrays["probs"], arrays["entropies"], strict=True)):
            outputs.plot(arrays["x"], probs, **line_style(member))
            entropies.plot(arrays["x"], value, **line_style(member))
        outputs.plot(arrays["data"], arrays["y"], "|", color="black", markersize=8, alpha=0.1)
        outputs.set_title(f"{len(arrays['probs'])} networks, a line each; ticks: the data", fontsize=9)
        for index, name in enumerate(("predictive entropy", "mutual information")):
            ensemble.plot(arrays["x"], arrays[name], label=name, **line_style(index))
        dress(outputs, "x", "softmax output", percent_y=False)
        dress(entropies, "x", "softmax entropy in nats", percent_y=False)
        dress(ensemble, "x", f"{self.members}-ensemble, nats", percent_y=False)
        legend_above(ensemble)
        for axes in (outputs, entropies, ensemble):
            gap = axes.axvspan(-2, 2, color=COLOURS[4], alpha=0.15, linewidth=0)
            for side in (-1, 1):
                doubtful = axes.axvspan(side * 3.5, side * 4.5, color=COLOURS[1], alpha=0.2, linewidth=0)
            if axes is entropies:
                gap.set_label("no data")
                doubtful.set_label("ambiguous labels")
        legend_above(entropies)
        return figure

    def _spec(self, seed: int) -> RunSpec:
        """How a network is trained; it holds nothing out."""
        recipe = RECIPES["two_moons"].with_changes(epochs=self.epochs, validation_share=0.0, model={})
        return RunSpec(self.network, "one_d", recipe, None, seed, options={"spectral_norm": None, "sensitive": False})


def summarise_members(logits: Tensor) -> dict[str, tuple[int, Tensor]]:
    """Each measure by name: how many networks it takes, and its values, (input,).

    Args:
        logits: Of all members, (member, input, class).
    """
    entropies, count = entropy(logits), len(logits)
    return {
        "softmax entropy, lowest": (1, entropies.amin(0)),
        "softmax entropy, mean": (1, entropies.mean(0)),
        "softmax entropy, highest": (1, entropies.amax(0)),
        "predictive entropy": (count, predictive_entropy(logits)),
        "mutual information": (count, mutual_information(logits)),
    }


def judge(rows: Sequence[Row]) -> Judgement:
    """Whether softmax entropy knows ambiguity alone, mutual information the gap alone, and predictive entropy both."""

    def mean(detector: str, region: str) -> float:
        return mean_value(rows, METRIC, detector=detector, ood=region)

    low, high = (mean(f"softmax entropy, {which}", "gap") for which in ("lowest", "highest"))
    surely = mean("softmax entropy, lowest", "ambiguous")
    gap, ambiguous, clear = (mean("predictive entropy", region) for region in REGIONS)
    new, known = mean("mutual information", "gap"), mean("mutual information", "ambiguous")
    return Judgement.of(
        {
            f"Lowest entropy of a member where labels are ambiguous {surely:.3f} nats (0.5 by the odds of the labels); "
            "asked: above 0.35": surely > 0.35,
            f"Entropies of members in the gap from {low:.3f} to {high:.3f} nats; asked: more than 0.3 apart": (
                high - low > 0.3
            ),
            f"Mutual information in the gap {new:.3f} nats, where labels are ambiguous {known:.3f}; asked: at least "
            "three times as much in the gap": new >= 3 * known,
            f"Predictive entropy in the gap {gap:.3f} nats, where labels are ambiguous {ambiguous:.3f}, elsewhere "
            f"{clear:.3f}; asked: both at least three times that elsewhere": min(gap, ambiguous) >= 3 * clear,
        }
    )


def _inside(axis: Tensor, region: str) -> Tensor:
    distance = axis.abs()
    return torch.stack([(low <= distance) & (distance <= high) for low, high in REGIONS[region]]).any(0)
