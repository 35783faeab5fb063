"""All commands together. Only the command that was asked for is imported, so that `ddu --help` is quick."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ddu._version import __version__
from ddu.errors import InputError
from ddu.messages import check_name

if TYPE_CHECKING:
    from ddu import engines

DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="The folder of all data sets; by default $DDU_DATA, else the user's cache."),
]
"""An option that many commands have."""

SourceName = Annotated[
    str,
    typer.Argument(
        help="What judges: the folder of a run, of a detector that `ddu fit` wrote around a network of timm or "
        "torchvision, or of an exported bundle; or module:function, which returns your network, with --detector."
    ),
]
"""Of the commands that open whatever judges raw inputs, with the detector of a network."""

DetectorFolder = Annotated[
    Path | None,
    typer.Option(
        "--detector", help="The folder of the detector that was fitted to the network of SOURCE, module:function."
    ),
]

FOUND = 3
"""The exit status where something was found that `--fail-on` names."""

KeptExamples = Annotated[
    int | None,
    typer.Option(
        "--keep-examples",
        metavar="N",
        min=1,
        help="Keep N training examples, some scores and a gallery beside the detector, for the page of ddu serve: "
        "whoever has the folder sees them. [default: none]",
    ),
]
"""Of the commands that fit a detector."""

Workers = Annotated[int, typer.Option(min=1, help="Networks trained at the same time; timings include contention.")]
"""Of the commands that train many networks, on this machine."""

Engine = Annotated[
    str,
    typer.Option(
        metavar="local|ray",
        help="Where the work is done: on this machine, or by the workers of the Ray cluster that RAY_ADDRESS names.",
    ),
]
"""Of the commands whose work can be shared by many machines, with the cores and graphics cards of a worker."""

WorkerCpus = Annotated[float, typer.Option(min=0, help="With --engine ray: cores of each worker.")]
WorkerGpus = Annotated[
    float, typer.Option(min=0, help="With --engine ray: graphics cards of each worker; part of one is shared.")
]


def make_engine(name: str, cpus: float, gpus: float, workers: int = 1) -> "engines.Engine":
    """The engine that the options ask for."""
    from ddu import engines

    check_name(name, ["local", "ray"], "There is no engine {name!r}")
    if name == "ray" and workers > 1:
        raise InputError(
            "--workers is for --engine local: with --engine ray, --worker-cpus and --worker-gpus say how many jobs the "
            "cluster has room for."
        )
    if name == "ray":
        return engines.RayTasks(cpus, gpus)
    return engines.Processes(workers) if workers > 1 else engines.OneByOne()


COMMANDS = {
    "demo": "Train, fit, calibrate and judge: the whole method in about a minute.",
    "train": "Train a network, fit and calibrate its detector, and test both.",
    "fit": "Fit and calibrate a detector around a network of your own.",
    "predict": "Judge images, arrays and tables, and write a row for each input.",
    "evaluate": "Put detectors around a trained network, and measure them.",
    "compare": "Compare detectors on the same data, from training to a table.",
    "report": "Write one page about a detector, or about several side by side.",
    "export": "Write a detector as one ONNX graph that needs neither ddu nor PyTorch.",
    "doctor": "Ask whether a feature space is fit for density, without any OoD data.",
    "active": "Learn from few labels, and compare acquisition functions.",
    "serve": "Serve a detector over HTTP: predictions, verdicts, metrics and drift.",
    "data": "List, describe, fetch and make data sets.",
    "reproduce": "The paper's tables and figures, one command each.",
}
"""Each command, and the first line of its help; the module `ddu.cli.NAME` has the function or the group NAME."""


def make_app(arguments: Sequence[str]) -> typer.Typer:
    """The command line, with every command that these arguments do not name as its name and summary alone."""
    app = typer.Typer(
        name="ddu",
        help="Know what a classifier does not know, in one forward pass.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_show_locals=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = getattr(import_module(f"ddu.cli.{name}"), name) if name == asked else _not_asked
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, help=summary)
        else:
            app.command(name, cls=ManyValues, short_help=summary)(command)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ddu {__version__}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _not_asked() -> None:
    pass


class ManyValues(TyperCommand):
    """A command in which every repeatable option takes all values that follow it, up to the next option.

    `--ood svhn cifar100` is `--ood svhn --ood cifar100`. Where the metavar lists the values, `A|B ...`, another word
    ends them.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments after each value has its option in front of it."""
        many = [option for option in self.params if getattr(option, "multiple", False)]
        options = {name: _listed(option.metavar or "") for option in many for name in option.opts}
        greedy = [name for name in args if name in options and options[name] is None]
        try:
            return super().parse_args(ctx, repeat_options(args, options))
        except typer.BadParameter as error:
            if error.message or not greedy:  # a missing argument is an error without words
                raise
            missing, option = error.param and error.param.name, greedy[-1]
            return ctx.fail(
                f"There is nothing for {missing}: {option} takes all words that follow it. Give {missing} before "
                f"{option}, or write {option}=VALUE."
            )


def _listed(metavar: str) -> list[str] | None:
    """The values in a metavar, if it lists them."""
    return metavar.removesuffix(" ...").split("|") if "|" in metavar else None


def repeat_options(arguments: Iterable[str], options: Mapping[str, Collection[str] | None]) -> list[str]:
    """Writes an option again in front of each of its values after the first.

    Args:
        arguments: What was given.
        options: The options, and the values that each may have; None may be any.

    >>> repeat_options(["runs/mnist", "--ood", "svhn", "cifar100", "-o", "rows.csv"], {"--ood": None})
    ['runs/mnist', '--ood', 'svhn', '--ood', 'cifar100', '-o', 'rows.csv']
    >>> repeat_options(["--fail-on", "ambiguous", "invalid", "photos"], {"--fail-on": ["ambiguous", "invalid"]})
    ['--fail-on', 'ambiguous', '--fail-on', 'invalid', 'photos']
    """
    written: list[str] = []
    current, values = "", 0
    for argument in arguments:
        if argument.startswith("-"):
            current, values = argument if argument in options else "", 0
        elif current and values and argument not in (options[current] or [argument]):
            current = ""
        elif current:
            written += [current] * (values > 0)
            values += 1
        written.append(argument)
    return written
