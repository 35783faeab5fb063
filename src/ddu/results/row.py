"""One row: a measured value, or a failure, and the run that it came from."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NamedTuple, Self

from ddu import provenance
from ddu.errors import InputError

Status = Literal["ok", "failed"]


class RowKey(NamedTuple):
    """The question that a row answers. None means "not applicable"."""

    detector: str
    network: str
    data: str
    seed: int
    run: str
    members: int
    ood: str | None
    severity: int | None
    labels: int | None
    metric: str | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured value, or one failure.

    Attributes:
        detector: The detector by its name in the experiment; in active learning the acquisition function.
        network: The network, such as "wide_resnet28_10 x0.25+sn": width 1/4, with spectral norm.
        data: The training data, which is in distribution.
        seed: The seed of the run.
        run: The fingerprint of everything else that decides the value: two rows have the same one only if their runs
            have the same settings, samples and labels.
        members: The number of networks that the detector runs; more than one is an ensemble.
        ood: The out-of-distribution data; None for what is measured in distribution.
        severity: How strongly `ood` is corrupted, 1 to 5, where it is a corruption of the data.
        labels: The number of labels that an active learner had; None outside of active learning.
        metric: What was measured, one of `METRICS`; None where a run failed before it measured anything.
        value: The value, finite; shares are between 0 and 1. None for a failure.
        status: "ok" or "failed".
        error: What went wrong; None if nothing did.
        reductions: How the run is smaller than the paper's; None if it is not, or the paper has no such run.
        command: The command that gives this row again.
        versions: The software that it was measured with.
        commit: The commit of the checkout that it was measured with; None for an installed package.
        seconds: How long it took.
    """

    detector: str
    network: str
    data: str
    seed: int
    run: str
    members: int = 1
    ood: str | None = None
    severity: int | None = None
    labels: int | None = None
    metric: str | None = None
    value: float | None = None
    status: Status = "ok"
    error: str | None = None
    reductions: str | None = None
    command: str | None = None
    versions: str | None = None
    commit: str | None = None
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

        >>> Row.failed(ValueError("no data"), detector="ddu", network="lenet", data="mnist", seed=0, run="12ab").error
        'ValueError: no data'
        """
        words = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
        return cls(status="failed", error=words, **facts)

    @property
    def key(self) -> RowKey:
        """The question: rows with the same key answer the same one."""
        return RowKey(*(getattr(self, name) for name in RowKey._fields))

    @property
    def subject(self) -> str:
        """What was measured, in words.

        >>> Row.failed("no data", detector="ddu", network="lenet", data="mnist", seed=0, run="12ab", ood="svhn").subject
        'ddu on lenet against svhn, seed 0'
        """
        against = f" against {self.ood}" if self.ood else ""
        severity = f" severity {self.severity}" if self.severity is not None else ""
        labels = f" with {self.labels:,} labels" if self.labels is not None else ""
        return f"{self.detector} on {self.network}{against}{severity}{labels}, seed {self.seed}"


def source(command: str | None) -> dict[str, str | None]:
    """The columns that say what a row was measured with: `command`, `versions` and `commit`."""
    versions = ", ".join(f"{name} {version}" for name, version in provenance.versions().items())
    return {"command": command or None, "versions": versions, "commit": provenance.commit()}


def latest(rows: Iterable[Row]) -> list[Row]:
    """Keeps the last row per key, in the order of their first appearance, and drops failures that were made good.

    A failure without a metric or OoD set is that of a whole run, and any later value of that run makes it good.
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
