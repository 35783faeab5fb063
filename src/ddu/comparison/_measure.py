"""One detector, fitted, calibrated, asked about every set, and timed."""

import time
from collections.abc import Iterable
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


def measure(
    detector: BaseDetector, network: TrainedNetwork | Members, *, ood: Iterable[str], false_alarm_rate: float, seed: int
) -> tuple[Scores, dict[str, float]]:
    """Fits and calibrates a detector, and asks it about the test set and OoD sets.

    Args:
        detector: The detector around the network, not fitted yet.
        network: Gives features and logits, or inputs to a detector that wants those.
        ood: The OoD sets to ask about.
        false_alarm_rate: What to calibrate for.
        seed: Of whatever the detector draws.

    Returns:
        What it says, and what it costs: training_seconds, of the network, the fit and the calibration together;
        seconds_per_thousand and megabytes_per_thousand, of whole predictions, the network included.
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
    scores = _ask(detector, batches("test"), {name: batches(name) for name in ood})
    cost = {"training_seconds": network.training_seconds + fitting_seconds}
    return scores, cost | measure_cost(lambda inputs: _predict(detector, inputs), _cost_inputs(network))


def _ask(detector: BaseDetector, test: Iterable[Any], ood: dict[str, Iterable[Any]]) -> Scores:
    assert detector.epistemic_threshold is not None
    evidence, labels = _evidence(detector, test)
    return Scores(
        logits=evidence.logits,
        labels=labels,
        temperature=detector.temperature,
        threshold=detector.epistemic_threshold,
        test=_judged(evidence, detector.temperature),
        ood={name: _judged(_evidence(detector, batches)[0], detector.temperature) for name, batches in ood.items()},
    )


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
