"""All commands together. Only the command that was asked for is imported, so that `ddu --help` is quick."""

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from ddu._version import __version__
from ddu.cli._many import ManyValues

COMMANDS = {
    "demo": "Train, fit, calibrate and judge: the whole method in about a minute.",
    "train": "Train a network, fit and calibrate its detector, and test both.",
    "evaluate": "Put detectors around a trained network, and measure them.",
    "compare": "Compare detectors on the same data, from training to a table.",
    "active": "Learn from few labels, and compare acquisition functions.",
    "data": "List, describe, fetch and make data sets.",
    "reproduce": "The paper's tables and figures, one command each. For example `ddu reproduce two-moons`.",
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
