"""Several processes that do one thing together, each with its shard of the data: those that `torchrun` starts.

    with distributed.join() as ranks:                     # or this process alone
        mine = dataset.subset(ranks.share(len(dataset)))
        detector.fit(ddu.data.loader(mine), ranks=ranks)  # what each rank learned is merged, and all ranks have it

A rank may take as long as it likes: while the others wait, they look in a store for its signs of life. A rank that
fails leaves its reason there, and a rank that was killed is missed by its neighbour. All others then raise a
`RankError` with the reason. Ranks trust each other, as always in torch.distributed: what they exchange is pickled.
"""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from torch import Tensor
from torch import distributed as dist
from torch.distributed.rendezvous import rendezvous

from ddu.errors import DDUError, RankError

T = TypeVar("T")

# Seconds: between two signs of life; without one until a rank counts as dead; between two looks while waiting; and for
# the others to read why a rank failed before it exits
_BEAT, _SILENCE, _LOOK, _FAREWELL = 2.0, 20.0, 0.05, 10.0
# An exchange begins when all ranks are there. A rank that dies closes its connections, so this is for a lost network
_START, _EXCHANGE = timedelta(minutes=1), timedelta(minutes=10)
_JOINED = itertools.count()


def is_launched() -> bool:
    """Whether a launcher such as `torchrun` has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def is_main_process() -> bool:
    """Whether this process, out of those that train together, reports and writes."""
    ranks = [os.environ[name] for name in ("RANK", "SLURM_PROCID") if name in os.environ]
    # Lightning starts processes with a rank within their node alone
    ranks = ranks[:1] or [os.environ.get(name, "0") for name in ("NODE_RANK", "LOCAL_RANK")]
    return all(int(rank) == 0 for rank in ranks)


def join() -> "Ranks":
    """The processes that `torchrun` has started, or this one alone; to be used in a `with` statement."""
    if not is_launched():
        return Ranks()
    store, rank, size = next(rendezvous("env://", timeout=_START))
    return TorchRanks(_part(store, f"ddu/{next(_JOINED)}"), rank, size)


def _part(store: Any, name: str) -> Any:
    """The keys of a store that begin so."""
    return dist.PrefixStore(name, store)  # pyright: ignore[reportPrivateImportUsage]


def summed(values: Tensor) -> Tensor:
    """The sum over all processes that train together, or the values themselves; all of them must call it."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        values = values.clone()
        dist.all_reduce(values)
    return values


@contextmanager
def other_ranks_watched(size: int) -> Iterator[None]:
    """Says that another process of a training is gone where a connection to it broke."""
    try:
        yield
    except RuntimeError as error:
        # The errors of gloo have its name in them, those of NCCL a class of their own
        broken = isinstance(error, dist.DistError) or "gloo" in str(error).lower()
        if size == 1 or isinstance(error, DDUError) or not broken:
            raise
        raise RankError(
            f"Training stopped, because another of the {size} processes is gone: its own message says why, unless it "
            "was killed, perhaps for lack of memory. The same command resumes after the last finished epoch."
        ) from error


class Ranks:
    """The processes of a job; this class itself is one process alone.

    Attributes:
        rank: The number of this process, from 0.
        size: How many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process, out of all, reports and writes."""
        return self.rank == 0

    def share(self, samples: int) -> range:
        """The rows that this rank takes, of so many; those of the next rank follow.

        >>> Ranks().share(5)
        range(0, 5)
        """
        return range(self.rank * samples // self.size, (self.rank + 1) * samples // self.size)

    def merged(self, value: T, merge: Callable[[T, T], T]) -> T:
        """The values of all ranks merged into one, in their order; every rank gets the same. All must call it."""
        return value

    def over(self, rows: int, function: Callable[[range], Any], *, progress: bool | None = None) -> Any:
        """What a function makes of so many rows: each rank calls it with its share, and all get the merged result."""
        return self.merged(function(self.share(rows)), lambda one, two: one.merge(two))

    def check(self) -> None:
        """Raises a `RankError` if another rank has failed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        pass


class TorchRanks(Ranks):
    """Processes that torch.distributed connects.

    Args:
        store: What all of them can read and write.
        rank: The number of this one.
        size: How many there are.
    """

    def __init__(self, store: Any, rank: int, size: int):
        self.rank, self.size = rank, size
        self._store = store
        self._meetings = 0
        self._lost: str | None = None
        self._over = threading.Event()
        self._group: Any = None
        self._owns_group = False

    def __enter__(self) -> Self:
        self._store.set(self._sign(self.rank), "0")
        threading.Thread(target=self._live, daemon=True).start()
        self._meet()
        # Gloo whatever the network runs on: moments are small, and can live on the CPU
        if not dist.is_initialized():
            store = _part(self._store, "gloo")
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=_EXCHANGE)
            self._owns_group = True
        self._group = dist.new_group(backend="gloo", timeout=_EXCHANGE)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if error is None:
                self._meet()
            elif not isinstance(error, RankError):
                self._tell(f"rank {self.rank} failed: {type(error).__name__}: {error}")
            self._leave()
        finally:
            self._over.set()
            if self._owns_group:
                dist.destroy_process_group()

    def merged(self, value: T, merge: Callable[[T, T], T]) -> T:
        """The values of all ranks merged pair by pair; it takes log₂ of their number steps, and two in memory."""
        self._meet()
        step = 1
        while step < self.size and self.rank % step == 0:
            if self.rank % (2 * step):
                self._send(value, self.rank - step)
            elif self.rank + step < self.size:
                value = merge(value, self._receive(self.rank + step))
            step *= 2
        # Back down the same tree
        while step > 1:
            step //= 2
            if self.rank % (2 * step) == step:
                value = self._receive(self.rank - step)
            elif self.rank % (2 * step) == 0 and self.rank + step < self.size:
                self._send(value, self.rank + step)
        return value

    def check(self) -> None:
        """Raises a `RankError` if another rank has failed."""
        if self._lost is not None:
            raise RankError(
                f"Rank {self.rank} of {self.size} stopped, because {self._lost} Start the same command again: nothing "
                "was written."
            )

    def _live(self) -> None:
        """Gives signs of life, and looks out for those of the next rank and for the reasons of all."""
        beat, last, heard = 0, b"", time.monotonic()
        neighbour = (self.rank + 1) % self.size
        while not self._over.wait(_BEAT):
            try:
                beat += 1
                self._store.set(self._sign(self.rank), str(beat))
                sign = self._store.get(self._sign(neighbour)) if self._store.check([self._sign(neighbour)]) else b""
                if sign != last:
                    last, heard = sign, time.monotonic()
                elif time.monotonic() - heard > _SILENCE:
                    self._tell(
                        f"rank {neighbour} has given no sign of life for {_SILENCE:.0f} seconds: it was killed, "
                        "perhaps for lack of memory, or its host is gone."
                    )
                if self._store.check(["failed"]):
                    self._lost = self._store.get("failed").decode()
                    return
            except RuntimeError:
                if not self._over.is_set():
                    self._lost = "rank 0, which holds the connections, is gone."
                return

    def _tell(self, reason: str) -> None:
        """Leaves a reason for all others; the first one counts."""
        try:
            if self._store.add("failures", 1) == 1:
                self._store.set("failed", reason)
        except RuntimeError:
            pass  # with the store, the others are gone too

    def _meet(self) -> None:
        """Waits until all ranks are here, or one has failed."""
        self._meetings += 1
        place = f"meeting/{self._meetings}"
        try:
            self._store.add(place, 1)
            while self._store.add(place, 0) < self.size:
                self.check()
                time.sleep(_LOOK)
        except RuntimeError as error:
            if isinstance(error, RankError):
                raise
            self._fail(error)

    def _leave(self) -> None:
        """The first rank may hold the store, and goes when all others have read what they need; or after a while."""
        try:
            gone = self._store.add("gone", 1)
            until = time.monotonic() + _FAREWELL
            while (self.rank == 0 or self._store.check(["failed"])) and gone < self.size and time.monotonic() < until:
                time.sleep(_LOOK)
                gone = self._store.add("gone", 0)
        except RuntimeError:
            pass  # the one that held the store is gone

    def _send(self, value: Any, to: int) -> None:
        self._exchange(lambda: dist.send_object_list([value], to, self._group))

    def _receive(self, source: int) -> Any:
        box: list[Any] = [None]
        self._exchange(lambda: dist.recv_object_list(box, source, self._group))
        return box[0]

    def _exchange(self, transfer: Callable[[], Any]) -> None:
        try:
            transfer()
        except RuntimeError as error:
            self._fail(error)

    def _fail(self, error: RuntimeError) -> None:
        """A broken connection, once it is known why."""
        until = time.monotonic() + _SILENCE + 2 * _BEAT
        while self._lost is None and time.monotonic() < until:
            time.sleep(_LOOK)
        self._lost = self._lost or f"the connection to another rank broke: {error}."
        self.check()

    def _sign(self, rank: int) -> str:
        return f"alive/{rank}"


__all__ = ["RankError", "Ranks", "is_launched", "is_main_process", "join", "other_ranks_watched", "summed"]
