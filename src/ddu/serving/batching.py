"""Requests that come one by one are judged together, in one thread, from a queue with an end."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

from ddu.serving.requests import RefusedError

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Waiting(NamedTuple):
    item: object
    rows: int
    future: Future


class MicroBatcher(Generic[Item, Result]):
    """Runs a function on several items at a time.

    A batch is what waits when the one before it is done, so that batches grow with the load. If a batch fails, its
    items are run one by one: none fails for the fault of another.

    Args:
        run: Takes a list of items, and returns a result for each, in their order. Only one thread calls it.
        batch: Rows of a batch; an item with more is a batch by itself.
        queue: Rows that may wait; more are refused.
        linger: Seconds for which the first item of a batch waits for others.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        batch: int = 64,
        queue: int = 1024,
        linger: float = 0.0,
    ):
        self._run, self._batch, self._queue, self._linger = run, batch, queue, linger
        self._waiting: deque[_Waiting] = deque()
        self._rows = 0
        self._closed = False
        self._seconds_per_row = 0.0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="ddu-batcher", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many rows wait."""
        return self._rows

    def submit(self, item: Item, rows: int = 1) -> "Future[Result]":
        """Puts an item of so many rows into the queue, or refuses it at once."""
        future: Future[Result] = Future()
        with self._changed:
            if self._closed:
                raise RefusedError(503, "The server is being stopped.", retry_after=5)
            if self._rows + rows > self._queue:
                raise RefusedError(
                    503,
                    f"The queue is full: {self._rows} of {self._queue} inputs wait. Try again later.",
                    retry_after=max(1, math.ceil(self._rows * self._seconds_per_row)),
                )
            self._waiting.append(_Waiting(item, rows, future))
            self._rows += rows
            self._changed.notify()
        return future

    def close(self) -> None:
        """Takes nothing more, and returns when everything that was taken is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            begun = time.monotonic()
            self._answer(batch)
            self._seconds_per_row = (time.monotonic() - begun) / sum(one.rows for one in batch)

    def _next_batch(self) -> list[_Waiting]:
        """What waits, as far as it fits into a batch; nothing once all is done and no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._linger:
                self._changed.wait_for(lambda: self._rows >= self._batch or self._closed, timeout=self._linger)
            batch: list[_Waiting] = []
            rows = 0
            while self._waiting and (not batch or rows + self._waiting[0].rows <= self._batch):
                batch.append(self._waiting.popleft())
                rows += batch[-1].rows
            self._rows -= rows
            return batch

    def _answer(self, batch: list[_Waiting]) -> None:
        # Those whose client has gone are left out
        batch = [one for one in batch if one.future.running() or one.future.set_running_or_notify_cancel()]
        if not batch:
            return
        try:
            results = self._run([one.item for one in batch])  # pyright: ignore[reportArgumentType]
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
            else:
                for one in batch:
                    self._answer([one])
            return
        for one, result in zip(batch, results, strict=True):
            one.future.set_result(result)
