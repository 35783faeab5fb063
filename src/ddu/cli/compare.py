"""`ddu compare`: detectors x OoD sets x seeds."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ddu import comparison
from ddu.cli._layout import print_report
from ddu.comparison import read_comparison


def compare(
    config: Annotated[Path, typer.Argument(help="What to compare, in YAML; examples/compare_mnist.yaml explains it.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder of the comparison; the same one goes on with it.")
    ],
    workers: Annotated[
        int, typer.Option(min=1, help="Networks trained at the same time; their times are then not those of one.")
    ] = 1,
    data_root: Annotated[
        Path | None, typer.Option(help="The folder of all data sets. [default: $DDU_DATA, else the cache]")
    ] = None,
) -> None:
    """Compare detectors on the same data, from training to a table.

    Networks are trained once and shared, features are extracted once and shared. Press Ctrl-C at any time: the same
    command goes on where it was, to the same rows. What fails is a row that says so.

    For example `ddu compare examples/compare_mnist.yaml --output runs/compare`
    """
    plan = read_comparison(config)
    rows = comparison.compare(
        plan,
        output,
        data_root=data_root,
        workers=workers,
        command=shlex.join(["ddu", *sys.argv[1:]]),
        say=lambda words: Console(stderr=True).print(words, style="dim", markup=False),
    )
    print_report(Console(), rows, output / "rows.csv", ["scores", "networks"])
