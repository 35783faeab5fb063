"""`ddu reproduce`: the paper's tables and figures, one command each."""

import io
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ddu.cli._layout import print_results
from ddu.results import RowFile, tabulate
from ddu.experiments import two_moons
from ddu.files import write_bytes
from ddu.training import check_writable

reproduce = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")


@reproduce.callback()
def _common() -> None:
    pass


@reproduce.command("two-moons")
def reproduce_two_moons(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the rows and the figure.")] = Path(
        "results"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="How many times, with seeds 0, 1, ...")] = 1,
) -> None:
    """Where is a network sure of itself? The paper's four panels on the two moons.

    Rows are appended to two_moons.csv as they are measured, and a seed that is there is not run again. The figure,
    two_moons.png, is that of the last seed that was run.

    For example `ddu reproduce two-moons`, or `ddu reproduce two-moons --seeds 3 --output runs/moons`.
    """
    check_writable(output)
    console, rows = Console(), RowFile(output / "two_moons.csv")
    command = shlex.join(["ddu", *sys.argv[1:]])
    have = {row.seed for row in rows.read()}
    for seed in [seed for seed in range(seeds) if seed not in have]:
        with console.status("") as status:
            result = two_moons.run(
                seed, progress=lambda stage, seed=seed: status.update(f"seed {seed}: {stage[0].lower()}{stage[1:]}")
            )
        image = io.BytesIO()
        two_moons.draw(result).savefig(image, format="png", dpi=110)
        write_bytes(output / "two_moons.png", image.getvalue())
        rows.append(two_moons.to_rows(result, seed, command))
    for table in tabulate(rows.read()):
        print_results(console, table)
    console.print(f"{rows.path} has the rows, {output / 'two_moons.png'} the four panels.", style="dim")
