"""`ddu demo`: the whole method on embedded data."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ddu.cli._layout import plain_table, stage_bars
from ddu.demo import EPOCHS, DemoResult, Scores, run_demo


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the page, the detector and the numbers.")
    ] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same numbers again.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training digits.")] = EPOCHS,
) -> None:
    """Train, fit, calibrate and judge: the whole method in about a minute.

    A small residual network learns handwritten digits, some of them ambiguous. A detector is put around it, and both
    are shown test digits and patches of photographs. Nothing is downloaded.

    For example `ddu demo`, or `ddu demo --seed 1 --output runs/demo1`.
    """
    console, started = Console(), time.monotonic()
    console.print("[bold]Does a network know what it does not know?[/]")
    console.print("It learns digits, clean and ambiguous, and is then shown photographs as well.\n", style="dim")
    with stage_bars(min_width=len("Train the network")) as progress:
        result = run_demo(output, seed, epochs=epochs, progress=progress)
    console.print()
    for table in (_classifier(result.scores), _auroc(result.scores), _verdicts(result.scores)):
        console.print(table)
    rate, wanted = result.scores.false_alarm_rate, result.scores.false_alarm_rate_wanted
    console.print(f"False alarms: {rate:.1%} of all digits called out of distribution, {wanted:.0%} allowed.\n")
    _farewell(console, result, time.monotonic() - started)


def _classifier(scores: Scores) -> Table:
    table = plain_table("The classifier, on digits it has not seen", "", "")
    table.add_row("Accuracy, clean digits", f"{scores.accuracy_clean:.1%}")
    table.add_row(
        f"Accuracy, ambiguous digits [dim](at best {scores.accuracy_ambiguous_best:.1%}: the label is a draw)[/]",
        f"{scores.accuracy_ambiguous:.1%}",
    )
    table.add_row("ECE, as trained", f"{scores.ece_uncalibrated:.3f}")
    table.add_row(
        f"ECE, with temperature {scores.temperature:.2f} [dim](perfect would be {scores.ece_by_chance:.3f})[/]",
        f"{scores.ece:.3f}",
    )
    return table


def _auroc(scores: Scores) -> Table:
    table = plain_table("AUROC: 0.5 is a coin toss, 1 is perfect", "told apart", "by entropy", "by density")
    for name, pair in (
        ("photo patches, all digits", scores.photos_vs_digits),
        ("photo patches, clean digits", scores.photos_vs_clean),
        ("photo patches with texture, all digits", scores.textured_photos_vs_digits),
        ("ambiguous digits, clean digits", scores.ambiguous_vs_clean),
    ):
        cells = [
            f"[bold]{v:.3f}[/]" if v == max(pair.entropy, pair.density) else f"{v:.3f}"
            for v in (pair.entropy, pair.density)
        ]
        table.add_row(name, *cells)
    return table


def _verdicts(scores: Scores) -> Table:
    table = plain_table("Verdicts", "inputs", "in distribution", "ambiguous", "out of distribution")
    for key, name in (("clean", "clean digits"), ("ambiguous", "ambiguous digits"), ("photos", "photo patches")):
        table.add_row(f"{scores.samples[key]:,} {name}", *(f"{share:.1%}" for share in scores.verdicts[key].values()))
    return table


def _farewell(console: Console, result: DemoResult, seconds: float) -> None:
    console.print(f"Done in {seconds:.0f} s. See it in a browser: [bold]{escape(str(result.page))}[/]", soft_wrap=True)
    console.print("Load the detector again:\n")
    code = (
        "import ddu; from ddu.demo import load_network\n"
        f"detector = ddu.load({str(result.detector)!r}, load_network({str(result.weights)!r}))"
    )
    console.print(code, style="cyan", highlight=False, markup=False, soft_wrap=True)
