"""The paper's own tables, every number of them, to stand beside ours. They are kept in `paper_tables.json`."""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ddu.results.metrics import describe

_FILE = Path(__file__).with_name("paper_tables.json")


@dataclass(frozen=True)
class PaperFigure:
    """One number of the paper, in the units of our rows: shares are between 0 and 1.

    Attributes:
        table: The label of its table in the paper's LaTeX.
        detectors: Our names for the detectors that it is given for; a network's accuracy is that of all its scores,
            and an AUROC is that of the paper's own detector, `ddu_paper`.
        network: Our name for the network, with "+sn" where it has spectral norm.
        data: The training data.
        ood: The out-of-distribution data; None for what is measured in distribution.
        metric: What was measured.
        mean: The mean over the runs.
        standard_error: What the paper prints after ±, which in its code is the standard error of the mean.
        members: How many networks an ensemble has; 1 for a single one.
        subset: The share of the training data that was used, where not all of it.
        bold: Whether the paper prints it in bold, among the best of its column.
    """

    table: str
    detectors: tuple[str, ...]
    network: str
    data: str
    ood: str | None
    metric: str
    mean: float
    standard_error: float | None
    members: int = 1
    subset: float | None = None
    bold: bool = False


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Attributes:
        label: Its label in the paper's LaTeX.
        part: "main text" or "appendix".
        caption: What it shows, in our words.
        runs: Over how many runs the paper says it averages.
        note: What a reader should know about the numbers.
        figures: The numbers, row by row.
    """

    label: str
    part: str
    caption: str
    runs: int | None
    note: str | None
    figures: tuple[PaperFigure, ...]


@cache
def paper_tables() -> tuple[PaperTable, ...]:
    """All tables of the paper, in its order.

    >>> [table.label for table in paper_tables() if table.part == "main text"]
    ['table:ood_wrn', 'table:ood_imagenet']
    """
    tables = json.loads(_FILE.read_text(encoding="utf-8"))["tables"]
    return tuple(
        PaperTable(**table | {"figures": tuple(_figure(table["label"], figure) for figure in table["figures"])})
        for table in tables
    )


def paper_figure(
    detector: str,
    network: str,
    data: str,
    metric: str,
    *,
    ood: str | None = None,
    members: int | None = None,
    subset: float | None = None,
) -> PaperFigure | None:
    """The paper's number for one of our measurements, or None if it has none. The arguments are those of a `Row`.

    Where several tables have it, they agree, and the first is given. Without `members` an ensemble of any size will do.

    >>> paper_figure("ddu_paper", "wide_resnet28_10+sn", "cifar10", "auroc", ood="svhn").mean
    0.9786
    """
    for figure in _by_question().get((detector, network, data, metric, ood, subset), ()):
        if members in (None, figure.members):
            return figure
    return None


@cache
def _by_question() -> dict[tuple[str | float | None, ...], list[PaperFigure]]:
    found: dict[tuple[str | float | None, ...], list[PaperFigure]] = {}
    for table in paper_tables():
        for figure in table.figures:
            for detector in figure.detectors:
                question = (detector, figure.network, figure.data, figure.metric, figure.ood, figure.subset)
                found.setdefault(question, []).append(figure)
    return found


def _figure(table: str, printed: dict[str, Any]) -> PaperFigure:
    figure = PaperFigure(**printed | {"table": table, "detectors": tuple(printed["detectors"])})
    if not describe(figure.metric).share:
        return figure
    return replace(figure, mean=_share(figure.mean), standard_error=_share(figure.standard_error))


def _share(percent: float | None) -> Any:
    # 93.71 per cent is 0.9371, not 0.9370999999999999
    return None if percent is None else round(percent / 100, 10)
