"""All commands together."""

from typing import Annotated

import typer

from ddu._version import __version__
from ddu.cli._many import ManyValues
from ddu.cli.active import active
from ddu.cli.compare import compare
from ddu.cli.data import data_app
from ddu.cli.demo import demo
from ddu.cli.evaluate import evaluate
from ddu.cli.reproduce import reproduce_app
from ddu.cli.train import train

app = typer.Typer(
    name="ddu",
    help="Know what a classifier does not know, in one forward pass.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ddu {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command()(demo)
app.command()(train)
app.command(cls=ManyValues)(evaluate)
app.command()(compare)
app.command(cls=ManyValues)(active)
app.add_typer(data_app)
app.add_typer(reproduce_app)
