"""One detector, fitted, calibrated, asked about every set, and timed."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddu import data
from ddu.comparison._networks import Members, TrainedNetwork
from ddu.comparison._scores import Judged, Scores
from ddu.detectors import BaseDetector, Evidence
from ddu.evaluation import measure_cost
from ddu.features import FeatureBatch
from ddu.measures import entropy

# Costs are those of a thousand test inputs, or all there are, in batches of 250
_COST_INPUTS, _COST_BATCH = 1000, 250


@dataclass(frozen=True)
class Measured:
    """What came of asking a detector.

    Attributes:
        scores: What it says of the test set and of the OoD sets, but for those that failed.
        values: Each metric's value, by OoD set; those of None are in distribution, and the costs.
        failures: What went wrong, by OoD set.
    """

    scores: Scores
    values: dict[str | None, dict[str, float]]
    failures: dict[str, Exception]


def measure(
    detector: BaseDetector, network: TrainedNetwork | Members, *, ood: Iterable[str], false_alarm_rate: float, seed: int
) -> Measured:
    """Fits and calibrates a detector, and asks it about the test set and OoD sets.

    An OoD set that it cannot be asked about does not keep it from being asked about the others.

    Args:
        detector: The detector around the network, not fitted yet.
        network: Gives features and logits, or inputs to a detector that wants those.
        ood: The OoD sets to ask about.
        false_alarm_rate: What to calibrate for.
        seed: Of whatever the detector draws.

    Returns:
        What it says, the metrics of that, and what it costs: training_seconds, of the network, the fit and the
        calibration together; seconds_per_thousand and megabytes_per_thousand, of whole predictions, the network
        included.
    """
    serves = network.serves(detector)

    def batches(name: str) -> Iterable[Any]:
        return network.batches(name) if serves else data.loader(network.sets[name])

    learned_from = ["train"] * detector.needs_fit + ["validation"]
    given = {name: batches(name) for name in learned_from}
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if detector.needs_fit:
            detector.fit(given["train"])
        detector.calibrate(given["validation"], false_alarm_rate)
    fitting_seconds = time.perf_counter() - started
    if serves:
        fitting_seconds += sum(network.extraction_seconds[name] for name in learned_from)
    scores, failures = _ask_test(detector, batches("test")), dict[str, Exception]()
    values: dict[str | None, dict[str, float]] = {None: scores.in_distribution_metrics()}
    for name in ood:
        try:
            asked = scores.with_ood(name, _judged(_evidence(detector, batches(name))[0], detector.temperature))
            values[name] = asked.ood_metrics(name)
            scores = asked
        except Exception as error:
            failures[name] = error
    values[None] |= {"training_seconds": network.training_seconds + fitting_seconds}
    values[None] |= measure_cost(lambda inputs: _predict(detector, inputs), _cost_inputs(network))
    return Measured(scores, values, failures)


def _ask_test(detector: BaseDetector, batches: Iterable[Any]) -> Scores:
    assert detector.epistemic_threshold is not None
    evidence, labels = _evidence(detector, batches)
    judged = _judged(evidence, detector.temperature)
    return Scores(evidence.logits, labels, detector.temperature, detector.epistemic_threshold, judged, ood={})


def _evidence(detector: BaseDetector, batches: Iterable[Any]) -> tuple[Evidence, Tensor]:
    """What the detector makes of a set, and the labels."""
    found, labels = [], []
    for batch in batches:
        inputs, truth = (batch, batch.labels) if isinstance(batch, FeatureBatch) else batch
        found.append(detector.evidence(inputs))
        labels.append(truth)
    logits, epistemic = (torch.cat(column).cpu() for column in zip(*found, strict=True))
    return Evidence(logits, epistemic), torch.cat(labels).cpu()


def _judged(evidence: Evidence, temperature: float) -> Judged:
    return Judged(evidence.epistemic, entropy(evidence.logits / temperature))


def _predict(detector: BaseDetector, inputs: Tensor) -> None:
    for batch in inputs.split(_COST_BATCH):
        detector.predict(batch)


def _cost_inputs(network: TrainedNetwork | Members) -> Tensor:
    test = network.sets["test"]
    inputs, _ = test.__getitems__(range(min(_COST_INPUTS, len(test))))
    return inputs
