"""Draws the pictures of docs/concepts.md from networks trained on the two moons.

    make concepts

Trains three networks on 1,200 points, in about a minute, and prints the numbers that the page has. With a folder as its
argument, the networks stay there, and those that are trained are not trained again.
"""

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import ddu
from ddu import data
from ddu.experiments.two_moons import NETWORKS
from ddu.files import write_bytes
from ddu.report import as_png
from ddu.report.figures import COLOURS, draw_histograms, dress, legend_above
from ddu.training import fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IMAGES = Path(__file__).parents[1] / "docs/images"
SMOOTH = "ResFFN, spectral norm"
RATE = 0.01
EPOCHS = 60
VERDICTS = (ddu.Verdict.IN_DISTRIBUTION, ddu.Verdict.AMBIGUOUS, ddu.Verdict.OUT_OF_DISTRIBUTION)


def split_moons() -> tuple[Any, Any, Any]:
    """Points to train on, held out and to test with: 1,200, 600 and 200."""
    moons = data.load("two_moons")
    train, rest = data.split(moons, 0.4, seed=0)
    held_out, test = data.split(moons.subset(rest), 0.25, seed=0)
    return moons.subset(train), moons.subset(rest).subset(held_out), moons.subset(rest).subset(test)


def train_network(name: str, moons: Any, folder: Path) -> nn.Module:
    """One of the networks of `ddu reproduce two-moons`."""
    architecture, options = NETWORKS[name]
    torch.manual_seed(0)
    model = ddu.create_model(architecture, num_classes=2, sensitive=False, **options)
    output = folder / name.replace(", ", "-").replace(" ", "-")
    return fit(model, moons, recipe="two_moons", epochs=EPOCHS, seed=0, output=output).model.eval()


def panels(count: int, width: float = 4.0) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * count, 3.4), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, count)))


def plane_figure(detector: Any, train: Any) -> "Figure":
    """Both uncertainties and the verdict all over the plane."""
    from matplotlib.colors import ListedColormap

    x, y = np.linspace(-2, 3, 160, dtype=np.float32), np.linspace(-2, 2.5, 160, dtype=np.float32)
    plane = torch.from_numpy(np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2))
    judged = detector.predict(plane)
    epistemic = judged.epistemic.numpy()
    maps = {
        "aleatoric: the entropy of the softmax": (judged.aleatoric.numpy(), "cividis"),
        # Ranks, since log-densities span orders of magnitude
        "epistemic: minus the log-density, by rank": (epistemic.argsort().argsort(), "cividis"),
        "the verdict": (
            np.array([VERDICTS.index(ddu.Verdict(verdict)) for verdict in judged.verdict]),
            ListedColormap(["#f4f4f4", COLOURS[1], "#5b6770"]),
        ),
    }
    figure, all_axes = panels(3)
    for axes, (title, (values, colours)) in zip(all_axes, maps.items(), strict=True):
        axes.pcolormesh(x, y, values.reshape(160, 160), cmap=colours, rasterized=True)
        for label, colour in enumerate(("#d9d9d9", "#111111")):
            axes.plot(*train.inputs[train.labels == label].T, ".", color=colour, markersize=1.5, alpha=0.5)
        axes.set(title=title, xticks=[], yticks=[])
    for place, verdict in (((0.03, 0.04), "out of distribution"), ((0.42, 0.52), "ambiguous")):
        colour = "white" if verdict.startswith("out") else "black"
        all_axes[2].text(*place, verdict, transform=all_axes[2].transAxes, color=colour, fontsize=9)
    return figure


def p_value_figure(detector: Any, test: Tensor, moved: Tensor) -> "Figure":
    """What a p-value counts, and how p-values of known and of moved points are spread."""
    held_out = detector.calibration.held_out.epistemic.double().numpy()
    score, end = np.quantile(held_out, [0.9, 0.97])  # the few far out share the last bar
    figure, (left, right) = panels(2, width=4.6)
    dress(left, "epistemic score of held-out points", "share of them")
    draw_histograms(left, {"held out": held_out}, held_out.min(), end)
    left.axvspan(score, end, color=COLOURS[1], alpha=0.25)
    left.axvline(score, color="black", linewidth=1)
    share = ((held_out >= score).sum() + 1) / (len(held_out) + 1)
    words = f"a new point:\np-value {share:.2f}"
    left.text(score, left.get_ylim()[1], words, ha="right", va="top", fontsize=9)
    dress(right, "p-value", "share of the points", percent_x=False)
    points = {"new points of the moons": test, "moons moved by 0.5": moved}
    p_values = {name: detector.predict(inputs).p_value.numpy() for name, inputs in points.items()}
    draw_histograms(right, p_values, 0.0, 1.0)
    legend_above(right)
    for name, values in p_values.items():
        print(f"{name}: {(values <= RATE).mean():.1%} have a p-value of at most {RATE}")
    return figure


def stretch_figure(stretches: dict[str, np.ndarray]) -> "Figure":
    """By how much each network stretches the distance of two points, on a logarithmic axis."""
    figure, (axes,) = panels(1, width=6.5)
    logarithms = {name: np.log10(stretch) for name, stretch in stretches.items()}
    everything = np.concatenate(list(logarithms.values()))
    dress(axes, "distance of features / distance of inputs", "share of the pairs")
    draw_histograms(axes, logarithms, everything.min(), everything.max())
    ticks = (0.3, 1, 3, 10, 30)
    axes.set_xticks(np.log10(ticks), [str(tick) for tick in ticks])
    legend_above(axes)
    return figure


def stretch(model: nn.Module, pairs: Sequence[Tensor]) -> np.ndarray:
    """Distance of the features over distance of the inputs, for each pair."""
    with torch.no_grad():
        first, second = (model.forward_features(points) for points in pairs)  # pyright: ignore[reportCallIssue]
    return ((first - second).norm(dim=1) / (pairs[0] - pairs[1]).norm(dim=1)).double().numpy()


def main() -> None:
    """Rewrites three pictures in docs/images."""
    torch.set_num_threads(1)
    train, held_out, test = split_moons()
    with contextlib.ExitStack() as stack:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(tempfile.TemporaryDirectory()))
        models = {name: train_network(name, train, folder) for name in NETWORKS}
    detector = ddu.DDU.paper(models[SMOOTH]).fit(data.loader(train)).calibrate(data.loader(held_out), RATE)
    generator = torch.Generator().manual_seed(0)
    points = 6 * torch.rand(20_000, 2, generator=generator) - torch.tensor([2.5, 3.0])
    stretches = {name: stretch(model, points.chunk(2)) for name, model in models.items()}
    for name, values in stretches.items():
        low, high = np.quantile(values, [0.001, 0.999])
        print(f"{name}: stretches distances by {low:.3g} to {high:.3g}, a ratio of {high / low:.3g}")
    new = torch.from_numpy(test.inputs)
    figures = {
        "two-uncertainties.png": plane_figure(detector, train),
        "p-value.png": p_value_figure(detector, new, new + 0.5),
        "stretch.png": stretch_figure(stretches),
    }
    for name, figure in figures.items():
        write_bytes(IMAGES / name, as_png(figure))


if __name__ == "__main__":
    main()
