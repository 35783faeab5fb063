"""`ddu reproduce`: the paper's tables and figures, one command each."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ddu.cli._layout import print_results
from ddu.experiments.experiment import ROWS
from ddu.experiments.two_moons import TwoMoons
from ddu.provenance import command
from ddu.results import tabulate

reproduce = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")


@reproduce.callback()
def _common() -> None:
    pass


@reproduce.command("two-moons")
def reproduce_two_moons(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for rows, table and figure; reuse it to resume.")
    ] = Path("results/two_moons"),
    seeds: Annotated[int, typer.Option(min=1, help="How many times, with seeds 0, 1, ...")] = 1,
) -> None:
    """Where is a network sure of itself? The paper's four panels on the two moons.

    Rows are appended to rows.csv as they are measured, and a seed that is there is not run again. The figure,
    panels.png, is that of seed 0.

    For example `ddu reproduce two-moons`, or `ddu reproduce two-moons --seeds 3 --output runs/moons`.
    """
    console, experiment = Console(), TwoMoons(seeds)
    with console.status("") as status:
        rows = experiment.measure(output, command=command(), say=status.update)
    for table in tabulate(rows):
        print_results(console, table)
    names = [ROWS, *(path.name for path in experiment.write_page(output))]
    console.print(f"{output} has {', '.join(names[:-1])} and {names[-1]}.", style="dim")
