"""Trains the networks of an experiment: one after the other, several at a time, or on a cluster."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ddu.data.registry import Root
from ddu.engines import Engine, OneByOne, Processes, current_engine
from ddu.experiments.experiment import Say
from ddu.experiments.trained import Sets, TrainedNetwork
from ddu.files import FilePath
from ddu.provenance import fingerprint
from ddu.runs import RunSpec, is_finished, load_run, train_run

NETWORKS = "networks"
"""The folder of an experiment's networks, in its own."""

_shared: ContextVar[Path | None] = ContextVar("shared networks", default=None)


@dataclass(frozen=True)
class Job:
    """A network to be trained into a folder."""

    folder: Path
    spec: RunSpec

    def __str__(self) -> str:
        return self.folder.name


@contextmanager
def sharing_networks(folder: FilePath) -> Iterator[None]:
    """Within it experiments keep their networks in one folder, so that the same network is trained once for all."""
    token = _shared.set(Path(folder))
    try:
        yield
    finally:
        _shared.reset(token)


def network_job(folder: FilePath, name: str, spec: RunSpec) -> Job:
    """A network of the experiment in a folder.

    Args:
        folder: That of the experiment.
        name: Of the network in this experiment; shared networks are named after what they are.
        spec: How it is trained.
    """
    shared = _shared.get()
    if shared is None:
        return Job(Path(folder, NETWORKS, name), spec)
    network = re.sub(r"[^\w.+]+", "-", f"{spec.data} {spec.label} seed{spec.seed}")
    return Job(shared / f"{network}-{fingerprint(spec.to_json())}", spec)


def train_networks(
    jobs: Sequence[Job], *, workers: int = 1, say: Say, progress: bool | None, **options: Any
) -> dict[Path, Exception]:
    """Trains networks that are not trained yet.

    Args:
        jobs: The networks.
        workers: How many are trained at the same time on this machine. More than one have a process each, and share the
            threads; with one, it is the engine of the command that trains them, see `ddu.engines`.
        say: Is told what is being done.
        progress: Whether bars are shown; never where several would get into each other's way.
        **options: Of `train_run`.

    Returns:
        What went wrong, by folder.
    """
    jobs = [job for job in jobs if not is_finished(job.spec, job.folder)]
    engine = current_engine() if workers == 1 else Processes(workers)
    if isinstance(engine, OneByOne) or (isinstance(engine, Processes) and len(jobs) == 1):
        return _train_here(jobs, say, progress=progress, **options)
    if jobs:
        say(f"Train {len(jobs)} networks{at_once(engine, len(jobs))}")
    failures: dict[Path, Exception] = {}
    train = partial(_train, options={"progress": False, **options})
    for number, (place, error) in enumerate(engine.map(train, jobs), start=1):
        if error is not None:
            failures[jobs[place].folder] = error
        say(f"{'Failed' if error else 'Trained'}: {jobs[place]}, {number} of {len(jobs)}")
    return failures


def trained_networks(
    jobs: Sequence[Job], sets: Sets, *, data_root: Root, command: str, say: Say
) -> Iterator[TrainedNetwork]:
    """Networks, one after the other; those that are missing are trained first, and one that fails ends it.

    Args:
        jobs: The networks.
        sets: What they are shown besides their own train, validation and test sets, or instead of them.
        data_root: Where the data is; see `ddu.data.load`.
        command: The command to record.
        say: Is told what is being done.
    """
    failures = train_networks(jobs, say=say, progress=False, data_root=data_root, command=command)
    for error in failures.values():
        raise error
    for job in jobs:
        run = load_run(job.folder)
        yield TrainedNetwork(run, {**run.load_data(root=data_root)._asdict(), **sets})


def _train_here(jobs: Sequence[Job], say: Say, **options: Any) -> dict[Path, Exception]:
    """One after the other, with their bars."""
    failures: dict[Path, Exception] = {}
    for number, job in enumerate(jobs, start=1):
        say(f"Train {job}, {number} of {len(jobs)}")
        try:
            _train(job, options)
        except Exception as error:
            failures[job.folder] = error
    return failures


def at_once(engine: Engine, jobs: int) -> str:
    """How an engine does several jobs, in words."""
    return f", {min(engine.at_once, jobs)} at a time" if isinstance(engine, Processes) else " on the cluster"


def _train(job: Job, options: Mapping[str, Any]) -> None:
    train_run(job.spec, job.folder, **options)
