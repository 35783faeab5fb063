"""`ddu data make dirty-mnist`: digits that could be read two ways."""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ddu import data
from ddu.cli._app import DataRoot
from ddu.cli._layout import plain_table, stage_bars
from ddu.dirty_mnist import SCALES, FilterResult, Quality, draw_samples, make_dirty_mnist, measure_quality, read_quality
from ddu.models import create_model

_NETWORK, _WIDTH = "resnet18", 0.25
_BARS = "▁▂▃▄▅▆▇█"


class Scale(StrEnum):
    """How much work the set is worth."""

    CPU = "cpu"
    PAPER = "paper"


def dirty_mnist(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the set; by default dirty_mnist in the data root.")
    ] = None,
    scale: Annotated[
        Scale,
        typer.Option(help="cpu takes minutes on two cores, paper has the numbers of the paper's code and takes hours."),
    ] = Scale.CPU,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same set again.")] = 0,
    data_root: DataRoot = None,
    check: Annotated[
        bool, typer.Option(help="Train a fresh network on the set and measure what it finds ambiguous.")
    ] = True,
) -> None:
    """Make Ambiguous-MNIST, and with it Dirty-MNIST, from MNIST.

    If it was stopped, run it again to resume. A finished set is not made again.

    For example `ddu data make dirty-mnist`, or `ddu data make dirty-mnist --scale paper --output runs/dirty_mnist`.
    """
    console, started = Console(), time.monotonic()
    folder = output or data.data_root(data_root) / "dirty_mnist"
    train, test = (data.load("mnist", split, root=data_root) for split in ("train", "test"))
    with stage_bars(min_width=len("Train labeller 5 of 5")) as progress:
        manifest = make_dirty_mnist(folder, train, test, SCALES[scale], seed=seed, progress=progress)
        draw_samples(folder, folder / "samples.png")
        quality = read_quality(folder)
        if check and quality is None:
            torch.manual_seed(seed + 1)
            network = create_model(_NETWORK, num_classes=10, in_channels=1, width=_WIDTH)
            name = f"{_NETWORK}, width {_WIDTH}"
            quality = measure_quality(folder, train, test, network, name, seed=seed + 1, progress=progress)
    console.print()
    console.print(_filter_results(manifest))
    if quality is not None:
        console.print(_findings(quality))
        console.print(_entropies(quality))
    console.print(
        f"Done in {time.monotonic() - started:.0f} s. Look at some: [bold]{escape(str(folder / 'samples.png'))}[/]",
        soft_wrap=True,
    )


def _filter_results(manifest: dict[str, Any]) -> Table:
    splits = manifest["splits"]
    table = plain_table("Filter results of the mixtures", "", *splits)
    table.add_row("images chosen", *(f"{known['images']:,}" for known in splits.values()))
    table.add_row("mixtures made", *(f"{known['mixtures']:,}" for known in splits.values()))
    for result in FilterResult:
        shares = [known["filter_results"][result.name.lower()] / known["mixtures"] for known in splits.values()]
        table.add_row(result.words, *(f"{share:.2%}" for share in shares))
    return table


def _findings(quality: Quality) -> Table:
    table = plain_table(f"What a fresh network finds ({quality.network}, {quality.samples:,} samples)", "", "")
    table.add_row("accuracy on MNIST", f"{quality.accuracy_clean:.2%}")
    table.add_row("AUROC of its entropy, ambiguous images against MNIST", f"{quality.auroc_clean:.4f}")
    table.add_row("the same against MNIST as the autoencoder draws it", f"{quality.auroc_redrawn:.4f}")
    table.add_row("ambiguous images of which it finds both readings", f"{quality.same_readings:.1%}")
    table.add_row(
        f"accuracy on ambiguous images [dim](at best {quality.accuracy_ambiguous_best:.1%}: the label is a draw)[/]",
        f"{quality.accuracy_ambiguous:.1%}",
    )
    return table


def _entropies(quality: Quality) -> Table:
    low, high = quality.entropy_edges[0], quality.entropy_edges[-1]
    splits = list(quality.entropy_histogram)
    table = plain_table(f"Entropy of the soft labels, {low} to {high} nats", "likeliest", *splits)
    for label, histograms in enumerate(zip(*quality.entropy_histogram.values(), strict=True)):
        table.add_row(str(label), *(f"{_sparkline(counts)} {sum(counts):5,}" for counts in histograms))
    return table


def _sparkline(counts: list[int]) -> str:
    top = max(*counts, 1)
    return "".join(_BARS[round(count / top * (len(_BARS) - 1))] for count in counts)
