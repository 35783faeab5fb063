"""`ddu compare`: detectors x OoD sets x seeds."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ddu.cli._app import DataRoot, Engine, WorkerCpus, WorkerGpus, Workers, make_engine
from ddu.cli._layout import print_report, say_dimly
from ddu.engines import using
from ddu.experiments import read_comparison
from ddu.provenance import command


def compare(
    config: Annotated[Path, typer.Argument(help="What to compare, in YAML; examples/compare_mnist.yaml explains it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the comparison; reuse it to resume.")],
    workers: Workers = 1,
    engine: Engine = "local",
    worker_cpus: WorkerCpus = 1,
    worker_gpus: WorkerGpus = 0,
    data_root: DataRoot = None,
) -> None:
    """Compare detectors on the same data, from training to a table.

    Networks are trained once and shared, features are extracted once and shared. Press Ctrl-C at any time: the same
    command resumes, to the same rows. What fails is a row that says so.

    With --engine ray, each network is trained as a task of its own.

    For example `ddu compare examples/compare_mnist.yaml --output runs/compare`
    """
    comparison = read_comparison(config)
    with using(make_engine(engine, worker_cpus, worker_gpus)):
        rows = comparison.measure(output, data_root=data_root, workers=workers, command=command(), say=say_dimly)
    print_report(Console(), rows, output / "rows.csv", comparison.write_page(output))
