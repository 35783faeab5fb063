"""A whole set under many corruptions: in chunks, over several processes, with few results in memory."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ddu.errors import InputError
from ddu.progress import track

T = TypeVar("T")

CHUNK = 500  # images in one piece of work


class Step(NamedTuple):
    """One chunk under one corruption at one severity."""

    name: str
    severity: int
    start: int  # index of the chunk's first image


def checked_workers(workers: int | None) -> int:
    """How many processes to work with; by default one for each core."""
    if workers is None:
        return os.cpu_count() or 1
    if workers < 1:
        raise InputError(f"The number of workers must be at least 1. Got {workers}.")
    return workers


def over_chunks(
    function: Callable[[np.ndarray, Step, int], T],
    images: np.ndarray,
    names: Sequence[str],
    severities: Sequence[int],
    *,
    seed: int,
    workers: int,
    description: str,
    progress: bool | None,
) -> Generator[tuple[Step, T], None, None]:
    """Calls function(chunk, step, seed) for every corruption, severity and chunk, behind a progress bar.

    Args:
        function: A module's function, so that a fresh process can import it.
        images: Bytes, (image, height, width, 3).
        names: Corruptions, in the order wanted.
        severities: Severities, in the order wanted.
        seed: Decides all randomness.
        workers: How many processes; with one, the work is done in this process.
        description: The words in front of the bar.
        progress: Whether to draw it; by default on a terminal.

    Yields:
        Each step and its result: corruption by corruption, severity by severity, chunk by chunk.
    """
    starts = range(0, len(images), CHUNK)
    steps = [Step(name, severity, start) for name in names for severity in severities for start in starts]
    pieces = ((images[step.start : step.start + CHUNK], step, seed) for step in steps)
    with closing(_run_in_order(function, pieces, workers)) as results:
        yield from zip(track(steps, description, show=progress if steps else False), results, strict=True)


def _run_in_order(
    function: Callable[..., T], pieces: Iterable[tuple[Any, ...]], workers: int
) -> Generator[T, None, None]:
    """Yields function(*piece) for each piece, in order; pieces are taken only a little ahead of the results."""
    if workers == 1:
        for piece in pieces:
            yield function(*piece)
        return
    # Spawned rather than forked: this process may have threads, which a fork would not carry over
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_start_worker)
    under_way: deque[Future[T]] = deque()
    try:
        for piece in pieces:
            under_way.append(pool.submit(function, *piece))
            if len(under_way) > 2 * workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    # Ctrl-C reaches every process of the terminal: the first one decides what becomes of the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed; otherwise it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
