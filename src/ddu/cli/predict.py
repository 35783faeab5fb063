"""`ddu predict`: a row for each input."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ddu.cli._app import FOUND, DetectorFolder, Engine, SourceName, WorkerCpus, WorkerGpus, make_engine
from ddu.cli._layout import plain_table, say_dimly
from ddu.engines import RayTasks
from ddu.errors import InputError
from ddu.messages import check_name
from ddu.predicting import Inputs, check_output, predict_rows, predict_to_file, predict_to_folder
from ddu.predicting.tables import COLUMNS, NUMBERS
from ddu.sources import open_source
from ddu.types import Verdict

_SHOWN, _REASONS = 100, 5
# Left out first where the screen is narrow: what others say again
_SPARE = ("confidence", "candidates", "aleatoric")

_STYLES = {"in_distribution": "green", "ambiguous": "yellow", "out_of_distribution": "red", "invalid": "magenta"}


def predict(
    source: SourceName,
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="What to judge: image files, folders, globs, .npy and .npz arrays, .csv and .parquet tables of paths "
            "or of numbers."
        ),
    ],
    detector: DetectorFolder = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="A .csv, .jsonl or .parquet file; reuse it to resume. [default: a table on the screen]",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME ...", help="The columns of tables that have the paths, or the numbers in their order."
        ),
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Add the probability of every class.")] = False,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="out_of_distribution|ambiguous|invalid ...",
            help="Exit with status 3 if an input has one of these verdicts.",
        ),
    ] = None,
    false_alarm_rate: Annotated[
        float | None, typer.Option(help="Judge by another rate than the one that the detector was calibrated for.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs per forward pass; memory grows with it.")] = 64,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads that decode images. [default: one per core, at most 4]")
    ] = None,
    engine: Engine = "local",
    shard_rows: Annotated[
        int, typer.Option(min=1, help="With --engine ray: rows per file of the output, which is a folder.")
    ] = 10_000,
    worker_cpus: WorkerCpus = 1,
    worker_gpus: WorkerGpus = 0,
) -> None:
    """Judge images, arrays and tables, and write a row for each input.

    A row has the path, the label, its confidence, both uncertainties, the p-value, the candidates and the verdict. An
    input that cannot be read is a row as well, with the verdict invalid and the reason.

    Press Ctrl-C at any time: with --output, the same command resumes after the last finished batch, and the file
    appears when it is whole. Paths in a table are relative to the table's folder.

    For example

    `ddu predict runs/mnist digit.png`

    `ddu predict runs/cifar10 photos/ 'more/*.jpg' --output photos.csv`

    `ddu predict my_models:make images.npz --detector detector --probabilities --output images.parquet`

    `ddu predict runs/moons points.csv --columns x y`

    `ddu predict runs/cifar10 incoming/ --output incoming.jsonl --fail-on out_of_distribution invalid`

    `ddu predict runs/cifar10 'shards/*.npz' --engine ray --output judged`
    """
    for verdict in fail_on or ():
        check_name(verdict, list(map(str, Verdict)), "There is no verdict {name!r} for --fail-on")
    cluster = make_engine(engine, worker_cpus, worker_gpus)
    if engine == "ray" and output is None:
        raise InputError("--engine ray writes Parquet files to a folder: name it with --output.")
    if output is not None and engine == "local":
        check_output(output)
    judge = open_source(source, detector=detector)
    if false_alarm_rate is not None:
        judge.set_false_alarm_rate(false_alarm_rate)
    found = Inputs.find(inputs, judge.preprocessing, columns or ())
    if found.strangers:
        files = "file" if found.strangers == 1 else "files"
        say_dimly(f"Left out {found.strangers:,} {files} of the folders: no images.")
    options: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "probabilities": probabilities}
    console = Console(emoji=False)
    if output is not None and isinstance(cluster, RayTasks):
        counts = predict_to_folder(
            judge, found, output, detector=detector, shard_rows=shard_rows, engine=cluster, **options
        )
    elif output is not None:
        counts = predict_to_file(judge, found, output, **options)
    else:
        rows = (row for batch in predict_rows(judge, found, progress=None, **options) for row in batch)
        shown = list(islice(rows, _SHOWN))
        counts = Counter(row["verdict"] for row in shown)
        console.print(_fitting_table(shown, console))
        for reason in _reasons(shown):
            console.print(reason, style=_STYLES["invalid"], markup=False, highlight=False, soft_wrap=True)
        counts.update(row["verdict"] for row in rows)
        if counts.total() > len(shown):
            console.print(
                f"... and {counts.total() - len(shown):,} more: write all of them with --output.", style="dim"
            )
    console.print(_summary(counts, output), soft_wrap=True, highlight=False)
    failures = {verdict: counts[verdict] for verdict in fail_on or () if counts[verdict]}
    if failures:
        say_dimly(f"--fail-on: {', '.join(f'{count:,} {verdict}' for verdict, count in failures.items())}.")
        raise typer.Exit(FOUND)


def _fitting_table(rows: Sequence[dict[str, Any]], console: Console) -> Table:
    """Rows for the screen, without some columns where it is too narrow for all; a file has them."""
    unlimited = console.options.update(max_width=10_000)
    table = _table(rows)
    for end in range(1, len(_SPARE) + 1):
        if console.measure(table, options=unlimited).maximum <= console.width:
            break
        table = _table(rows, left_out=_SPARE[:end])
        table.caption = f"Too narrow a screen for {', '.join(_SPARE[:end])}: --output has all columns."
        table.caption_justify = "left"
    return table


def _table(rows: Sequence[dict[str, Any]], left_out: Sequence[str] = ()) -> Table:
    """Rows as a table; columns that have nothing to say are left out, and reasons, which are long."""
    wanted = [name for name in COLUMNS if name not in (*left_out, "reason")]
    names = [name for name in wanted if name in ("path", "verdict") or any(row[name] for row in rows)]
    classes = next((list(row["probs"]) for row in rows if row.get("probs")), [])
    table = plain_table("", *(name.replace("p_value", "p-value") for name in names), *classes)
    table.title = None
    for name, column in zip(names, table.columns, strict=False):
        column.justify = "right" if name in NUMBERS else "left"
        column.no_wrap = name in NUMBERS or name == "verdict"
        column.overflow = "fold"
    for row in rows:
        probs = row.get("probs") or {}
        table.add_row(*(_cell(name, row[name]) for name in names), *(_cell("", probs.get(name)) for name in classes))
    return table


def _reasons(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Why inputs are invalid: each reason once, with the first input that has it; not too many of them."""
    paths: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"]:
            paths.setdefault(row["reason"], []).append(row["path"])
    lines = [
        f"{first}{f' and {len(others):,} more' * bool(others)}: {reason}"
        for reason, (first, *others) in islice(paths.items(), _REASONS)
    ]
    more = len(paths) - len(lines)
    if more:
        lines.append(f"... and {more:,} other reason{'s' * (more > 1)}: write all of them with --output.")
    return lines


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "verdict":
        return f"[{_STYLES[value]}]{value}[/]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape(" ".join(value) if isinstance(value, list) else str(value))


def _summary(counts: Counter[Any], output: Path | None) -> str:
    found = ", ".join(f"{counts[name]:,} {name or 'without a verdict'}" for name in [*Verdict, None] if counts[name])
    reasons = ", with the reason of those that are invalid" if counts[Verdict.INVALID] else ""
    where = "" if output is None else f" {escape(str(output))} has a row for each{reasons}."
    return f"{counts.total():,} input{'s' * (counts.total() != 1)}{': ' * bool(found)}{found}.{where}"
