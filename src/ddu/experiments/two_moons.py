"""Two moons: where is a network sure of itself?

    ddu reproduce two-moons          about two minutes on two cores

2,000 points on two half circles, noise 0.1. The paper's four panels: the softmax entropy of a single network and the
predictive entropy of an ensemble are high along the boundary between the classes only; the feature density of a
residual network with spectral norm is high on the data and low everywhere else; that of a network without residual
connections (FC-Net) is not.

In numbers: the AUROC that tells the data from a grid of points further than three deviations of the noise away from it.
Different from the paper: the single network and the ensemble are trained for 150 epochs, as its text says.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddu import data
from ddu.detectors import DDU
from ddu.measures import entropy
from ddu.metrics import auroc
from ddu.models import create_model
from ddu.training import fit

NOISE = 0.1
FAR = 3 * NOISE
MEMBERS = 3
# The window of the panels
_X, _Y = (-2.5, 3.5), (-3.0, 3.0)

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "ResFFN, spectral norm": ("resffn4_128", {"spectral_norm": 0.65, "power_steps": 5}),
    "ResFFN": ("resffn4_128", {"spectral_norm": None}),
    "FC-Net": ("fc_net4_128", {"spectral_norm": None}),
}

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
    points = torch.from_numpy(moons.inputs)
    x, y = np.linspace(*_X, grid, dtype=np.float32), np.linspace(*_Y, grid, dtype=np.float32)
    plane = torch.from_numpy(np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2))
    # Rounded so that it is a matter of geometry alone, whatever the last digit
    far = torch.cdist(plane, points).amin(1) > FAR

    def train(kind: str, seed: int) -> nn.Module:
        name, options = NETWORKS[kind]
        torch.manual_seed(seed)
        model = create_model(name, num_classes=2, **options)
        return fit(model, moons, recipe="two_moons", epochs=epochs, seed=seed, progress=False).model

    def measured(network: str, measure: str, uncertainty: Callable[[Tensor], Tensor]) -> Panel:
        on_plane = uncertainty(plane)
        value = auroc(uncertainty(points), on_plane[far])
        return Panel(network, measure, on_plane.reshape(grid, grid).numpy(), value)

    def panels() -> Iterator[Panel]:
        models = []
        for kind in NETWORKS:
            progress(f"Train {kind}")
            models.append(train(kind, seed))
            detector = DDU(models[-1]).fit([(points, torch.from_numpy(moons.labels))])
            yield measured(kind, "softmax entropy", lambda z, detector=detector: detector.predict(z).aleatoric)
            yield measured(kind, "feature density", lambda z, detector=detector: detector.predict(z).epistemic)
        members = [models[1]]
        for member in range(1, MEMBERS):
            progress(f"Train member {member + 1} of {MEMBERS}")
            members.append(train("ResFFN", seed + member))
        with torch.no_grad():
            yield measured(f"{MEMBERS}-ensemble", "predictive entropy", lambda z: _predictive_entropy(members, z))

    return TwoMoons(moons.inputs, moons.labels, x, y, list(panels()))


def _predictive_entropy(members: list[nn.Module], inputs: Tensor) -> Tensor:
    """Entropy of the mean of the members' probabilities."""
    log_probs = torch.stack([model(inputs).log_softmax(1) for model in members]).logsumexp(0)
    return entropy(log_probs)
