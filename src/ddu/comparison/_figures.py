"""Figures of a comparison, from the scores that it saved."""

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ddu.comparison._record import file_name
from ddu.comparison._scores import Scores
from ddu.files import write_bytes
from ddu.metrics import risk_coverage
from ddu.report import reliability_diagram, risk_coverage_figure, roc_figure, score_histogram

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_scores(scores: Mapping[str, Scores], known: str, ood: Sequence[str], folder: Path) -> list[Path]:
    """Draws score histograms, ROC and risk-coverage curves and reliability diagrams into a folder.

    Args:
        scores: What each detector says, by its name.
        known: The name of the training data.
        ood: The OoD sets to draw.
        folder: Where the figures go, as PNG.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in _figures(scores, known, ood):
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=110)
        path = folder / f"{file_name(name)}.png"
        write_bytes(path, image.getvalue())
        written.append(path)
    return written


def _figures(scores: Mapping[str, Scores], known: str, ood: Sequence[str]) -> Iterator[tuple[str, "Figure"]]:
    for one in ood:
        yield (
            f"roc {one}",
            roc_figure({name: (said.test.epistemic, said.ood[one].epistemic) for name, said in scores.items()}),
        )
    for one in (None, *ood):
        curves = {name: risk_coverage(*said.refusal(one)) for name, said in scores.items()}
        yield f"risk-coverage {one or known}", risk_coverage_figure(curves)
    drawn: list[Scores] = []
    for name, said in scores.items():
        sets = {known: said.test, **{one: said.ood[one] for one in ood}}
        yield f"scores {name}", score_histogram({one: judged.epistemic for one, judged in sets.items()}, name)
        # Detectors around one network share its probabilities
        if not any(torch.equal(said.logits, other.logits) for other in drawn):
            drawn.append(said)
            yield f"reliability {name}", reliability_diagram(said.probs, said.labels)
