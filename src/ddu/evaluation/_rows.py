"""Results as typed rows: one measured value, or one run that failed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NamedTuple, Self

from ddu import files
from ddu.errors import InputError

Status = Literal["ok", "failed"]


class RowKey(NamedTuple):
    """What was measured, without what came out. None stands for "not applicable"."""

    detector: str
    network: str
    data: str
    seed: int
    ood: str | None = None
    severity: int | None = None
    metric: str | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured value, or one run that failed.

    Attributes:
        detector: The detector, by its name in the comparison.
        network: The network, with "+sn" where it has spectral norm: "wide_resnet28_10+sn".
        data: The training data, which is in distribution.
        seed: The seed of the run.
        ood: The out-of-distribution data; None for what is measured in distribution.
        severity: How strongly `ood` is corrupted, 1 to 5, where it is a corruption of the data.
        metric: What was measured, one of `METRICS`; None where a run failed before it measured anything.
        value: The value, finite; shares are between 0 and 1. None for a failure.
        status: "ok" or "failed".
        error: What went wrong; None if nothing did.
        members: How many networks the detector runs; more than one is an ensemble.
        command: The command that gives this row again.
        versions: The software it was measured with.
        seconds: How long it took.
    """

    detector: str
    network: str
    data: str
    seed: int
    ood: str | None = None
    severity: int | None = None
    metric: str | None = None
    value: float | None = None
    status: Status = "ok"
    error: str | None = None
    members: int = 1
    command: str | None = None
    versions: str | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.status == "ok" and (self.metric is None or self.value is None or not isfinite(self.value)):
            raise InputError(
                f"A row with status 'ok' needs a metric and a finite value. Got {self.metric!r} and {self.value!r}: "
                "record the run with Row.failed and say why."
            )
        if self.status == "failed" and (self.value is not None or not self.error):
            raise InputError(
                f"A row with status 'failed' needs an error and no value. Got {self.error!r} and {self.value!r}."
            )
        if self.status not in ("ok", "failed"):
            raise InputError(f"The status of a row is 'ok' or 'failed'. Got {self.status!r}.")

    @classmethod
    def failed(cls, error: BaseException | str, **facts: Any) -> Self:
        """The row of a run that did not get as far as a value; `facts` are the other attributes.

        >>> Row.failed(ValueError("no data"), detector="ddu", network="lenet", data="mnist", seed=0).error
        'ValueError: no data'
        """
        words = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
        return cls(status="failed", error=words, **facts)

    @property
    def key(self) -> RowKey:
        """What was measured: rows with the same key answer the same question."""
        return RowKey(*(getattr(self, name) for name in RowKey._fields))

    @property
    def run(self) -> str:
        """Whose value or failure it is, in words.

        >>> Row.failed("no data", detector="ddu", network="lenet", data="mnist", seed=0, ood="svhn").run
        'ddu on lenet against svhn, seed 0'
        """
        against = f" against {self.ood}" if self.ood else ""
        severity = f" severity {self.severity}" if self.severity is not None else ""
        return f"{self.detector} on {self.network}{against}{severity}, seed {self.seed}"


def versions() -> str:
    """The software that rows are measured with, for their `versions` column."""
    return ", ".join(f"{name} {version}" for name, version in files.versions().items())


def latest(rows: Iterable[Row]) -> list[Row]:
    """One row a key, the last, in the order of their first appearance; a failure that was made good later is left out.

    A failure without a metric or OoD set is that of a whole run, and is made good by any later value of that run.
    """
    newest: dict[RowKey, Row] = {}
    for row in rows:
        if row.status == "ok":
            for key in _failures_made_good(row.key):
                newest.pop(key, None)
        newest[row.key] = row
    return list(newest.values())


def _failures_made_good(key: RowKey) -> Iterator[RowKey]:
    without_metric = key._replace(metric=None)
    yield without_metric
    yield without_metric._replace(ood=None, severity=None)
