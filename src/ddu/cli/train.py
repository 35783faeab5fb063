"""`ddu train`: a network, its detector and its test, in one folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ddu.cli._app import DataRoot, KeptExamples
from ddu.detectors import find_method, list_methods, method_for_head
from ddu.errors import InputError
from ddu.provenance import command
from ddu.runs import Run, RunSpec, train_run
from ddu.training import RECIPES, find_recipe, parse_changes


def train(
    model: Annotated[str, typer.Option(help="The network, such as resnet18 or wide_resnet28_10.")],
    data: Annotated[str, typer.Option(help="The data set, such as mnist, cifar10 or folder:PATH.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the run; reuse it to resume.")],
    recipe: Annotated[str, typer.Option(help=f"How to train: {', '.join(RECIPES)}.")] = "quick",
    method: Annotated[
        str | None,
        typer.Option(
            help="The method to train for, which chooses the kind of network and the detector: "
            f"{', '.join(list_methods())}. [default: that of the network's head, or ddu]"
        ),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe. Repeatable.")
    ] = None,
    model_options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="Set an option of ddu.create_model, such as dropout=0.1 or head_options.length_scale=2. Repeatable.",
        ),
    ] = None,
    width: Annotated[float, typer.Option(min=0.01, help="Scales the channels of every layer.")] = 1.0,
    spectral_norm: Annotated[
        str | None,
        typer.Option(
            metavar="C|none", help="Bound of every layer's spectral norm. [default: the method's or recipe's, or 3]"
        ),
    ] = None,
    sensitive: Annotated[
        bool | None,
        typer.Option(help="Leaky ReLU and pooled shortcuts, or plain ones. [default: the method's or recipe's]"),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="The same seed gives the same network on the same kind of machine with as many threads."
        ),
    ] = 0,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Use at most so many samples of the training split, held-out ones included."),
    ] = None,
    false_alarm_rate: Annotated[float, typer.Option(help="What the detector is calibrated for.")] = 0.01,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out images that cannot be read.")] = False,
    keep_examples: KeptExamples = None,
    data_root: DataRoot = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Processes to train with.")] = None,
    accelerator: Annotated[str, typer.Option(help="cpu, gpu or auto.")] = "auto",
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode images.")] = 0,
) -> None:
    """Train a network, fit and calibrate its detector, and test both.

    Press Ctrl-C at any time: the same command resumes after the last finished epoch, to the same result.

    For example

    `ddu train --model resnet18 --width 0.25 --data mnist --output runs/mnist`

    `ddu train --model wide_resnet28_10 --data cifar10 --recipe cifar --set epochs=35 --output runs/cifar10`

    `ddu train --model resnet18 --data mnist --recipe mnist --devices 2 --output runs/two`

    `ddu train --model resnet18 --data mnist --method sngp --output runs/sngp`

    `ddu train --model wide_resnet28_10 --data cifar10 --recipe sngp_cifar --option dropout=0.1 --output runs/sngp`
    """
    options: dict[str, Any] = {"width": width}
    if method is not None:
        options |= find_method(method).network.options
    if sensitive is not None:
        options["sensitive"] = sensitive
    if spectral_norm is not None:
        options["spectral_norm"] = _bound(spectral_norm)
    how = find_recipe(recipe).with_changes(**parse_changes(changes or []))
    options |= parse_options(model_options or [], {**how.model, **options})
    spec = RunSpec(
        model=model,
        data=data,
        recipe=how,
        method=method or method_for_head({**how.model, **options}.get("head", "linear")).name,
        seed=seed,
        limit=limit,
        false_alarm_rate=false_alarm_rate,
        options=options,
        skip_bad=skip_bad,
    )
    run = train_run(
        spec,
        output,
        data_root=data_root,
        command=command(),
        devices=devices,
        accelerator=accelerator,
        workers=workers,
        examples=keep_examples,
    )
    if run is not None:
        _report(Console(), run)


def parse_options(assignments: list[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `create_model` as they are written on a command line; a dot leads into a mapping of them.

    Args:
        assignments: NAME=VALUE, with a value in JSON, a word or none.
        known: What is set otherwise; the rest of a mapping stays as it is there.

    >>> parse_options(["dropout=0.1", "stem=cifar", "head_options.momentum=0.9"], {"head_options": {"length_scale": 2}})
    {'dropout': 0.1, 'stem': 'cifar', 'head_options': {'length_scale': 2, 'momentum': 0.9}}
    """
    options: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"An option of the network is written NAME=VALUE. Got {assignment!r} instead.")
        outer, dot, inner = name.partition(".")
        value = _value(text)
        options[outer] = {**(options.get(outer) or known.get(outer) or {}), inner: value} if dot else value
    return options


def _value(text: str) -> Any:
    """JSON, or else the text itself; none as elsewhere on the command line."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _bound(text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"--spectral-norm must be a number or none. Got {text!r} instead.") from error


def _report(console: Console, run: Run) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in run.metrics.items():
        table.add_row(name.replace("_", " "), f"{value:.4g}")
    console.print(table)
    console.print(
        f"\nThe run is in {run.folder}: weights, detector, history.csv, tensorboard, metrics.json.", style="dim"
    )
