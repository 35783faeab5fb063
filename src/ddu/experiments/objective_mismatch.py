"""One mixture of Gaussians fitted by three objectives: the best classifier is not the best density.

    ddu reproduce objective-mismatch

Three Gaussians in the plane with 4 % label noise. The paper's table: each fit at each objective; and its figure: the
densities, and the entropies of the two fits that have classes. `docs/theory.md` says what the objectives are.

Different from the paper: its points are not published, so ours are others with the entropy and label noise that it
states, drawn anew for each seed. The conditional fit with one covariance per class, and the classes of the marginal fit
(EM begins with the joint fit, so its components have names), are ours. The overconfidence is the conditional
cross-entropy minus the mean entropy of the predictions: zero if the mixture is as sure as it is right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ddu.data.registry import Root
from ddu.data.sources.generated import draw_three_gaussians
from ddu.experiments import softmax_or_gaussians
from ddu.experiments.experiment import Say, silent
from ddu.experiments.reproduction import Judgement, Work, mean_value
from ddu.experiments.seeds import Measured, OneFigure, measure_seeds
from ddu.files import FilePath
from ddu.measures import entropy
from ddu.messages import require
from ddu.report.figures import COLOURS
from ddu.results import Row
from ddu.theory import Mixture, cross_entropies, fit_conditional, fit_joint, fit_marginal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OBJECTIVES = ("conditional", "joint", "marginal")
SHARED, OWN = "gaussian_mixture, shared covariance", "gaussian_mixture"
STAR = (0.0, -5.0)
"""The point that the paper marks as ambiguous."""

_SHARES = (0.6826, 0.9544, 0.997)
_REACH = 12.0


@dataclass(frozen=True)
class ObjectiveMismatch(OneFigure):
    """The specification.

    Attributes:
        seeds: Each draws its own points.
        points: How many there are.
        grid: Points of the figure's grid per side.
    """

    figure: ClassVar[str] = "densities-and-entropies.png"

    seeds: tuple[int, ...] = (0,)
    points: int = 1500
    grid: int = 160

    def work(self) -> list[Work]:
        """No networks."""
        return []

    def measure(self, folder: FilePath, *, data_root: Root = None, command: str = "", say: Say = silent) -> list[Row]:
        """Fits and scores the mixtures of each seed that has no rows yet; see `Experiment.measure`."""

        def measure(seed: int) -> Measured:
            say(f"Seed {seed}: fit four mixtures")
            z, labels = map(torch.from_numpy, draw_three_gaussians(seed, self.points))
            fits = fit_all(z, labels)
            values = [
                {"detector": f"minimise_{fit}_cross_entropy", "network": network, "metric": metric, "value": value}
                for (fit, network), mixture in fits.items()
                for metric, value in scores(mixture, z, labels).items()
            ]
            return Measured(values, {"points": z.numpy(), "labels": labels.numpy(), **self._on_the_grid(fits)})

        return measure_seeds(
            self,
            "objective-mismatch",
            folder,
            measure,
            last={"detector": "minimise_marginal_cross_entropy", "metric": "entropy_at_star"},
            command=command,
            data="three_gaussians",
            reductions=None if self.points >= 1500 else f"points 1,500 -> {self.points:,}",
        )

    def draw(self, arrays: Mapping[str, np.ndarray]) -> "Figure":
        """The paper's figure: densities with the contours that hold most of them, and entropies, dark where low.

        Args:
            arrays: The content of arrays.npz.
        """
        figure_module = require("matplotlib.figure", extra="report", purpose="ddu reproduce objective-mismatch")
        figure = figure_module.Figure(figsize=(13, 3.1), layout="constrained")
        panels = figure.subplots(1, 5, sharex=True, sharey=True)
        x = arrays["x"]
        for axes, fit in zip(panels, OBJECTIVES, strict=False):
            density = np.exp(arrays[f"{fit}, log density"])
            for label in range(3):
                own = arrays["points"][arrays["labels"] == label]
                axes.plot(*own.T, ".", color=COLOURS[label], markersize=1.5, alpha=0.5)
            axes.contour(x, x, density, sorted(_levels(density, _SHARES)), colors="black", linewidths=0.8)
            axes.set_title(f"density, minimal {fit}", fontsize=10)
        for axes, fit in zip(panels[3:], OBJECTIVES, strict=False):
            axes.pcolormesh(x, x, arrays[f"{fit}, entropy"], cmap="cividis", vmin=0, vmax=np.log(3), rasterized=True)
            axes.plot(*STAR, "*", color="white", markeredgecolor="black", markersize=10)
            axes.set_title(f"entropy, minimal {fit}", fontsize=10)
        for axes in panels:
            axes.set(xlim=(-_REACH, _REACH), ylim=(-_REACH, _REACH), aspect="equal", xticks=[], yticks=[])
        shares = ", ".join(f"{share:.1%}" for share in _SHARES)
        star = f"({STAR[0]:g}, {STAR[1]:g})".replace("-", "−")
        words = f"Contours hold {shares} of the density; a colour per class. Entropy: dark is 0, bright log 3."
        figure.supxlabel(f"{words} Star: {star}.", fontsize=9)
        return figure

    def _on_the_grid(self, fits: Mapping[tuple[str, str], Mixture]) -> dict[str, np.ndarray]:
        x = torch.linspace(-_REACH, _REACH, self.grid)
        plane = torch.cartesian_prod(x, x).flip(1)  # the first dimension is y, as pictures have it
        found = {"x": x.numpy()}
        for fit, mixture in _shown(fits).items():
            log_joint = mixture.log_joint(plane)
            found[f"{fit}, log density"] = log_joint.logsumexp(1).reshape(self.grid, self.grid).float().numpy()
            found[f"{fit}, entropy"] = entropy(log_joint).reshape(self.grid, self.grid).float().numpy()
        return found


def fit_all(z: Tensor, labels: Tensor) -> dict[tuple[str, str], Mixture]:
    """The mixtures by objective and kind: those of the paper, and the conditional one with a covariance per class."""
    joint, shared = fit_joint(z, labels), fit_joint(z, labels, shared=True)
    return {
        ("conditional", SHARED): fit_conditional(z, labels, shared, shared=True),
        ("conditional", OWN): fit_conditional(z, labels, joint),
        ("joint", OWN): joint,
        ("marginal", OWN): fit_marginal(z, joint),
    }


def scores(mixture: Mixture, z: Tensor, labels: Tensor) -> dict[str, float]:
    """The three objectives, how overconfident the predictions are, and their entropy at the marked point."""
    found = cross_entropies(mixture, z, labels)
    return {
        **{f"{name}_cross_entropy": value for name, value in found._asdict().items()},
        "overconfidence": found.conditional - float(entropy(mixture.log_joint(z)).mean()),
        "entropy_at_star": float(entropy(mixture.log_joint(torch.tensor([STAR])))),
    }


def judge(rows: Sequence[Row]) -> Judgement:
    """Whether each fit is the best at its own objective, and the joint one too sure of its predictions."""

    def score(fit: str, metric: str, network: str = OWN) -> float:
        return mean_value(rows, metric, detector=f"minimise_{fit}_cross_entropy", network=network)

    parts: dict[str, bool] = {}
    for objective in OBJECTIVES:
        metric = f"{objective}_cross_entropy"
        others = {one: score(one, metric, SHARED if one == "conditional" else OWN) for one in OBJECTIVES}
        own = others.pop(objective)
        told = ", ".join(f"{name} {value:.3f}" for name, value in others.items())
        parts[
            f"{objective.capitalize()} cross-entropy by fit: {objective} {own:.3f}, {told}; asked: the first lowest"
        ] = own < min(others.values())
    soft, joint = score("conditional", "overconfidence", SHARED), score("joint", "overconfidence")
    parts[
        f"Overconfidence of the joint fit {joint:.3f} nats, of the conditional one {abs(soft):.3f}; asked: above 0.02 "
        "for the joint fit alone"
    ] = joint > 0.02 > abs(soft)
    at_star = [score("conditional", "entropy_at_star", SHARED), score("joint", "entropy_at_star")]
    parts[
        f"Entropy at the ambiguous point (0, -5): joint fit {at_star[1]:.3f} nats, conditional fit {at_star[0]:.3f}; "
        "asked: the first less than half"
    ] = at_star[1] < at_star[0] / 2
    return Judgement.of(parts | softmax_or_gaussians.judged(rows))


def _shown(fits: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    """The paper's fits, by objective."""
    return {fit: mixture for (fit, network), mixture in fits.items() if (fit, network) != ("conditional", OWN)}


def _levels(density: np.ndarray, shares: Sequence[float]) -> list[float]:
    """The densities above which so much of the mass lies."""
    ordered = np.sort(density, axis=None)[::-1]
    mass = ordered.cumsum() / ordered.sum()
    return [float(ordered[np.searchsorted(mass, share)]) for share in shares]
