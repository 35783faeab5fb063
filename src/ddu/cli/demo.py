"""`ddu demo`: the whole method on embedded data."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ddu.cli._layout import plain_table
from ddu.experiments.demo import COMPARISONS, EPOCHS, RUN, SETS, Demo, find_value, load_judgements
from ddu.provenance import command
from ddu.results import Row


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the page, the run and the numbers; reuse it to resume.")
    ] = Path("demo"),
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="The same seed gives the same numbers on the same kind of machine with as many threads."
        ),
    ] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training digits.")] = EPOCHS,
) -> None:
    """Train, fit, calibrate and judge: the whole method in about a minute.

    A small residual network learns handwritten digits, some of them ambiguous. A detector is put around it, and both
    are shown test digits and patches of photographs. Nothing is downloaded.

    Press Ctrl-C at any time: the same command resumes after the last finished epoch.

    For example `ddu demo`, or `ddu demo --seed 1 --output runs/demo1`.
    """
    console, stages, started = Console(), Console(stderr=True), time.monotonic()
    console.print("[bold]Does a network know what it does not know?[/]")
    console.print("It learns digits, clean and ambiguous, and is then shown photographs as well.\n", style="dim")
    experiment = Demo(seed, epochs)
    rows = experiment.measure(output, command=command(), say=lambda words: stages.print(f"{words} ...", style="dim"))
    (page,) = experiment.write_page(output)
    console.print()
    for table in (_classifier(rows), _auroc(rows), _verdicts(output)):
        console.print(table)
    rate, allowed = find_value(rows, "false_alarm_rate"), experiment.run.false_alarm_rate
    console.print(f"False alarms: {rate:.1%} of all digits called out of distribution, {allowed:.0%} allowed.\n")
    seconds = time.monotonic() - started
    console.print(f"Done in {seconds:.0f} s. See it in a browser: [bold]{escape(str(page))}[/]", soft_wrap=True)
    console.print("Judge images of your own, white on black:\n")
    run = shlex.quote(str(output / RUN))
    console.print(
        f"ddu predict {run} digit.png\nddu serve {run}", style="cyan", highlight=False, markup=False, soft_wrap=True
    )


def _classifier(rows: Sequence[Row]) -> Table:
    table = plain_table("The classifier, on digits it has not seen", "", "")
    best, chance = find_value(rows, "accuracy_ambiguous_best"), find_value(rows, "ece_by_chance")
    for words, metric, style in (
        ("Accuracy, clean digits", "accuracy_clean", ".1%"),
        (f"Accuracy, ambiguous digits [dim](at best {best:.1%}: the label is a draw)[/]", "accuracy_ambiguous", ".1%"),
        ("ECE, as trained", "ece_uncalibrated", ".3f"),
        (
            f"ECE, with temperature {find_value(rows, 'temperature'):.2f} [dim](perfect would be {chance:.3f})[/]",
            "ece",
            ".3f",
        ),
    ):
        table.add_row(words, f"{find_value(rows, metric):{style}}")
    return table


def _auroc(rows: Sequence[Row]) -> Table:
    table = plain_table("AUROC: 0.5 is a coin toss, 1 is perfect", "told apart", "by entropy", "by the score")
    for words, metric, ood in COMPARISONS:
        pair = [find_value(rows, metric, detector, ood) for detector in ("softmax", "ddu")]
        table.add_row(words, *(f"[bold]{value:.3f}[/]" if value == max(pair) else f"{value:.3f}" for value in pair))
    return table


def _verdicts(folder: Path) -> Table:
    table = plain_table("Verdicts", "inputs", "in distribution", "ambiguous", "out of distribution")
    for name, judged in load_judgements(folder).items():
        shares = (f"{share:.1%}" for share in judged.verdict_shares.values())
        table.add_row(f"{len(judged.labels):,} {SETS[name]}", *shares)
    return table
