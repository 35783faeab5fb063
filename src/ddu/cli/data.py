"""`ddu data`: what there is, where it is, and how to get the rest."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ddu import data as sets
from ddu.cli._app import DataRoot
from ddu.cli._make_dirty_mnist import dirty_mnist
from ddu.data.registry import PREFIXES, Source, find
from ddu.errors import DataError

data = typer.Typer(no_args_is_help=True)
make_app = typer.Typer(name="make", help="Make data sets out of others.", no_args_is_help=True)
make_app.command("dirty-mnist")(dirty_mnist)
data.add_typer(make_app)

Name = Annotated[str, typer.Argument(help="One that `ddu data list` shows.")]


@data.command("list")
def list_sets(data_root: DataRoot = None) -> None:
    """Show every set that has a name, and which of them are there.

    For example `ddu data list --data-root ~/sets`.
    """
    root = sets.data_root(data_root)
    table = _table("name", "what", "shape", "where")
    for name in sets.list_data(root=root):
        try:
            source = find(name, root)
            table.add_row(name, source.summary, _shape(source.info.shape), _where(source, root))
        except DataError as error:
            table.add_row(name, "", "", f"[red]damaged:[/] {escape(str(error))}")
    console = _console()
    console.print(table)
    for prefix in PREFIXES.values():
        console.print(f"[bold]{prefix.form}[/]  {prefix.summary}", soft_wrap=True)
    console.print(f"\nThe root is {escape(str(root))}.", soft_wrap=True)


@data.command()
def info(name: Name, data_root: DataRoot = None) -> None:
    """Say what a set holds: its shape, its classes, its splits.

    For example `ddu data info cifar10`, or `ddu data info folder:photos`.
    """
    root = sets.data_root(data_root)
    source = find(name, root)
    table = _table("", "")
    table.show_header = False
    table.add_row("name", escape(name))
    if source.summary:
        table.add_row("what", source.summary)
    table.add_row("shape", _shape(source.info.shape))
    table.add_row("where", _where(source, root))
    present = source.present(root)
    for split in source.splits:
        table.add_row(split, f"{len(sets.load(name, split, root=root)):,} samples" if split in present else "not there")
    known = sets.info(name, root=root) if present or source.info.classes else source.info
    if known.classes:
        table.add_row("classes", escape(_classes(known.classes)))
    if known.mean:
        table.add_row("mean", ", ".join(f"{value:g}" for value in known.mean))
        table.add_row("deviation", ", ".join(f"{value:g}" for value in known.std))
    console = _console()
    console.print(table)
    if not present:
        console.print(source.remedy, soft_wrap=True, markup=False)


@data.command()
def fetch(name: Name, data_root: DataRoot = None) -> None:
    """Download a data set, verify it, and put it under the root.

    For example `ddu data fetch mnist`. A download that is interrupted is never taken for a whole one: run it again.
    """
    root = sets.data_root(data_root)
    fetched = sets.fetch(name, root=root)
    where = _where(find(name, root), root)
    _console().print(f"{escape(name)} is {'now' if fetched else 'already'} there: {where}.", soft_wrap=True)


@make_app.command()
def corruptions(
    data_root: DataRoot = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="By default the folder CIFAR-10-C under the root.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="A corruption; may be given several times. By default all 19.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Take the first so many test images. By default all.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same images again.")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one for each core.")] = None,
) -> None:
    """Corrupt CIFAR-10's test images in the 19 ways and 5 severities of CIFAR-10-C, in its layout.

    For example `ddu data make corruptions --only fog --only snow`. Run it again to resume after an interruption.
    """
    from ddu.data.corruptions import CORRUPTIONS, SEVERITIES, generate

    root = sets.data_root(data_root)
    clean = sets.load("cifar10", "test", root=root)
    folder = generate(
        clean.inputs[:samples],
        clean.labels[:samples],
        output or root / "CIFAR-10-C",
        corruptions=only or CORRUPTIONS,
        severities=SEVERITIES,
        seed=seed,
        workers=workers,
        progress=None,
    )
    console = _console()
    console.print(f"Written to {escape(str(folder))}.", soft_wrap=True)
    if output is None:
        console.print(f"Read one with `ddu data info cifar10_c:{(only or CORRUPTIONS)[0]}:3`.", soft_wrap=True)


def _console() -> Console:
    return Console(emoji=False)  # cifar10_c:fog:3 is no weather report


def _table(*columns: str) -> Table:
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[0].no_wrap = True
    return table


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _where(source: Source, root: Path) -> str:
    """Where a set was found, and which splits of it."""
    if source.is_generated:
        return "generated"
    present = source.present(root)
    if not present:
        return "[dim]not there[/]"
    place = source.place or root / os.path.commonpath(source.files[present[0]])
    return f"{escape(str(place))} ({', '.join(present)})"


def _classes(names: tuple[str, ...], shown: int = 10) -> str:
    more = f", ... ({len(names):,} in all)" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
