"""Checks of what is judged: inputs that are plainly unknown, held-out ones by class, and new ones.

The probes tell networks apart. For each kind of change, the AUROC between held-out inputs and changed ones is that of
the score and, beside it, that of each part. The density of the last layer alone is the paper's detector: where it takes
noise or random phases for data, features have collapsed, whatever other layers see. docs/doctor.md has the measurements
that the limits were chosen by.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddu.conformal import binomial_cdf
from ddu.detectors import DDU
from ddu.diagnostics.changes import PARTLY_KNOWN, changed
from ddu.diagnostics.checkup import NEEDS_HELD_OUT, Checkup, not_asked
from ddu.diagnostics.findings import SEVERITIES, Finding, Severity
from ddu.diagnostics.sample import look
from ddu.errors import NotFittedError
from ddu.features.loaders import batches_of
from ddu.metrics import auroc
from ddu.monitoring import Monitor
from ddu.progress import track
from ddu.types import Prediction, Verdict

# Half of the way from chance to perfect; and what can hardly be missed
_BLIND, _SEEN = 0.75, 0.95
_CHANCE, _HALF = 0.5, 0.5
# More false alarms than allowed are less probable than this, if all is well
_LEVEL = 0.01
# Standard errors of the calibration's own rate
_ERRORS = 3.0
_FEWEST, _BATCH = 8, 128

_SENSITIVE = (
    "Train with residual connections and spectral norm, ddu.create_model or ddu.surgery.regularise; or judge by more "
    "layers, ddu.DDU(model)."
)
_NOT_ALONE = (
    "Do not judge by this layer alone, as DDU.paper does. A network with residual connections and spectral norm, "
    "ddu.create_model or ddu.surgery.regularise, keeps such inputs apart."
)


def check_probes(checkup: Checkup) -> Iterator[Finding]:
    """Are synthetic inputs that are plainly unknown told from held-out ones, by the score and by the last layer?"""
    held_out = checkup.held_out
    if held_out is None:
        yield not_asked("probes", *NEEDS_HELD_OUT)
        return
    probes = {} if held_out.inputs is None or len(held_out.inputs) < _FEWEST else changed(held_out.inputs)
    if not probes:
        yield not_asked(
            "probes",
            f"no change is known for such inputs, or there are less than {_FEWEST} of them.",
            "Judge inputs that you know to be unknown: `ddu evaluate --ood`.",
        )
        return
    assert held_out.inputs is not None
    names, last = _parts(checkup)
    labels = held_out.prediction.label[held_out.rows]
    rows = checkup.tables["probes"] = []
    for kind, inputs in track(probes.items(), "probes", show=checkup.progress):
        found = [look(checkup.judge, batch) for batch in inputs.split(_BATCH)]
        prediction, values = Prediction.join([one[0] for one in found]), torch.cat([one[2] for one in found])
        areas = [_area(known, new) for known, new in zip(held_out.values.T, values.T, strict=True)]
        rows.append(
            {
                "probe": kind,
                "inputs": len(inputs),
                "flagged": _flagged(prediction),
                "auroc": _area(held_out.prediction.epistemic, prediction.epistemic),
                "other_class": float((prediction.label != labels).double().mean()),
                "parts": dict(zip(names, areas, strict=True)),
            }
        )
    rate = getattr(checkup.judge, "false_alarm_rate", None)
    yield _seen("probes", "The score", rows, rate, "problem", _way_out(checkup))
    if last is not None and len(names) > 1:
        own = [row | {"auroc": row["parts"][last], "flagged": None} for row in rows]
        yield _seen("features", f"The density of the last layer alone, {last},", own, None, "warning", _NOT_ALONE)


def _parts(checkup: Checkup) -> tuple[list[str], str | None]:
    """The names of the score's parts, and which of them is the density of the last layer, of raw features if any is."""
    if checkup.score is None:
        return ["score"], None
    parts = checkup.score.parts
    last = max(part.layer for part in parts if part.density is not None)
    of_last = [part for part in parts if part.layer == last and part.density is not None]
    return [part.name for part in parts], max(of_last, key=lambda part: part.view == "raw").name


def _seen(
    check: str, what: str, rows: list[dict[str, Any]], rate: float | None, worst: Severity, remedy: str
) -> Finding:
    """How well the probe that is seen worst is told from held-out inputs."""
    counted = [row for row in rows if _counts(row)]
    if not counted:
        return Finding("note", check, f"{what} was shown {len(rows)} kinds of changed inputs, none surely unknown.")
    row = min(counted, key=lambda row: (-SEVERITIES.index(_judged(row, worst)), row["auroc"]))
    area, flagged, severity = row["auroc"], row["flagged"], _judged(row, worst)
    shares = "" if flagged is None or rate is None else f", and flags {flagged:.0%} of them at a rate of {rate:g}"
    message = (
        f"{what} tells {row['probe']} from the held-out ones that they are made from with an AUROC of {area:.3f}"
        f"{shares}{f'; of {len(counted)} kinds this is seen worst' * (len(counted) > 1)}."
    )
    return Finding(severity, check, message, area, None if severity == "ok" else remedy)


def _judged(row: dict[str, Any], worst: Severity) -> Severity:
    """How bad it is that a probe is seen no better; one that is known in part need only be no more usual than data."""
    if row["auroc"] < (_CHANCE if row["probe"] in PARTLY_KNOWN else _BLIND):
        return worst
    flagged = row["flagged"]
    missed = row["auroc"] < _SEEN or (flagged is not None and flagged < _HALF)
    return "warning" if missed and row["probe"] not in PARTLY_KNOWN else "ok"


def _counts(row: dict[str, Any]) -> bool:
    """Whether a probe is surely unknown; where it may be legitimate data, other predictions have to say so."""
    return row["probe"] not in PARTLY_KNOWN or row["other_class"] >= _HALF


def _way_out(checkup: Checkup) -> str:
    return checkup.judge.sees_more if isinstance(checkup.judge, DDU) else _SENSITIVE


def check_false_alarms(checkup: Checkup) -> Iterator[Finding]:
    """Are held-out inputs flagged more often than allowed, all of them or those of a class?"""
    held_out = checkup.held_out
    if held_out is None:
        yield not_asked("false alarms", *NEEDS_HELD_OUT)
        return
    prediction = held_out.prediction
    rate: float | None = getattr(checkup.judge, "false_alarm_rate", None)
    if rate is None or prediction.verdict is None:
        yield not_asked("false alarms", "the detector is not calibrated.", "Call detector.calibrate(held_out).")
        return
    flagged = torch.from_numpy(np.asarray(prediction.verdict) == Verdict.OUT_OF_DISTRIBUTION)
    # The rate of a calibration on n inputs is itself known up to √(r (1 - r) / n)
    ranked = 1 / prediction.least_p_value - 1 if prediction.least_p_value else math.inf
    allowed = min(rate + _ERRORS * math.sqrt(rate * (1 - rate) / max(ranked, 1)), 0.99)
    total, count = int(flagged.sum()), len(flagged)
    message = f"{total:,} of {count:,} held-out inputs are flagged, {total / count:.1%}; {rate:.1%} may be."
    if _improbable(total, count, allowed, _LEVEL):
        remedy = "They are not like the calibration data: check their preprocessing, or calibrate on data like them."
        yield Finding("problem", "false alarms", message, total / count, remedy)
    else:
        yield Finding("ok", "false alarms", message, total / count)
    yield _by_class(checkup, flagged, held_out.labels, rate, allowed)


def _by_class(checkup: Checkup, flagged: Tensor, labels: Tensor, rate: float, allowed: float) -> Finding:
    classes = labels.unique().tolist()
    shares = {c: (int(flagged[labels == c].sum()), int((labels == c).sum())) for c in classes}
    names = checkup.class_names
    for row in checkup.tables.get("classes", []):
        total, count = shares.get(row["class"], (0, 0))
        row |= {"held_out": count, "false_alarm_rate": total / count if count else None}
    bad = [c for c, (total, count) in shares.items() if _improbable(total, count, allowed, _LEVEL / len(classes))]
    worst = max(classes, key=lambda c: shares[c][0] / shares[c][1])
    total, count = shares[worst]
    message = (
        f"Of class {names[worst]}, {total} of {count} held-out inputs are flagged, {total / count:.1%}, the most of "
        f"{len(classes)} classes; {rate:.1%} may be."
    )
    if not bad:
        return Finding("ok", "false alarms by class", message, total / count)
    several = f" {len(bad)} classes are flagged more often than chance explains." if len(bad) > 1 else ""
    remedy = "Calibrate with per_class=True, which keeps the rate in every predicted class; check that class's labels."
    return Finding("warning", "false alarms by class", message + several, total / count, remedy)


def _improbable(count: int, samples: int, rate: float, level: float) -> bool:
    """Whether so many or more of the samples are less probable than `level`, at this rate."""
    return count > 0 and 1 - binomial_cdf(count - 1, samples, rate) < level


def check_drift(checkup: Checkup) -> Iterator[Finding]:
    """Are new inputs like the calibration data?"""
    if checkup.new is None:
        return
    try:
        monitor = _monitor(checkup)
    except NotFittedError as error:
        yield not_asked("drift", f"{error}", "Calibrate the detector, or give held-out data.")
        return
    for batch in batches_of(checkup.new, _BATCH, progress=checkup.progress):
        monitor.update(checkup.judge.predict(batch))
    report = monitor.report()
    unknown = report.verdict_shares.get(Verdict.OUT_OF_DISTRIBUTION, 0.0)
    message = (
        f"Of {report.inputs:,} new inputs, {unknown:.1%} are out of distribution; that they are like the calibration "
        f"data has a p-value of {report.p_value:.2g}."
    )
    if not report.alarm:
        yield Finding("ok", "drift", message, report.p_value)
        return
    remedy = "Look at the inputs with the smallest p-values (`ddu predict`); calibrate, or train, on data like them."
    yield Finding("problem", "drift", message, report.p_value, remedy)


def _monitor(checkup: Checkup) -> Monitor:
    if checkup.detector is not None:
        return Monitor.of(checkup.detector)
    if checkup.held_out is None:
        raise NotFittedError("a graph alone has no calibration scores.")
    return Monitor(checkup.held_out.prediction.epistemic)


def _area(known: Tensor, new: Tensor) -> float:
    return auroc(known.cpu().double(), new.cpu().double())


def _flagged(prediction: Prediction) -> float | None:
    if prediction.verdict is None:
        return None
    return float(np.mean(np.asarray(prediction.verdict) == Verdict.OUT_OF_DISTRIBUTION))
