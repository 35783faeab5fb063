"""Compares the speed of functions on a machine that runs other jobs, with a confidence interval."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

_MISSED = Fraction(5, 100)  # the interval misses the true median so often, at most
longest = math.inf  # seconds; no comparison goes on for longer, whatever its budget. The quick profile sets it
FEWEST_ROUNDS = 6  # the extremes of fewer hold the true median less often: 1 - 2 / 2⁵ is 94 %


@dataclass(frozen=True)
class Ratio:
    """How one thing compares with its peer: a value per round, and the limit that their median should keep.

    Attributes:
        what: What was compared.
        values: The ratio in each round.
        under: The median should be below this,
        over: or above this.
        note: A remark for the end of the line.
    """

    what: str
    values: Sequence[float]
    under: float = math.inf
    over: float = 0.0
    note: str = ""

    @property
    def target(self) -> str:
        """The limit in words; nothing where there is none."""
        if self.under < math.inf:
            return f"under {self.under:g}"
        return f"over {self.over:g}" if self.over else ""

    def row(self) -> dict[str, Any]:
        """The result as data; where the interval is not known, the extremes."""
        low, high = median_interval(self.values)
        known = math.isfinite(high)
        return {
            "what": self.what,
            "value": statistics.median(self.values),
            "low": low if known else min(self.values),
            "high": high if known else max(self.values),
            "rounds": len(self.values),
            "target": self.target,
            "verdict": self.verdict,
            "note": self.note,
        }

    @property
    def verdict(self) -> str:
        """Whether the whole interval, none of it or a part of it is within the limits; nothing where there are none."""
        if not self.target:
            return ""
        low, high = median_interval(self.values)
        if self.over < low and high < self.under:
            return "met"
        return "not met" if low >= self.under or high <= self.over else "undecided"

    def __str__(self) -> str:
        low, high = median_interval(self.values)
        same = "no difference" if low <= 1 <= high < math.inf else ""
        spread = f"{low:.2f} to {high:.2f}"
        return (
            f"{self.what:<72} {statistics.median(self.values):8.2f}  {spread:>16}  {len(self.values):>3} rounds   "
            f"{self.target:<10} {self.verdict:<10} {'; '.join(filter(None, (same, self.note)))}"
        ).rstrip()


@dataclass(frozen=True)
class Amount:
    """Something that is the same in every run, such as the size of a file, and the limit that it should keep.

    Attributes:
        what: What was measured, with its unit.
        value: How much.
        under: It should be below this.
        note: A remark for the end of the line.
    """

    what: str
    value: float
    under: float
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether it is below the limit."""
        return "met" if self.value < self.under else "not met"

    def row(self) -> dict[str, Any]:
        """The result as data."""
        ends = {"value": self.value, "low": self.value, "high": self.value, "rounds": 1}
        return {
            "what": self.what,
            **ends,
            "target": f"under {self.under:g}",
            "verdict": self.verdict,
            "note": self.note,
        }

    def __str__(self) -> str:
        target = f"under {self.under:g}"
        return f"{self.what:<72} {self.value:8.2f} {'':>29}   {target:<10} {self.verdict:<10} {self.note}".rstrip()


def median_interval(values: Iterable[float]) -> tuple[float, float]:
    """Two of the values between which the true median lies with 95 % confidence, for any distribution.

    Each value is below the true median with probability 1/2, so that the k-th smallest and the k-th largest of n miss
    it with probability 2 P(Binomial(n, 1/2) < k). Fewer than six values bound nothing.
    """
    ordered = sorted(values)
    # In whole numbers: n may be thousands
    n, k, ways, missed = len(ordered), 0, 1, 1
    while 2 * missed <= _MISSED * 2**n:
        k += 1
        ways = ways * (n - k + 1) // k
        missed += ways
    return (ordered[k - 1], ordered[n - k]) if k else (0.0, math.inf)


def compare(
    peer: Callable[[], object],
    *functions: Callable[[], object],
    budget: float = 60.0,
    width: float = 0.04,
    clock: Callable[[], float] = time.process_time,
) -> list[list[float]]:
    """The time of each function over that of its peer, a value per round.

    All are warmed up once and then run in turn, in the opposite order in every second round, until each median is
    known well enough or the budget is used up. The clock is CPU time, which does not count other processes.

    Args:
        peer: What the functions are compared with.
        *functions: What is timed.
        budget: The seconds after which no further round begins.
        width: An interval of the median this wide, as a share of the ratio, needs no further rounds.
        clock: Returns the time in seconds.
    """
    sides, budget = (peer, *functions), min(budget, longest)
    for side in sides:
        side()
    found: list[list[float]] = [[] for _ in functions]
    started = clock()
    while clock() - started < budget and not all(_is_narrow(values, width) for values in found):
        order = range(len(sides)) if len(found[0]) % 2 else reversed(range(len(sides)))
        spent = dict[int, float]()
        for side in order:
            begun = clock()
            sides[side]()
            spent[side] = clock() - begun
        for index, values in enumerate(found, start=1):
            values.append(spent[index] / spent[0])
    return found


def _is_narrow(values: list[float], width: float) -> bool:
    low, high = median_interval(values)
    return high - low <= width * low
