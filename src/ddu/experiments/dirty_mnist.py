"""Figure 1 of the paper: clean and ambiguous digits, and clothes, by softmax entropy and by feature density.

    ddu reproduce dirty-mnist

Dirty-MNIST has MNIST and Ambiguous-MNIST, both with noise. Fashion-MNIST is shown as it is, since the paper does not
say otherwise, and with the same noise (`noisy:fashion_mnist`), so that noise alone separates nothing; the second
decides. Besides AUROCs against both: how well each score tells ambiguous digits from clean ones, which the entropy
should, and the density should not.

Its folder has that of a comparison, arrays.npz (which test inputs are ambiguous) and histograms.png.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddu import data
from ddu.data.registry import Root
from ddu.experiments.compare import Comparison
from ddu.experiments.detector_page import summarise
from ddu.experiments.experiment import ROWS
from ddu.experiments.measure import SCORES
from ddu.experiments.ood_tables import DENSITY, ENTROPY
from ddu.experiments.reproduction import Judgement, mean_value, only_one
from ddu.experiments.scores import Scores, scores_folder, set_name
from ddu.experiments.seeds import ARRAYS, read_arrays
from ddu.experiments.trained import shown_rows
from ddu.files import FilePath, write_arrays, write_bytes
from ddu.messages import require
from ddu.metrics import auroc
from ddu.report import as_png
from ddu.report.figures import draw_histograms, dress, score_range
from ddu.results import Row, RowFile, Table, latest, source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE, AMBIGUOUS = "histograms.png", "ambiguous"
_METRIC = "auroc_ambiguous"

# The clean part of a set, which comes first in it
_CLEAN = {"dirty_mnist": "mnist", "dirty_mnist_5k": "mnist_5k"}


@dataclass(frozen=True)
class DirtyMnist(Comparison):
    """A comparison on clean and ambiguous digits; the last OoD set has the noise of the digits."""

    def measure(self, folder: FilePath, *, data_root: Root = None, command: str = "", **options: Any) -> list[Row]:
        """Measures the detectors, and how their scores tell ambiguous digits from clean ones; see `Comparison`."""
        rows = super().measure(folder, data_root=data_root, command=command, **options)
        file, ambiguous = RowFile(Path(folder) / ROWS), self._ambiguous(data_root)
        write_arrays(Path(folder) / ARRAYS, {AMBIGUOUS: ambiguous})
        done = {row.key for row in rows}
        for row, scores in _scores(rows, Path(folder)):
            value = auroc(scores.test.epistemic[~ambiguous], scores.test.epistemic[ambiguous])
            facts: dict[str, Any] = source(command)
            new = replace(row, ood=None, metric=_METRIC, value=value, **facts)
            if new.key not in done:
                file.append([new])
        return self._own(file)

    def write_page(self, folder: FilePath) -> list[Path]:
        """Writes the histograms of the first seed; without the scores of every network, they stay as they are."""
        folder = Path(folder)
        rows = [row for row in self._own(RowFile(folder / ROWS)) if row.seed == self.seeds[0]]
        density = {row.network: scores for row, scores in _scores(rows, folder) if row.detector == DENSITY}
        measured = {row.network for row in rows if row.detector == DENSITY and row.status == "ok"}
        if measured and measured == density.keys():
            write_bytes(folder / FIGURE, as_png(draw(density, read_arrays(folder)[AMBIGUOUS], self.ood[-1])))
        return [folder / FIGURE] if (folder / FIGURE).is_file() else []

    def _ambiguous(self, data_root: Root) -> np.ndarray:
        """Whether each test input that is shown is an ambiguous digit."""
        test, clean = (data.load(name, "test", root=data_root) for name in (self.data, _CLEAN[self.data]))
        return shown_rows(test, self.inputs) >= len(clean)


def draw(scores: Mapping[str, Scores], ambiguous: np.ndarray, ood: str) -> "Figure":
    """Entropy above, minus the log-density below, a column per network: clean, ambiguous, and out of distribution.

    Args:
        scores: Of the density of each network.
        ambiguous: Which test inputs are ambiguous, (input,).
        ood: The OoD set to show.
    """
    figure_module = require("matplotlib.figure", extra="report", purpose="ddu reproduce dirty-mnist")
    figure = figure_module.Figure(figsize=(4 * len(scores), 5.4), layout="constrained")
    panels = figure.subplots(2, len(scores), squeeze=False)
    for column, (network, said) in enumerate(scores.items()):
        for axes, label, kind in zip(
            panels[:, column], ("softmax entropy, nats", "− log density"), ("aleatoric", "epistemic"), strict=True
        ):
            test, unknown = (getattr(one, kind).double().numpy() for one in (said.test, said.ood[ood]))
            values = {"clean": test[~ambiguous], "ambiguous": test[ambiguous], set_name(ood): unknown}
            dress(axes, label, "share of the set")
            # Log-densities of what is out of distribution lie far out: the digits set the scale, but for a few
            digits = test.clip(*np.quantile(test, [0.01, 0.99]))
            draw_histograms(axes, values, *score_range({"test": digits, **values}))
        panels[0, column].set_title(network, fontsize=10)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return figure


def tables(rows: Sequence[Row]) -> list[Table]:
    """What the paper's table has, and the AUROC of ambiguous against clean digits."""
    return summarise(rows, ["accuracy", "ece", "auroc", _METRIC])


def judge(rows: Sequence[Row]) -> Judgement:
    """Whether entropy knows what is ambiguous and density what is unknown, on a regularised network alone."""
    sets = dict.fromkeys(row.ood for row in rows if row.ood is not None)
    noisy = only_one((name for name in sets if name.startswith("noisy:")), "OoD set with noise")
    networks = list(dict.fromkeys(row.network for row in rows))
    smooth = only_one((name for name in networks if name.endswith("+sn")), "network with spectral norm")
    density = {name: mean_value(rows, "auroc", network=name, detector=DENSITY, ood=noisy) for name in networks}
    entropy = {name: mean_value(rows, "auroc", network=name, detector=ENTROPY, ood=noisy) for name in networks}
    doubt = {name: mean_value(rows, _METRIC, network=name, detector=ENTROPY) for name in networks}
    confused = mean_value(rows, _METRIC, network=smooth, detector=DENSITY)
    rest = {name: density[name] for name in networks if name != smooth}
    return Judgement.of(
        {
            f"AUROC of the density of {smooth} against {noisy} {density[smooth]:.2%}; asked: at least 99 %": (
                density[smooth] >= 0.99
            ),
            f"The same of other networks: {_listed(rest)}; asked: all lower by at least five per cent": all(
                value <= density[smooth] - 0.05 for value in rest.values()
            ),
            f"The same of the entropy: {_listed(entropy)}; asked: all below 95 %": max(entropy.values()) < 0.95,
            f"AUROC of the entropy, ambiguous from clean digits: {_listed(doubt)}; asked: all at least 90 %": (
                min(doubt.values()) >= 0.9
            ),
            f"The same of the density of {smooth} {confused:.2%}; asked: at most half as far from chance as its "
            "entropy": abs(confused - 0.5) <= abs(doubt[smooth] - 0.5) / 2,
        }
    )


def _scores(rows: Iterable[Row], folder: Path) -> Iterator[tuple[Row, Scores]]:
    """Each detector, by one of its rows, and what it says of each input."""
    firsts = {(row.detector, row.network, row.members, row.seed): row for row in latest(rows) if row.status == "ok"}
    for row in firsts.values():
        scores = Scores.load(scores_folder(folder / SCORES, row))
        if scores is not None:
            yield row, scores


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2%}" for name, value in values.items())
