"""What a diagnosis consists of."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Severity = Literal["ok", "note", "warning", "problem"]

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From good to bad: nothing to do; good to know, or not asked; look at it; verdicts are not to be trusted."""


@dataclass(frozen=True)
class Finding:
    """The answer of one check.

    Attributes:
        severity: One of `SEVERITIES`.
        check: The short name of the check.
        message: One or two sentences with the numbers.
        value: The number itself; None where the check could not be asked.
        remedy: What to do about it; None where nothing is to be done.
    """

    severity: Severity
    check: str
    message: str
    value: float | None = None
    remedy: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """All findings, the worst first, and the tables behind them.

    Attributes:
        findings: The findings.
        tables: Lists of rows by name: "classes", "layers", "norms" and "probes"; those that were not asked are absent.
    """

    findings: tuple[Finding, ...]
    tables: Mapping[str, list[dict[str, Any]]]

    def __post_init__(self) -> None:
        worst_first = sorted(self.findings, key=lambda finding: -SEVERITIES.index(finding.severity))
        object.__setattr__(self, "findings", tuple(worst_first))

    @property
    def severity(self) -> Severity:
        """The worst severity of all findings."""
        return self.findings[0].severity if self.findings else "ok"

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings that are as bad as this, or worse."""
        least = SEVERITIES.index(severity)
        return tuple(one for one in self.findings if SEVERITIES.index(one.severity) >= least)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; numbers that are not finite become None."""
        return _as_json({"findings": [asdict(one) for one in self.findings], "tables": dict(self.tables)})

    def __str__(self) -> str:
        lines = [f"{one.severity:8}{one.check}: {one.message} {one.remedy or ''}".rstrip() for one in self.findings]
        return "\n".join(lines)


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_json(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_as_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
