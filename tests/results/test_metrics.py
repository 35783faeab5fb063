"""Protocols against scikit-learn and by what they promise."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score, roc_curve

from ddu.calibration import fit_temperature
from ddu.conformal import conformal_rank
from ddu.errors import InputError
from ddu.results import METRICS, classification_metrics, false_alarm_metrics, ood_metrics, selective_metrics


def noise(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_every_value_has_a_description():
    logits, labels = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])
    scores = noise(4)
    names = [
        *ood_metrics(scores, scores),
        *classification_metrics(logits, labels),
        *selective_metrics(scores, labels == 0),
        *false_alarm_metrics(scores, 0.0, scores),
    ]
    assert len(names) == len(set(names))
    assert set(names) <= set(METRICS)


def test_ood_metrics_equal_scikit_learns_for_either_positive_class():
    known, unknown = noise(1000), noise(2600, seed=1) + 1
    truth, scores = np.repeat([0, 1], [1000, 2600]), torch.cat([known, unknown]).numpy()
    found_fpr, found, _ = roc_curve(truth, scores, drop_intermediate=False)
    passed_fpr, kept, _ = roc_curve(1 - truth, -scores, drop_intermediate=False)
    expected = {
        "auroc": roc_auc_score(truth, scores),
        "aupr_out": average_precision_score(truth, scores),
        "aupr_in": average_precision_score(1 - truth, -scores),
        "fpr95": found_fpr[np.argmax(found >= 0.95)],
        "fpr95_in": passed_fpr[np.argmax(kept >= 0.95)],
    }
    assert ood_metrics(known, unknown) == pytest.approx(expected, abs=1e-12)
    assert len(set(expected.values())) == 5


def test_a_temperature_changes_calibration_and_not_accuracy():
    generator = torch.Generator().manual_seed(0)
    calibrated = 2 * torch.randn(4000, 5, generator=generator)
    labels = torch.multinomial(calibrated.softmax(1), 1, generator=generator).squeeze(1)
    overconfident = 3 * calibrated
    values = classification_metrics(overconfident, labels, fit_temperature(overconfident, labels))
    assert values["temperature"] == pytest.approx(3, rel=0.05)
    assert values["accuracy"] == float((calibrated.argmax(1) == labels).double().mean())
    for name in ("nll", "brier", "ece"):
        assert values[name] < values[f"{name}_uncalibrated"]
    probs = (overconfident.double() / values["temperature"]).softmax(1)
    assert values["nll"] == pytest.approx(log_loss(labels, probs, labels=np.arange(5)), rel=1e-9)
    assert values["ece"] < 0.02
    assert values["ece_uncalibrated"] > 0.1
    assert values["ece_adaptive"] == pytest.approx(values["ece"], abs=0.01)


def test_without_a_temperature_both_readings_agree():
    logits, labels = noise(300).reshape(100, 3), torch.arange(100) % 3
    values = classification_metrics(logits, labels)
    for name in ("nll", "brier", "ece"):
        assert values[name] == values[f"{name}_uncalibrated"]


def test_a_temperature_that_is_none_is_refused():
    with pytest.raises(InputError) as caught:
        classification_metrics(torch.zeros(2, 2), torch.zeros(2).long(), temperature=0.0)
    assert str(caught.value) == "A temperature must be above 0. Got 0.0."


def test_refusing_the_mistakes_first_leaves_the_rest_right():
    correct = torch.arange(100) < 90
    values = selective_metrics(torch.arange(100.0), correct)
    assert values == pytest.approx(
        {
            "aurc": np.mean([max(0, k - 90) / k for k in range(1, 101)]),
            "accuracy_at_80": 1.0,
            "accuracy_at_90": 1.0,
            "accuracy_at_95": 90 / 95,
        }
    )


def test_the_realised_false_alarm_rate_is_near_the_one_calibrated_for():
    threshold = float(noise(20_000).sort(descending=True).values[conformal_rank(20_000, 0.05) - 1])
    values = false_alarm_metrics(noise(20_000, seed=1), threshold, noise(20_000, seed=2) + 4)
    # Both the threshold and the rate are estimates: four standard deviations of their difference
    deviation = np.sqrt(2 * 0.05 * 0.95 / 20_000)
    assert values["false_alarm_rate"] == pytest.approx(0.05, abs=4 * deviation)
    assert values["detection_rate"] > 0.98


def test_an_input_at_the_threshold_is_no_alarm():
    assert false_alarm_metrics(torch.tensor([1.0, 2.0, 3.0, 4.0]), 3.0) == {"false_alarm_rate": 0.25}
    # In float32 the threshold would round up to the score
    assert false_alarm_metrics(torch.tensor([1.0]), 1 - 1e-12) == {"false_alarm_rate": 1.0}


def test_a_rate_of_nothing_or_of_nan_is_refused():
    with pytest.raises(InputError) as caught:
        false_alarm_metrics(torch.tensor([1.0, torch.nan]), 0.0)
    assert str(caught.value) == ("A rate needs scores that are not NaN, at least one. Got 2, of which 1 are NaN.")
    with pytest.raises(InputError) as caught:
        false_alarm_metrics(torch.tensor([1.0]), 0.0, torch.tensor([]))
    assert str(caught.value) == ("A rate needs scores that are not NaN, at least one. Got 0, of which 0 are NaN.")
