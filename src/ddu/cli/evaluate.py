"""`ddu evaluate`: detectors around the network of a run."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ddu.cli._app import DataRoot
from ddu.cli._layout import print_report, say_dimly
from ddu.detectors import list_methods
from ddu.experiments import Evaluation
from ddu.provenance import command
from ddu.sources import find_run


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder that `ddu train` wrote.")],
    ood: Annotated[
        list[str],
        typer.Option(metavar="SET ...", help="Out-of-distribution sets, such as svhn, cifar10_c:fog or folder:PATH."),
    ],
    detectors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME ...",
            help=f"Of {', '.join(list_methods())}. [default: ddu softmax energy mahalanobis, or the run's own]",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file for rows, .csv or .jsonl. [default: RUN/rows.csv]")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images of the OoD sets that cannot be read.")
    ] = False,
    data_root: DataRoot = None,
) -> None:
    """Put detectors around a trained network, and measure them.

    Each is fitted and calibrated on the data of the run, and asked about its test set and the OoD sets: how well they
    are told apart, how right and how well calibrated predictions are, how many false alarms there are, and what it
    costs. Rows that are in the file are not measured again. Tables and figures are written beside rows.csv, those of
    another NAME.csv to the folder NAME.

    For example

    `ddu evaluate runs/mnist --ood fashion_mnist`

    `ddu evaluate runs/cifar10 --ood svhn cifar100 --detectors ddu softmax energy --output results/cifar10.csv`
    """
    evaluation = Evaluation(find_run(run), tuple(ood), tuple(detectors or ()), skip_bad)
    rows = evaluation.measure(output, data_root=data_root, command=command(), say=say_dimly)
    print_report(Console(), rows, evaluation.rows_file(output), evaluation.write_page(output))
