"""`ddu active`: learning curves of acquisitions, on the paper's protocols."""

import io
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ddu.active import (
    METHODS,
    PROTOCOLS,
    CurvePoint,
    Protocol,
    curve_figure,
    curve_table,
    find_method,
    find_protocol,
    measure_curve,
)
from ddu.cli._layout import plain_table
from ddu.evaluation import RowFile
from ddu.files import write_bytes
from ddu.messages import check_name
from ddu.training import Recipe, check_writable, parse_changes


def active(
    data: Annotated[str, typer.Option(help=f"What to learn: {', '.join(PROTOCOLS)}.")],
    acquisition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME ...", help=f"Acquisition functions: {', '.join(METHODS)}. [default: density entropy random]"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many curves of each, with seeds 0, 1, ...")] = 1,
    scale: Annotated[
        Literal["paper", "cpu"], typer.Option(help="The paper's protocol, or the same reduced to minutes a curve.")
    ] = "cpu",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the rows, the figure and the table.")
    ] = Path("results"),
    until: Annotated[int | None, typer.Option(min=1, help="Labels to stop at. [default: the protocol's]")] = None,
    candidates: Annotated[
        int | None, typer.Option(min=1, help="Samples of the pool considered in a round. [default: the scale's]")
    ] = None,
    leave_out_above: Annotated[
        float | None,
        typer.Option(
            metavar="QUANTILE",
            help="Leave out candidates above this quantile of the detector's uncertainty: "
            "with density or an ensemble what is far out, with entropy what is most ambiguous.",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE ...", help="Change fields of the recipe, such as epochs=3."),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="The folder of all data sets. [default: $DDU_DATA, else the cache]")
    ] = None,
) -> None:
    """Learn from few labels, and compare acquisition functions.

    Each round trains fresh networks, tests them, and acquires the samples that the acquisition finds most worth a
    label. Rows are appended to active_DATA.csv a round at a time. Press Ctrl-C at any time: the same command goes on
    where it was, to the same curves.

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
    names = list(dict.fromkeys(acquisition or ["density", "entropy", "random"]))
    for name in names:
        find_method(name, leave_out_above)
    check_writable(output)
    file, console = RowFile(output / f"active_{data}.csv", CurvePoint), Console()
    command = shlex.join(["ddu", *sys.argv[1:]])
    with _shown(protocol) as show:
        # Seeds outermost: whenever it is stopped, every acquisition has about as many
        for seed in range(seeds):
            for name in names:
                points = measure_curve(
                    protocol,
                    name,
                    seed,
                    file,
                    leave_out_above=leave_out_above,
                    data_root=data_root,
                    command=command,
                    on_stage=lambda stage, name=name, seed=seed: show.stage(name, seed, stage),
                )
                for point in points:
                    show.point(point)
    _report(console, file, output, data)


def _report(console: Console, file: RowFile[CurvePoint], output: Path, data: str) -> None:
    points, image = file.read(), io.BytesIO()
    curve_figure(points).savefig(image, format="png", dpi=110)
    write_bytes(output / f"active_{data}.png", image.getvalue())
    table = curve_table(points)
    write_bytes(output / f"active_{data}.md", table.to_markdown().encode())
    shown = plain_table(table.title, *table.heading)
    for column in shown.columns[:2]:
        column.no_wrap = True  # names; numbers may take two lines
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
    console.print(f"{file.path} has the rows, active_{data}.png the curves, active_{data}.md this table.", style="dim")


class _Progress:
    """Where each curve is: a live table on a terminal, a line a round elsewhere."""

    def __init__(self, console: Console, protocol: Protocol):
        self.console = console
        self.until = protocol.until
        self.live: Live | None = None
        self.latest: dict[tuple[str, int], CurvePoint] = {}
        self.seconds: dict[tuple[str, int], list[float]] = {}
        self.doing = ""
        self.since = time.monotonic()

    def stage(self, acquisition: str, seed: int, stage: str) -> None:
        self.doing, self.since = f"{acquisition}, seed {seed}: {stage}", time.monotonic()

    def point(self, point: CurvePoint) -> None:
        curve = (point.acquisition, point.seed)
        self.latest[curve] = point
        self.seconds.setdefault(curve, []).append(point.seconds)
        if self.live is None:
            share = "" if point.ambiguous is None else f", {point.ambiguous:.0%} ambiguous"
            self.console.print(
                f"{point.acquisition}, seed {point.seed}: {point.labels:,} of {self.until:,} labels, accuracy "
                f"{point.accuracy:.1%}{share}, {point.seconds:.1f} s",
                style="dim",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False, caption_justify="left")
        for column in ("acquisition", "seed", "labels", "accuracy", "ambiguous", "s a round"):
            table.add_column(column, justify="left" if column == "acquisition" else "right")
        for (acquisition, seed), point in self.latest.items():
            recent = self.seconds[acquisition, seed][-5:]
            table.add_row(
                acquisition,
                str(seed),
                f"{point.labels:,} of {self.until:,}",
                f"{point.accuracy:.1%}",
                "" if point.ambiguous is None else f"{point.ambiguous:.0%}",
                f"{sum(recent) / len(recent):.1f}",
            )
        table.caption = f"{self.doing}, {time.monotonic() - self.since:.0f} s" if self.doing else None
        return table


@contextmanager
def _shown(protocol: Protocol) -> Iterator[_Progress]:
    console = Console(stderr=True)
    progress = _Progress(console, protocol)
    if not console.is_terminal:
        yield progress
        return
    with Live(progress, console=console, refresh_per_second=4, transient=True) as live:
        progress.live = live
        yield progress
