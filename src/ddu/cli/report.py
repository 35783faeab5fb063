"""`ddu report`: one page about a detector, or about several."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ddu.cli._app import DataRoot, DetectorFolder
from ddu.cli._layout import say_dimly
from ddu.errors import InputError
from ddu.experiments import ReportedSource, RunReport
from ddu.files import check_writable
from ddu.provenance import command
from ddu.runs import Run, load_run
from ddu.runs.run import RUN
from ddu.sources import open_source


def report(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="The folders of runs, which know their test sets; or with --data the folder of a detector that `ddu "
            "fit` wrote around a network of timm or torchvision, or with --detector also module:function, which "
            "returns your network.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Data with labels to test on what is no run, such as cifar10, folder:PATH or npz:PATH: its test "
            "split, or all of it. It should be neither trained nor calibrated on."
        ),
    ] = None,
    detector: DetectorFolder = None,
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
    """Write one page about a detector, or about several side by side.

    The page has the configuration, training curves, tables, histograms of both uncertainties, ROC and risk-coverage
    curves, a reliability diagram, the doctor's findings, and the most ambiguous and the most unknown inputs as
    pictures. It is one file that loads nothing from elsewhere. Nothing is trained or fitted.

    The data of a run is needed. A network from elsewhere has no training curves, and is tested on --data. An exported
    bundle gives no logits: name what it was exported from.

    For example

    `ddu report runs/mnist --ood fashion_mnist noise`

    `ddu report runs/lenet runs/resnet18 --ood fashion_mnist --output compared.html`

    `ddu report my_models:make --detector detector --data folder:photos/test --ood noise`
    """
    if detector is not None and all(Path(name).is_dir() for name in sources):
        raise InputError("--detector is for a network, named as module:function: leave it out.")
    opened = tuple(_open(name, detector, data) for name in sources)
    if data is not None and all(isinstance(one, Run) for one in opened):
        raise InputError("A run is tested on its own test set: leave out --data.")
    found = RunReport(opened, tuple(ood or ()), samples, skip_bad)
    check_writable(output.absolute().parent)
    subjects = found.measure(data_root=data_root, say=say_dimly)
    page = found.write_page(subjects, output, command=command())
    Console().print(f"See it in a browser: {page}", markup=False, soft_wrap=True)


def _open(name: str, detector: Path | None, data: str | None) -> Run | ReportedSource:
    """The run in a folder, or another source with the data that it is tested on."""
    if (Path(name) / RUN).is_file():
        return load_run(name)
    source = open_source(name, detector=None if Path(name).is_dir() else detector)
    if data is None:
        raise InputError(f"{name} is no run of `ddu train`, so its test set is not known: name one with --data.")
    return ReportedSource(source, data)
