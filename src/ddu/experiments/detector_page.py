"""The page of detectors: tables and figures of a file of rows, beside it."""

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ddu.errors import InputError
from ddu.experiments.detector_tables import to_csv, to_latex, to_markdown
from ddu.experiments.experiment import ROWS
from ddu.experiments.measure import SCORES, Subject
from ddu.experiments.ood_sets import set_name
from ddu.experiments.scores import Scores, file_name
from ddu.files import write_bytes
from ddu.metrics import RiskCoverage, risk_coverage
from ddu.report import corruption_figure, reliability_diagram, risk_coverage_figure, roc_figure, score_histogram
from ddu.results import Row, RowFile, latest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLES = {"table.md": to_markdown, "table.csv": to_csv, "table.tex": to_latex}
FIGURES = "figures"


def folder_of(rows: Path) -> Path:
    """Where what belongs to a file of rows is kept: beside `rows.csv`, and in the folder `NAME` beside `NAME.csv`."""
    return rows.parent if rows.stem == Path(ROWS).stem else rows.with_suffix("")


def write_report(file: str | os.PathLike[str], rows: Iterable[Row] | None = None) -> list[Path]:
    """Writes tables and, where matplotlib is installed, figures beside `rows.csv`, or to the folder `NAME` of NAME.csv.

    Score histograms, ROC and risk-coverage curves and reliability diagrams are made from the saved scores of each
    detector's first seed. Where there are several corrupted sets, one figure of the AUROC against severity, over all
    seeds, stands for them.

    Args:
        file: The rows of a `Comparison` or an `Evaluation`.
        rows: Those of them to report; by default all.

    Returns:
        What was written.
    """
    file = Path(file)
    folder = folder_of(file)
    rows = latest(RowFile(file).read() if rows is None else rows)
    contents = {folder / name: make(rows).encode() for name, make in TABLES.items()}
    if find_spec("matplotlib") is not None:
        for data in dict.fromkeys(row.data for row in rows):
            of_data = [row for row in rows if row.data == data]
            several = f" {set_name(data)}" if len(of_data) < len(rows) else ""
            for name, figure in _figures(of_data, folder / SCORES):
                contents[folder / FIGURES / f"{file_name(name + several)}.png"] = _as_png(figure)
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
    return list(contents)


def _figures(rows: Sequence[Row], folder: Path) -> Iterator[tuple[str, "Figure"]]:
    """Figures of one training set, and what to call them."""
    scores = _first_scores(rows, folder)
    corrupted = {(row.ood, row.severity) for row in rows if row.severity is not None}
    by_severity = _by_severity(rows) if len(corrupted) > 1 else None
    if by_severity is not None:
        yield "auroc by severity", by_severity
    # Curves for each corruption and severity would be hundreds
    ood = dict.fromkeys(_name(row) for row in rows if row.ood and (row.severity is None or len(corrupted) == 1))
    if scores:
        yield from _figures_of_scores(scores, rows[0].data, list(ood))


def _figures_of_scores(scores: Mapping[str, Scores], known: str, ood: Sequence[str]) -> Iterator[tuple[str, "Figure"]]:
    curves = {name: _curve(said) for name, said in scores.items()}
    yield f"risk-coverage {set_name(known)}", risk_coverage_figure(curves)
    for one in ood:
        asked = {name: said for name, said in scores.items() if one in said.ood}
        if asked:
            pairs = {name: (said.test.epistemic, said.ood[one].epistemic) for name, said in asked.items()}
            yield f"roc {set_name(one)}", roc_figure(pairs)
            curves = {name: _curve(said, one) for name, said in asked.items()}
            yield f"risk-coverage {set_name(one)}", risk_coverage_figure(curves)
    drawn: list[Scores] = []
    for name, said in scores.items():
        sets = {known: said.test, **{one: said.ood[one] for one in ood if one in said.ood}}
        yield f"scores {name}", score_histogram({set_name(one): judged.epistemic for one, judged in sets.items()}, name)
        # Detectors around one network share its probabilities
        if not any(torch.equal(said.logits, other.logits) for other in drawn):
            drawn.append(said)
            yield f"reliability {name}", reliability_diagram(said.probs, said.labels)


def _by_severity(rows: Sequence[Row]) -> "Figure | None":
    try:
        return corruption_figure(rows)
    except InputError:  # no corruption that all detectors have at every severity, so there is no mean to draw
        return None


def _first_scores(rows: Iterable[Row], folder: Path) -> dict[str, Scores]:
    """The scores of each detector, with the network in its name where it stands on several."""
    found: dict[tuple[str, str], Scores] = {}
    for row in rows:
        if (row.detector, row.network) not in found:
            subject = Subject(row.detector, row.network, row.data, row.seed, row.run, row.members)
            scores = Scores.load(subject.scores_folder(folder))
            if scores is not None:
                found[row.detector, row.network] = scores
    names = [detector for detector, _ in found]
    return {
        detector if names.count(detector) == 1 else f"{detector} on {network}": scores
        for (detector, network), scores in found.items()
    }


def _name(row: Row) -> str:
    """The OoD set of a row, as `ddu.data` calls it."""
    return f"{row.ood}" if row.severity is None else f"{row.ood}:{row.severity}"


def _curve(scores: Scores, ood: str | None = None) -> RiskCoverage:
    return risk_coverage(*scores.refusal(ood))


def _as_png(figure: "Figure") -> bytes:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return image.getvalue()
