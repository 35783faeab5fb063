"""`ddu report`: one page about a run, or about several."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ddu.cli._app import DataRoot
from ddu.cli._layout import say_dimly
from ddu.experiments import RunReport
from ddu.files import check_writable
from ddu.provenance import command
from ddu.sources import find_run


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="The folders that `ddu train` wrote: a run knows its test set and how it was trained. Ask `ddu "
            "doctor` about a fitted detector or a bundle.",
        ),
    ],
    ood: Annotated[
        list[str] | None,
        typer.Option(metavar="SET ...", help="Out-of-distribution sets, such as svhn, noise or folder:PATH."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
    samples: Annotated[int, typer.Option(min=1, help="Inputs in each gallery.")] = 8,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images of the OoD sets that cannot be read.")
    ] = False,
    data_root: DataRoot = None,
) -> None:
    """Write one page about a run, or about several side by side.

    The page has the configuration, training curves, tables, histograms of both uncertainties, ROC and risk-coverage
    curves, a reliability diagram, and the most ambiguous and the most unknown inputs as pictures. It is one file that
    loads nothing from elsewhere. Nothing is trained or fitted; the data of the runs is needed.

    For example

    `ddu report runs/mnist --ood fashion_mnist noise`

    `ddu report runs/lenet runs/resnet18 --ood fashion_mnist --output compared.html`
    """
    found = RunReport(tuple(map(find_run, runs)), tuple(ood or ()), samples, skip_bad)
    check_writable(output.absolute().parent)
    subjects = found.measure(data_root=data_root, say=say_dimly)
    page = found.write_page(subjects, output, command=command())
    Console().print(f"See it in a browser: {page}", markup=False, soft_wrap=True)
