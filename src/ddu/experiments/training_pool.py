"""Trains the networks of a comparison, one after the other or several at a time."""

import multiprocessing
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from ddu.errors import TrainingError
from ddu.experiments.experiment import Say
from ddu.runs import RunSpec, is_finished, train_run


@dataclass(frozen=True)
class Job:
    """A network to be trained into a folder."""

    folder: Path
    spec: RunSpec


def train_networks(
    jobs: Sequence[Job], *, workers: int, say: Say, progress: bool | None, **options: Any
) -> dict[Path, Exception]:
    """Trains networks that are not trained yet.

    Args:
        jobs: The networks.
        workers: How many are trained at the same time. More than one have a process each, and share the threads.
        say: Is told what is being done.
        progress: Whether bars are shown; never where several would get into each other's way.
        **options: Of `train_run`.

    Returns:
        What went wrong, by folder.
    """
    jobs = [job for job in jobs if not is_finished(job.spec, job.folder)]
    if workers > 1 and len(jobs) > 1:
        return _train_at_once(jobs, min(workers, len(jobs)), say, progress=False, **options)
    failures: dict[Path, Exception] = {}
    for number, job in enumerate(jobs, start=1):
        say(f"Train {job.folder.name}, {number} of {len(jobs)}")
        try:
            train_run(job.spec, job.folder, progress=progress, **options)
        except Exception as error:
            failures[job.folder] = error
    return failures


def _train_at_once(jobs: Sequence[Job], workers: int, say: Say, **options: Any) -> dict[Path, Exception]:
    failures: dict[Path, Exception] = {}
    threads = max(1, torch.get_num_threads() // workers)
    say(f"Train {len(jobs)} networks, {workers} at a time")
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_become_worker, initargs=(threads,)
    )
    try:
        running = {pool.submit(train_run, job.spec, job.folder, **options): job for job in jobs}
        for number, future in enumerate(as_completed(running), start=1):
            folder, error = running[future].folder, future.exception()
            if isinstance(error, BrokenProcessPool):
                raise TrainingError(
                    f"A training process exited unexpectedly while it trained {folder.name}: is there memory for "
                    f"{workers} at a time? Finished networks are kept: run the same with fewer workers to resume."
                ) from error
            if isinstance(error, Exception):
                failures[folder] = error
            say(f"{'Failed' if error else 'Trained'}: {folder.name}, {number} of {len(jobs)}")
    finally:
        pool.shutdown(cancel_futures=True)
    return failures


def _become_worker(threads: int) -> None:
    """Leaves a share of the cores to the others, and ends with the process that started it, however that ends."""
    torch.set_num_threads(threads)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
