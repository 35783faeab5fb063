"""How commands show progress and tables."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.table import Column, Table

from ddu.comparison import summarise, write_report
from ddu.evaluation import Row
from ddu.evaluation import Table as ResultTable


@contextmanager
def stage_bars(*, min_width: int) -> Iterator[Callable[[str, float, str], None]]:
    """Draws a bar a stage on standard error; nothing before there is something to show.

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


def print_report(console: Console, rows: Sequence[Row], file: Path, others: Iterable[str]) -> None:
    """Prints what was measured, writes tables and figures of it beside the rows, and says what is there.

    Args:
        console: Where to print.
        rows: What was measured.
        file: The file that has the rows.
        others: What else may be in its folder.
    """
    for table in summarise(rows):
        print_results(console, table)
    written = write_report(file, rows)
    folder = written[0].parent
    names = [path.relative_to(folder).parts[0] for path in written]
    names = [*dict.fromkeys(names), *(name for name in others if (folder / name).exists())]
    if folder == file.parent:
        names.insert(0, file.name)
    else:
        console.print(f"{file} has the rows.", style="dim", soft_wrap=True)
    console.print(f"{folder} has {', '.join(names[:-1])} and {names[-1]}.", style="dim", soft_wrap=True)


def _bars(min_width: int) -> Progress:
    return Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=min_width)),
        BarColumn(bar_width=16, table_column=Column(min_width=8)),
        TaskProgressColumn(table_column=Column(no_wrap=True, min_width=4)),
        TextColumn("[dim]{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=Console(stderr=True),
    )
