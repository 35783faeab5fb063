"""`ddu active`: learning curves of acquisition functions, on the paper's protocols."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.table import Table

from ddu.active import list_acquisition_functions
from ddu.cli._app import DataRoot, Engine, WorkerCpus, WorkerGpus, make_engine
from ddu.engines import using
from ddu.experiments.active_protocols import PROTOCOLS, find_protocol
from ddu.experiments.learning_curves import LearningCurves
from ddu.messages import check_name
from ddu.provenance import command
from ddu.results import Row
from ddu.training import Recipe, parse_changes

_DEFAULT = ("density", "entropy", "random")


def active(
    data: Annotated[str, typer.Option(help=f"The data: {', '.join(PROTOCOLS)}.")],
    acquisition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME ...",
            help=f"Acquisition functions: {', '.join(list_acquisition_functions())}. [default: {' '.join(_DEFAULT)}]",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Curves per acquisition function, with seeds 0, 1, ...")] = 1,
    scale: Annotated[
        Literal["paper", "cpu"], typer.Option(help="The paper's protocol, or the same reduced to minutes per curve.")
    ] = "cpu",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for rows, figure, table and the states to resume from. [default: results/active_DATA]",
        ),
    ] = None,
    until: Annotated[int | None, typer.Option(min=1, help="Labels to stop at. [default: the protocol's]")] = None,
    candidates: Annotated[
        int | None, typer.Option(min=1, help="Samples of the pool to consider per round. [default: the scale's]")
    ] = None,
    exclude_above: Annotated[
        float | None,
        typer.Option(
            metavar="QUANTILE",
            help="Exclude candidates above this quantile of the detector's uncertainty: with density or an ensemble "
            "the outliers, with entropy the most ambiguous samples.",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE ...", help="Change fields of the recipe, such as epochs=3."),
    ] = None,
    engine: Engine = "local",
    worker_cpus: WorkerCpus = 1,
    worker_gpus: WorkerGpus = 0,
    data_root: DataRoot = None,
) -> None:
    """Learn from few labels, and compare acquisition functions.

    Each round trains fresh networks, tests them, and acquires labels for the samples that the acquisition function
    chooses. Rows are appended to rows.csv after each round. Press Ctrl-C at any time: the same command resumes, to the
    same curves. With --engine ray, each curve is a task of its own.

    For example

    `ddu active --data digits --acquisition density entropy random`

    `ddu active --data dirty_mnist --acquisition density ensemble_mi entropy random --seeds 3`
    """
    given = {"until": until, "candidates": candidates}
    recipe_changes = parse_changes(changes or [])
    for name in recipe_changes:
        check_name(name, [one.name for one in fields(Recipe)], "A recipe has no field {name!r}")
    protocol = find_protocol(
        data, scale, **{name: value for name, value in given.items() if value is not None}, **recipe_changes
    )
    names = tuple(dict.fromkeys(acquisition or _DEFAULT))
    curves = LearningCurves(protocol, names, tuple(range(seeds)), exclude_above)
    folder, console = output or Path("results") / f"active_{data}", Console()
    with using(make_engine(engine, worker_cpus, worker_gpus)), _shown(protocol.until) as show:
        for rows in curves.rounds(folder, data_root=data_root, command=command(), say=show.stage):
            show.round(rows)
    written = [path.name for path in curves.write_page(folder)]
    console.print(Markdown((folder / "table.md").read_text()))
    console.print(f"{folder} has rows.csv, {' and '.join(written)}.", style="dim", soft_wrap=True)


class _Progress:
    """The progress of each curve: a live table on a terminal, a line per round elsewhere."""

    def __init__(self, console: Console, until: int):
        self.console = console
        self.until = until
        self.live: Live | None = None
        self.rounds: dict[tuple[str, int], list[dict[str | None, float]]] = {}  # of each curve, the values by metric
        self.doing = ""
        self.since = time.monotonic()

    def stage(self, words: str) -> None:
        self.doing, self.since = words, time.monotonic()

    def round(self, rows: list[Row]) -> None:
        first, values = rows[0], {row.metric: row.value for row in rows if row.value is not None}
        values["labels"] = first.labels or 0
        self.rounds.setdefault((first.detector, first.seed), []).append(values)
        if self.live is None:
            share = f", {values['ambiguous_share']:.0%} ambiguous" if "ambiguous_share" in values else ""
            self.console.print(
                f"{first.detector}, seed {first.seed}: {values['labels']:,} of {self.until:,} labels, accuracy "
                f"{values['accuracy']:.1%}{share}, {values['round_seconds']:.1f} s",
                style="dim",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False, caption_justify="left")
        for column in ("acquisition", "seed", "labels", "accuracy", "ambiguous", "s per round"):
            table.add_column(column, justify="left" if column == "acquisition" else "right")
        for (acquisition, seed), rounds in self.rounds.items():
            last, recent = rounds[-1], [values["round_seconds"] for values in rounds[-5:]]
            table.add_row(
                acquisition,
                str(seed),
                f"{last['labels']:,} of {self.until:,}",
                f"{last['accuracy']:.1%}",
                f"{last['ambiguous_share']:.0%}" if "ambiguous_share" in last else "",
                f"{sum(recent) / len(recent):.1f}",
            )
        table.caption = f"{self.doing}, {time.monotonic() - self.since:.0f} s" if self.doing else None
        return table


@contextmanager
def _shown(until: int) -> Iterator[_Progress]:
    console = Console(stderr=True)
    progress = _Progress(console, until)
    if not console.is_terminal:
        yield progress
        return
    with Live(progress, console=console, refresh_per_second=4, transient=True) as live:
        progress.live = live
        yield progress
