"""The diagnosis: every check, one after the other."""

from typing import Any

from ddu.detectors import BaseDetector
from ddu.diagnostics.checkup import Checkup
from ddu.diagnostics.costs import check_memory, check_time
from ddu.diagnostics.findings import Diagnosis
from ddu.diagnostics.judgements import check_drift, check_false_alarms, check_probes
from ddu.diagnostics.sample import Judge, take
from ddu.diagnostics.space import check_classes, check_lipschitz, check_norms
from ddu.errors import InputError, NotFittedError

CHECKS = (
    check_probes,
    check_classes,
    check_lipschitz,
    check_norms,
    check_false_alarms,
    check_memory,
    check_time,
    check_drift,
)
"""Each takes a `Checkup`, yields findings and may fill tables; later ones may add columns to those of earlier ones."""


def diagnose(
    detector: BaseDetector | Judge,
    held_out: Any,
    *,
    train: Any = None,
    new: Any = None,
    limit: int = 5000,
    progress: bool | None = None,
) -> Diagnosis:
    """Is this feature space fit for density? Asks without any OoD data.

    A finding has a severity, its number and what to do. What cannot be asked, for want of data or of a network, is a
    finding as well, which says so. docs/doctor.md explains every check, and how its limits were chosen.

    Args:
        detector: A fitted detector, calibrated if verdicts are to be looked at. Anything else that has `predict`, such
            as an exported graph, is asked what predictions alone can tell.
        held_out: Data that the network was not trained on: a loader or a data set of (inputs, labels); None if there is
            none.
        train: The training data, likewise, for ranks and counts of classes; held-out data stands in for it.
        new: Inputs to compare with the calibration data, whatever `predict` takes: is there drift?
        limit: At most about so many samples of `held_out` and of `train` are looked at: of a data set at random, of a
            loader the first ones.
        progress: `True` shows bars, `False` none; by default they appear if it takes long, on a terminal.

    >>> import torch
    >>> from torch import nn
    >>> from ddu import DDU
    >>> x, y = torch.randn(600, 2), torch.arange(600) % 2
    >>> x[:, 0] += 3 * (2 * y - 1)
    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))
    >>> with torch.no_grad():  # every feature twice
    ...     _ = model[0].weight.copy_(torch.eye(2).repeat(2, 1))
    ...     _ = model[1].weight.copy_(torch.tensor([[-1.0, 0, 0, 0], [1.0, 0, 0, 0]]))
    >>> detector = DDU.paper(model).fit([(x[:300], y[:300])])
    >>> diagnosis = diagnose(detector, [(x[300:], y[300:])], train=[(x[:300], y[:300])])
    >>> next(finding for finding in diagnosis.findings if finding.check == "rank").message
    'Within the classes, 300 samples vary in 2 of 4 directions of the input of 1. The others ...'
    """
    if not isinstance(limit, int) or limit < 1:
        raise InputError(f"The 'limit' parameter of diagnose must be an integer of at least 1. Got {limit!r} instead.")
    if isinstance(detector, BaseDetector) and not detector.is_fitted:
        raise NotFittedError(f"This {type(detector).__name__} detector is not fitted yet: fit it, then diagnose it.")
    held_out, train = (
        None if samples is None else take(detector, samples, limit, what=what, progress=progress)
        for samples, what in ((held_out, "held-out inputs"), (train, "training inputs"))
    )
    checkup = Checkup(detector, held_out, train, new, progress)
    findings = [finding for check in CHECKS for finding in check(checkup)]
    return Diagnosis(tuple(findings), checkup.tables)
