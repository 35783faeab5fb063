"""How commands show progress and tables."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.table import Column, Table

from ddu.experiments import summarise
from ddu.results import Row
from ddu.results import Table as ResultTable


@contextmanager
def stage_bars(*, min_width: int) -> Iterator[Callable[[str, float, str], None]]:
    """Draws a bar per stage on standard error; nothing before there is something to show.

    Args:
        min_width: Room for the stages' names.

    Yields:
        What is to be called with a stage, the share of it that is done, and a note.
    """
    bars, tasks = _bars(min_width), dict[str, TaskID]()
    with ExitStack() as stack:

        def progress(stage: str, done: float, note: str) -> None:
            if not tasks:
                stack.enter_context(bars)
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1, note="")
            bars.update(tasks[stage], completed=done, note=note)

        yield progress


def plain_table(title: str, *columns: str) -> Table:
    """A table without a frame; the first column is words, the others are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.show_header = any(columns)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def print_results(console: Console, table: ResultTable) -> None:
    """Prints results and their notes; a table too wide for the screen in parts, all of them with the names."""
    unbounded = console.options.update_width(10_000)

    def fits(columns: slice) -> bool:
        return Measurement.get(console, unbounded, table.only(columns).to_rich()).maximum <= console.width

    count, start = len(table.columns), 0
    while start < count:
        stop = start + 1
        while stop < count and fits(slice(start, stop + 1)):
            stop += 1
        console.print(table.only(slice(start, stop)).to_rich())
        start = stop
    for note in table.notes:
        console.print(note, style="dim", markup=False, highlight=False)


def print_report(console: Console, rows: Sequence[Row], file: Path, written: Sequence[Path]) -> None:
    """Prints what detectors were measured to be, and says where rows, tables and figures are.

    Args:
        console: Where to print.
        rows: What was measured.
        file: The file that has the rows.
        written: The tables and figures that were written.
    """
    for table in summarise(rows):
        print_results(console, table)
    folder = written[0].parent
    names = dict.fromkeys([*(path.relative_to(folder).parts[0] for path in written), "scores", "networks"])
    there = [name for name in names if (folder / name).exists()]
    if folder == file.parent:
        there.insert(0, file.name)
    else:
        console.print(f"{file} has the rows.", style="dim", soft_wrap=True)
    console.print(f"{folder} has {', '.join(there[:-1])} and {there[-1]}.", style="dim", soft_wrap=True)


def say_dimly(words: str) -> None:
    """Tells on standard error what is being done."""
    Console(stderr=True).print(words, style="dim", markup=False)


def _bars(min_width: int) -> Progress:
    return Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=min_width)),
        BarColumn(bar_width=16, table_column=Column(min_width=8)),
        TaskProgressColumn(table_column=Column(no_wrap=True, min_width=4)),
        TextColumn("[dim]{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=Console(stderr=True),
    )
