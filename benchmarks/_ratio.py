"""Times two functions in turn, so that whatever else the machine does meets both alike."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """How one thing compares with its peer, and what it should come to."""

    what: str
    value: float
    target: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.what:<72} {self.value:8.2f}   {self.target:<14} {self.note}"


def seconds(*functions: Callable[[], object], rounds: int = 7) -> list[float]:
    """Median seconds of each function, all warmed up once, then run in turn."""
    for function in functions:
        function()
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, spent in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            spent.append(time.perf_counter() - start)
    return [statistics.median(spent) for spent in times]
