"""Engines: ways to do jobs that do not depend on each other, here or elsewhere.

OneByOne    in this process, one after the other
Processes   several at a time on this machine, a process each
RayTasks    on a Ray cluster, each with the cores and graphics cards that it needs

Each gives the results as they come (`map`), or merges those of parts of the data (`over`), as the processes that
`torchrun` starts do (`ddu.distributed.Ranks.over`). What a job raises is its result, so that one that fails stops no
other. A command chooses one with `using`, and whatever has many jobs to do asks for it with `current_engine`.
"""

import logging
import multiprocessing
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import cycle, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.queues import SimpleQueue
from types import ModuleType
from typing import Any, TypeVar

from ddu.errors import DDUError, InputError, TrainingError
from ddu.messages import require
from ddu.progress import track

J = TypeVar("J")
R = TypeVar("R")

RETRIES = 3
"""A worker that is killed, or whose host is lost, is replaced so often for one job."""
ROWS = 8192
"""Rows of a job of `Engine.over`."""


class Engine(ABC):
    """A way to do jobs."""

    @abstractmethod
    def map(self, function: Callable[[J], R], jobs: Sequence[J]) -> Iterator[tuple[int, R | Exception]]:
        """Calls a function of a module with each job.

        Yields:
            The place of a job that is done, and what the function returned or raised.
        """

    def over(self, rows: int, function: Callable[[range], Any], *, progress: bool | None = None) -> Any:
        """What a function makes of so many rows: each job is a part of them, and the results merge in their order."""
        parts = [range(start, min(start + ROWS, rows)) for start in range(0, rows, ROWS)]
        merged, done, waiting = None, 0, dict[int, Any]()
        for place, found in track(self.map(function, parts), "parts", show=progress, total=len(parts)):
            if isinstance(found, Exception):
                raise found
            waiting[place] = found
            while done in waiting:
                part = waiting.pop(done)
                merged, done = part if merged is None else merged.merge(part), done + 1
        return merged


@dataclass(frozen=True)
class OneByOne(Engine):
    """In this process, one after the other."""

    def map(self, function: Callable[[J], R], jobs: Sequence[J]) -> Iterator[tuple[int, R | Exception]]:
        """In order."""
        for place, job in enumerate(jobs):
            try:
                yield place, function(job)
            except Exception as error:
                yield place, error


@dataclass(frozen=True)
class Processes(Engine):
    """Several at a time on this machine; they share its threads, and take its graphics cards in turn.

    Attributes:
        at_once: How many.
    """

    at_once: int

    def map(self, function: Callable[[J], R], jobs: Sequence[J]) -> Iterator[tuple[int, R | Exception]]:
        """As they are done. Ctrl-C, or whoever wants no more results, ends the processes at once."""
        import torch

        workers = min(self.at_once, max(1, len(jobs)))
        threads = max(1, torch.get_num_threads() // workers)
        context = multiprocessing.get_context("spawn")
        cards = context.SimpleQueue()  # a worker takes one when it starts
        for card in islice(cycle(_visible_cards()), workers):
            cards.put(card)
        ended, writer = context.Pipe(duplex=False)  # closing the writer ends all workers
        pool = ProcessPoolExecutor(workers, context, initializer=_become_worker, initargs=(threads, cards, ended))
        try:
            running = {pool.submit(function, job): place for place, job in enumerate(jobs)}
            for future in as_completed(running):
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    raise TrainingError(
                        f"A training process exited unexpectedly while it trained {jobs[running[future]]}: is there "
                        f"memory for {workers} at a time? Finished networks are kept: run the same with fewer workers "
                        "to resume."
                    ) from error
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield running[future], future.result() if error is None else error
        except (KeyboardInterrupt, GeneratorExit):
            writer.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            writer.close()
            ended.close()


@dataclass(frozen=True)
class RayTasks(Engine):
    """On the Ray cluster that `RAY_ADDRESS` names, or on this machine. A worker that is killed is replaced.

    Attributes:
        cpus: Cores of a job.
        gpus: Graphics cards of a job; part of one is shared.
    """

    cpus: float = 1
    gpus: float = 0

    def slots(self) -> int:
        """How many jobs the cluster has room for."""
        there: dict[str, float] = connect_to_ray().cluster_resources()
        rooms = [there.get(name, 0) / need for name, need in (("CPU", self.cpus), ("GPU", self.gpus)) if need > 0]
        if rooms and min(rooms) < 1:
            raise InputError(
                f"A job needs {self.cpus:g} cores and {self.gpus:g} graphics cards, and the cluster has "
                f"{there.get('CPU', 0):g} and {there.get('GPU', 0):g} in all: ask for less."
            )
        return int(min(rooms, default=1))

    def map(self, function: Callable[[J], R], jobs: Sequence[J]) -> Iterator[tuple[int, R | Exception]]:
        """As they are done."""
        ray = connect_to_ray()
        self.slots()
        task = ray.remote(_call_in).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES)
        shared = ray.put(function)  # once, with whatever it holds
        running = {task.remote(os.getcwd(), shared, job): place for place, job in enumerate(jobs)}
        try:
            while running:
                (done,), _ = ray.wait(list(running), num_returns=1)
                place = running.pop(done)
                try:
                    yield place, ray.get(done)
                except ray.exceptions.RayTaskError as error:
                    yield place, error.cause if isinstance(error.cause, Exception) else error
                except ray.exceptions.RayError as error:
                    words = str(error).strip().splitlines()[0]
                    yield place, DDUError(f"The worker was lost {RETRIES + 1} times: {words}")
        finally:
            for one in running:
                ray.cancel(one, force=True)


_ONE_BY_ONE = OneByOne()
_CURRENT: ContextVar[Engine] = ContextVar("engine", default=_ONE_BY_ONE)


def current_engine() -> Engine:
    """The engine of the command that runs; one job after the other if it chose none."""
    return _CURRENT.get()


@contextmanager
def using(engine: Engine) -> Iterator[None]:
    """Has an engine do the jobs of whatever runs inside."""
    before = _CURRENT.set(engine)
    try:
        yield
    finally:
        _CURRENT.reset(before)


def connect_to_ray() -> ModuleType:
    """Ray, connected to the cluster that `RAY_ADDRESS` names, or to a new one on this machine."""
    ray = require("ray", extra="ray", purpose="The engine ray")
    if not ray.is_initialized():
        local: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"include_dashboard": False}
        ray.init(logging_level=logging.ERROR, log_to_driver=False, **local)
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # which tells of its plans
    return ray


def _call_in(folder: str, function: Callable[[J], R], job: J) -> R:
    """Calls a function in the folder of the command, to which names of files are relative."""
    os.chdir(folder)
    return function(job)


def _visible_cards() -> list[str]:
    """The graphics cards of CUDA that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    numbers = [str(number) for number in range(torch.cuda.device_count())]
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[: len(numbers)] or numbers


def _become_worker(threads: int, cards: "SimpleQueue[str]", ended: Connection) -> None:
    """Takes a share of the cores and a graphics card, and ends with the process that started it, however that ends.

    Ctrl-C reaches all processes of a terminal; here it is left to that process, which closes the connection.
    """
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    if not cards.empty():
        os.environ["CUDA_VISIBLE_DEVICES"] = cards.get()  # CUDA reads it at its first use, which is later
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel, ended])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
