"""`ddu fit`: a detector around a network of your own."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ddu.cli._app import DataRoot, Engine, KeptExamples, WorkerCpus, WorkerGpus, make_engine
from ddu.cli.train import parse_options
from ddu.data import Preprocessing, info
from ddu.detectors import BaseDetector, list_methods
from ddu.distributed import is_main_process
from ddu.engines import using
from ddu.errors import InputError
from ddu.fitting import FitSpec, fit_detector
from ddu.networks import is_of_library, read_preprocessing
from ddu.provenance import command


def fit(
    model: Annotated[
        str,
        typer.Argument(
            help="Your network: module:function, which returns it with its weights; or timm:NAME or torchvision:NAME, "
            "with --weights."
        ),
    ],
    data: Annotated[
        str, typer.Option(help="What the network was trained on, such as cifar10, folder:PATH or npz:PATH.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the detector.")],
    calibration: Annotated[
        str | None,
        typer.Option(
            help="Data that the network was not trained on: its test split, or all of it. [default: the split val of "
            "--data, or a share of it, see --held-out]"
        ),
    ] = None,
    held_out: Annotated[
        float, typer.Option(help="The share of --data that is held out where there is nothing else to calibrate on.")
    ] = 0.2,
    false_alarm_rate: Annotated[
        float, typer.Option(help="Share of in-distribution inputs that may be called out of distribution.")
    ] = 0.01,
    weights: Annotated[
        Path | None, typer.Option(help="A safetensors file with the weights of timm:NAME or torchvision:NAME.")
    ] = None,
    model_options: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="Set an option of timm:NAME or torchvision:NAME. Repeatable."
        ),
    ] = None,
    preprocessing: Annotated[
        str | None,
        typer.Option(
            metavar="data|FILE",
            help="How the network is shown an image: as the data set says, or as a JSON file says. [default: as the "
            "network says, or else the data set]",
        ),
    ] = None,
    method: Annotated[str, typer.Option(help=f"The detector: {', '.join(list_methods())}.")] = "ddu",
    seed: Annotated[int, typer.Option(min=0, help="Decides which samples are held out.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most so many samples of --data.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out images that cannot be read.")] = False,
    keep_examples: KeptExamples = None,
    data_root: DataRoot = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs per forward pass.")] = 128,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode images.")] = 0,
    engine: Engine = "local",
    worker_cpus: WorkerCpus = 1,
    worker_gpus: WorkerGpus = 0,
) -> None:
    """Fit and calibrate a detector around a network of your own.

    The function takes no arguments and returns the network, or the network and its preprocessing: a
    ddu.data.Preprocessing, or a transform of torchvision's or timm's. Files that would have to be unpickled are
    refused.

    The false-alarm rate holds for data like that of the calibration. Calibrate on data that the network was not trained
    on: a share of its training data looks more familiar than new data does.

    For example

    `ddu fit my_models:make --data folder:photos/train --calibration folder:photos/val --output detector`

    `ddu fit timm:resnet18 --weights model.safetensors --data cifar10 --calibration cifar10 --output detector`

    `ddu predict my_models:make new.png --detector detector`

    Two processes share the work, and fit the same detector:

    `torchrun --nproc-per-node 2 -m ddu fit my_models:make --data folder:photos --output detector`
    """
    spec = FitSpec(
        network=model,
        data=data,
        calibration=calibration,
        held_out=held_out,
        preprocessing=_preprocessing(preprocessing, data, data_root),
        method=method,
        false_alarm_rate=false_alarm_rate,
        seed=seed,
        limit=limit,
        options=parse_options(model_options or [], {}),
        skip_bad=skip_bad,
    )
    with using(make_engine(engine, worker_cpus, worker_gpus)):
        fitted = fit_detector(
            spec,
            output,
            weights=weights,
            data_root=data_root,
            command=command(),
            batch_size=batch_size,
            workers=workers,
            examples=keep_examples,
        )
    if is_main_process():
        _report(Console(), fitted, model, output)


def _preprocessing(given: str | None, data: str, root: Path | None) -> Preprocessing | None:
    if given is None:
        return None
    if given == "data":
        return info(data, root=root).preprocessing
    try:
        return read_preprocessing(json.loads(Path(given).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(
            f"--preprocessing must be data, or a JSON file of a Preprocessing. {given}: {error}"
        ) from error


def _report(console: Console, detector: BaseDetector, model: str, output: Path) -> None:
    calibration = detector.calibration
    assert calibration is not None
    table = Table(show_header=False, box=None, pad_edge=False)
    held_out = calibration.held_out
    table.add_row("held-out inputs", f"{len(held_out):,}")
    if held_out.correct is not None:
        table.add_row("accuracy on them", f"{float(held_out.correct.float().mean()):.4g}")
    table.add_row("temperature", f"{detector.temperature:.4g}")
    table.add_row("false-alarm rate", f"{detector.false_alarm_rate:g}")
    console.print(table)
    network, detector_option = (output, "") if is_of_library(model) else (model, f" --detector {output}")
    how = f"ddu predict {network} INPUTS{detector_option}"
    console.print(f"\nThe detector is in {output}. Judge inputs: {how}", style="dim", markup=False, soft_wrap=True)
