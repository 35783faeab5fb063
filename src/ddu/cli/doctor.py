"""`ddu doctor`: is this feature space fit for density?"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from ddu.cli import note_on_arguments
from ddu.cli._app import FOUND, DataRoot, DetectorFolder, SourceName
from ddu.cli._layout import plain_table, say_dimly
from ddu.data import ArrayDataset
from ddu.diagnostics import SEVERITIES, Diagnosis, diagnose
from ddu.errors import InputError
from ddu.messages import check_name
from ddu.predicting import Inputs
from ddu.runs import load_run
from ddu.runs.run import RUN
from ddu.sources import DetectorSource, Source, open_source
from ddu.types import Prediction

_BATCH = 64
_STYLES = {"problem": "bold red", "warning": "yellow", "note": "cyan", "ok": "green"}


def doctor(
    source: SourceName,
    detector: DetectorFolder = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Held-out data with labels, such as cifar10, folder:PATH or npz:PATH: its test split, or all of it. "
            "[default: what a run held out]",
        ),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(help="The training data, likewise: its train split. [default: what a run was trained on]"),
    ] = None,
    new: Annotated[
        list[str] | None,
        typer.Option(metavar="INPUT ...", help="New files, folders or arrays: have they drifted from calibration?"),
    ] = None,
    limit: Annotated[int, typer.Option(min=8, help="Look at no more than about so many samples of each set.")] = 2000,
    as_json: Annotated[bool, typer.Option("--json", help="Print findings and tables as JSON.")] = False,
    fail_on: Annotated[
        str | None,
        typer.Option(metavar="problem|warning", help="Exit with status 3 if a finding is as bad as that, or worse."),
    ] = None,
    data_root: DataRoot = None,
) -> None:
    """Ask whether a feature space is fit for density, without any OoD data.

    Each finding has a severity, its number and what to do; the worst come first. Inputs that are plainly unknown are
    made from held-out ones: the score, and the density of the last layer alone, must tell them apart. Besides: samples,
    rank, effective dimension, Lipschitz estimates, spectral norms, false alarms by class, memory, time, and drift.

    A run brings its data along, where that can still be read; any other source is given some with --data. A bundle is a
    graph alone: it is asked about probes, false alarms, time and drift, and not about features.

    For example

    `ddu doctor runs/mnist`

    `ddu doctor runs/cifar10 --new incoming/ --fail-on problem`

    `ddu doctor my_models:make --detector detector --data folder:photos --train folder:photos --json`
    """
    if fail_on is not None:
        check_name(fail_on, SEVERITIES[2:], "--fail-on has no severity {name!r}")
    opened = open_source(source, detector=detector)
    known = _own_data(Path(source), data_root) if held_out is None else None
    found = Inputs.find(new, opened.preprocessing) if new else None
    diagnosis = diagnose(
        opened.detector if isinstance(opened, DetectorSource) else _Graph(opened),
        opened.load_data(held_out, "test", root=data_root) if held_out else known and known[0],
        train=opened.load_data(train, "train", root=data_root) if train else known and known[1],
        new=None if found is None else _prepared(found, opened),
        limit=limit,
    )
    if as_json:
        print(json.dumps(diagnosis.to_dict(), indent=2))
    else:
        _show(diagnosis)
    severity: Any = fail_on
    bad = diagnosis.at_least(severity) if severity else ()
    if bad:
        say_dimly(f"--fail-on {fail_on}: {', '.join(finding.check for finding in bad)}.")
        raise typer.Exit(FOUND)


class _Graph:
    """An exported graph, which takes pixels, judged on what its network would see."""

    def __init__(self, source: Source):
        self.source = source

    @property
    def false_alarm_rate(self) -> float | None:
        """As of the source."""
        return self.source.false_alarm_rate

    def predict(self, x: Any) -> Prediction:
        """Judges a batch of normalised inputs."""
        return self.source.judge(self._as_bytes(x) if self.source.preprocessing.is_image else x)

    def _as_bytes(self, x: Tensor) -> Tensor:
        """Pixels (sample, height, width, channel); the inverse of the normalisation."""
        mean, std = (torch.tensor(one) for one in (self.source.preprocessing.mean, self.source.preprocessing.std))
        return (255 * (x.movedim(1, 3) * std + mean)).round().clamp(0, 255).byte()


def _own_data(folder: Path, root: Path | None) -> tuple[ArrayDataset, ArrayDataset] | None:
    """What a run held out, and what it was trained on; None where that is not at hand."""
    if not (folder / RUN).is_file():
        return None
    try:
        sets = load_run(folder).load_data(root=root)
    except (InputError, OSError) as error:
        say_dimly(f"Diagnosed without the run's data: {error}")
        return None
    return sets.validation, sets.train


def _prepared(inputs: Inputs, source: Source) -> Iterator[Tensor]:
    """Batches of new inputs, as the network is shown them; what cannot be read is left out and told of."""
    bad = 0
    for chunk in inputs.chunks(_BATCH):
        readable = []
        for place in range(len(chunk.names)):
            try:
                if place in chunk.problems:
                    raise InputError(chunk.problems[place])
                readable.append(source.preprocessing(_one(chunk.raw, place)))
            except InputError:
                bad += 1
        if readable:
            yield torch.cat(readable)
    if bad:
        say_dimly(f"Left out {bad:,} new inputs that cannot be read: `ddu predict` says why.")


def _one(raw: Any, place: int) -> Any:
    return raw[place : place + 1] if isinstance(raw, np.ndarray) else raw[place]


def _show(diagnosis: Diagnosis) -> None:
    """Findings as a table, the worst first, then the classes and layers behind them."""
    console = Console(emoji=False)
    table = plain_table("", "", "check", "finding")
    table.title = None
    for column in table.columns[1:]:
        column.justify = "left"
    table.columns[2].overflow = "fold"
    for one in diagnosis.findings:
        remedy = f"\n[bold]→ {escape(one.remedy)}[/]" if one.remedy else ""
        table.add_row(f"[{_STYLES[one.severity]}]{one.severity}[/]", one.check, escape(one.message) + remedy)
    console.print(table)
    note = note_on_arguments(" ".join(one.remedy or "" for one in diagnosis.findings))
    if note is not None:
        console.print(note, markup=False, highlight=False)
    for name, columns in _TABLES.items():
        rows = diagnosis.tables.get(name, [])
        there = [column for column in columns if any(column in row for row in rows)]
        if rows:
            shown = plain_table(name.capitalize(), *(column.replace("_", " ") for column in there))
            for row in rows[:_MOST]:
                shown.add_row(*(_cell(row.get(column)) for column in there))
            console.print(shown)
        if len(rows) > _MOST:
            console.print(f"... and {len(rows) - _MOST:,} more: --json has all of them.", style="dim")


_MOST = 20
_TABLES = {
    "probes": ("probe", "flagged", "auroc", "other_class"),
    "classes": ("name", "samples", "rank", "condition", "effective_dimension", "dead_features", "false_alarm_rate"),
    "layers": ("layer", "features", "rank", "effective_dimension", "pairs_lower", "pairs_upper", "local_lower"),
    "norms": ("layer", "kind", "norm", "bound"),
}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else escape(str(value))
