"""`ddu reproduce`: the paper's tables and figures, one command each."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ddu.cli._app import DataRoot, Engine, WorkerCpus, WorkerGpus, Workers, make_engine
from ddu.cli._layout import plain_table, print_results, say_dimly
from ddu.engines import using
from ddu.experiments.experiment import ROWS
from ddu.experiments.reproduction import JUDGED, NOT_JUDGED, Planned, Reproduction, Scale, plan, read_parts
from ddu.experiments.reproductions import REPRODUCTIONS
from ddu.experiments.training_pool import NETWORKS, sharing_networks
from ddu.messages import check_name
from ddu.provenance import command
from ddu.results import Row

_LIST, _ALL = "list", "all"


def reproduce(
    name: Annotated[str, typer.Argument(help="A name of `ddu reproduce list`, or `all`.")],
    scale: Annotated[
        Scale,
        typer.Option(
            help="The paper's own set-up; smaller networks, less data and fewer epochs, for a CPU; or just enough to "
            "show that the code runs."
        ),
    ] = "cpu",
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Print what would be trained, and for how long; run nothing.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many times, with seeds 0, 1, ...; by default as listed by --plan.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Rows, figures and page go to OUTPUT/NAME/SCALE; reuse it to resume.")
    ] = Path("results/reproduction"),
    workers: Workers = 1,
    engine: Engine = "local",
    worker_cpus: WorkerCpus = 1,
    worker_gpus: WorkerGpus = 0,
    data_root: DataRoot = None,
) -> None:
    """The paper's tables and figures, one command each.

    Press Ctrl-C at any time: the same command resumes. Comparisons resume network by network and learning curves round
    by round; two-moons, five-ensemble and the toy example of objective-mismatch resume seed by seed. page.md puts each
    number beside the paper's, and says whether the paper's claim holds; at the scale smoke it is not judged.

    A network that several names need is trained once: it is kept in OUTPUT/networks. With --workers N, N networks, or
    N learning curves, are trained at the same time on this machine; with --engine ray, each is a task of its own.

    For example `ddu reproduce list`, `ddu reproduce two-moons --scale smoke` or `ddu reproduce all --plan`
    """
    console = Console()
    if name == _LIST:
        _print_list(console)
        return
    check_name(name, [_LIST, _ALL, *REPRODUCTIONS], "There is no reproduction {name!r}")
    chosen = list(REPRODUCTIONS.values()) if name == _ALL else [REPRODUCTIONS[name]]
    if only_plan:
        _print_plan(console, chosen, scale, seeds)
        return
    for one in chosen:
        folder = output / one.name / scale
        with using(make_engine(engine, worker_cpus, worker_gpus, workers)), sharing_networks(output / NETWORKS):
            rows = one.experiment(scale, seeds).measure(folder, data_root=data_root, command=command(), say=say_dimly)
        written = one.write_page(scale, folder)
        for table in one.make_tables(rows):
            print_results(console, table)
        for words in filter(None, [one.smaller(scale, rows), f"The claim: {one.claim}"]):
            console.print(words, markup=False, highlight=False)
        console.print(_verdict(one, scale, rows), style="bold", markup=False, highlight=False)
        files = [*(Path(part, ROWS) for part in read_parts(folder)), *(path.relative_to(folder) for path in written)]
        console.print(f"{folder} has {', '.join(map(str, files))}.", style="dim", soft_wrap=True)


def _print_list(console: Console) -> None:
    table = plain_table("", "name", "shows")
    table.columns[1].justify = "left"
    for one in REPRODUCTIONS.values():
        table.add_row(one.name, one.shows)
    console.print(table)


def _verdict(one: Reproduction, scale: Scale, rows: list[Row]) -> str:
    if scale not in JUDGED:
        return NOT_JUDGED
    judgement = one.judgement(rows)
    return f"It {judgement.verdict}. {judgement.words}"


def _print_plan(console: Console, chosen: list[Reproduction], scale: Scale, seeds: int | None) -> None:
    """The networks of each reproduction, and the core-hours that their training takes by measured throughput.

    Networks of earlier names are not new to later ones.
    """
    console.print(
        f"Scale {scale}: networks to train, and core-hours (hours of one CPU core)", style="bold", highlight=False
    )
    planned, everything = dict[str, tuple[int, int]](), list[Planned]()
    for one in chosen:
        experiment = one.experiment(scale, seeds)
        lines, count = plan(experiment, planned), len(experiment.seeds)
        said = f"{one.name}: {count} seed{'s' * (count > 1)}, {_total(lines)}"
        console.print(f"\n{said}", style="bold", markup=False, highlight=False)
        for data, against in dict.fromkeys((line.data, line.against) for line in lines):
            title = f"trained on {data}{' against ' * bool(against)}{', '.join(against)}"
            table = plain_table(title, "network", "samples", "epochs", "per seed", "new", "core-\nhours")
            table.title_style = "dim"
            for line in lines:
                if (line.data, line.against) == (data, against):
                    numbers = (f"{number:,}" for number in (line.samples, line.epochs, line.networks, line.new))
                    table.add_row(line.network, *numbers, _hours(line.hours))
            console.print(table)
        everything += lines
    said = "Measuring takes a little on top. --workers N trains N networks at the same time."
    console.print(f"In all: {_total(everything)}. {said}", markup=False, highlight=False)
    if any(line.hours is None for line in everything):
        console.print("?: the throughput was not measured.", markup=False, highlight=False)


def _total(lines: list[Planned]) -> str:
    """How many networks are new, and how long they take."""
    new, known = sum(line.new for line in lines), [line.hours for line in lines if line.hours is not None]
    hours = sum(known) if len(known) == len(lines) else None
    return f"{new:,} new network{'s' * (new != 1)}, {_hours(hours)} core-hours"


def _hours(hours: float | None) -> str:
    return "?" if hours is None else f"{hours:.2f}"
