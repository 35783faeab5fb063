"""What a comparison has found, for people: `table.md` and figures in its folder."""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ddu.comparison._compare import make_recorder, subject
from ddu.comparison._config import Comparison
from ddu.comparison._record import Subject, file_name
from ddu.comparison._scores import Scores
from ddu.comparison._tables import to_markdown
from ddu.evaluation import latest
from ddu.files import write_bytes
from ddu.metrics import RiskCoverage, risk_coverage
from ddu.report import reliability_diagram, risk_coverage_figure, roc_figure, score_histogram

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE, FIGURES = "table.md", "figures"


def write_report(comparison: Comparison, output: str | os.PathLike[str]) -> list[Path]:
    """Writes tables and, where matplotlib is installed, figures to the folder of a comparison.

    The figures are those of the first seed: score histograms, ROC and risk-coverage curves, reliability diagrams.

    Returns:
        The files.
    """
    folder = Path(output)
    recorder, table = make_recorder(comparison, folder), folder / TABLE
    write_bytes(table, to_markdown(latest(recorder.rows.read())).encode())
    subjects = [subject(comparison, entry, comparison.seeds[0]) for entry in comparison.detectors]
    found = {_short_name(one, subjects): recorder.read_scores(one) for one in subjects}
    scores = {name: said for name, said in found.items() if said is not None}
    written = [table]
    if scores and find_spec("matplotlib") is not None:
        (folder / FIGURES).mkdir(exist_ok=True)
        for name, figure in _figures(scores, comparison.data, comparison.ood):
            image, path = io.BytesIO(), folder / FIGURES / f"{file_name(name)}.png"
            figure.savefig(image, format="png", dpi=110)
            write_bytes(path, image.getvalue())
            written.append(path)
    return written


def _figures(scores: Mapping[str, Scores], known: str, ood: Sequence[str]) -> Iterator[tuple[str, "Figure"]]:
    """Figures and what to call them."""
    yield f"risk-coverage {_stem(known)}", risk_coverage_figure({name: _curve(said) for name, said in scores.items()})
    for one in ood:
        asked = {name: said for name, said in scores.items() if one in said.ood}
        if asked:
            pairs = {name: (said.test.epistemic, said.ood[one].epistemic) for name, said in asked.items()}
            yield f"roc {_stem(one)}", roc_figure(pairs)
            curves = {name: _curve(said, one) for name, said in asked.items()}
            yield f"risk-coverage {_stem(one)}", risk_coverage_figure(curves)
    drawn: list[Scores] = []
    for name, said in scores.items():
        sets = {known: said.test, **{one: said.ood[one] for one in ood if one in said.ood}}
        yield f"scores {name}", score_histogram({_stem(one): judged.epistemic for one, judged in sets.items()}, name)
        # Detectors around one network share its probabilities
        if not any(torch.equal(said.logits, other.logits) for other in drawn):
            drawn.append(said)
            yield f"reliability {name}", reliability_diagram(said.probs, said.labels)


def _curve(scores: Scores, ood: str | None = None) -> RiskCoverage:
    return risk_coverage(*scores.refusal(ood))


def _short_name(one: Subject, among: Sequence[Subject]) -> str:
    """The detector's name, with the network's where the detector stands on several."""
    alone = sum(other.detector == one.detector for other in among) == 1
    return one.detector if alone else f"{one.detector} on {one.network}"


def _stem(name: str) -> str:
    """The name of a set; of one that is a path, the name of its file or folder."""
    return Path(name).stem if os.sep in name else name
