"""The metrics of rows: what they are called, which direction is better, how they are written and computed.

The functions turn scores and predictions into values by the names of `METRICS`. Larger scores are more uncertain.
"""

from dataclasses import dataclass
from math import floor, log10
from typing import Literal

from torch import Tensor

from ddu.errors import InputError
from ddu.metrics import (
    accuracy,
    auroc,
    auroc_standard_error,
    average_precision,
    brier_score,
    expected_calibration_error,
    fpr_at_id_kept,
    fpr_at_tpr,
    fpr_standard_error,
    negative_log_likelihood,
    risk_coverage,
    selective_accuracy,
)

# Shares of the predictions that are answered, for the accuracy of a classifier that may refuse
COVERAGES = (0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Metric:
    """How to read a value.

    Attributes:
        label: Its name for people.
        better: Which direction is better, or None where neither is.
        share: Whether it is a share of one, written in per cent.
        noisy: Whether the same seed gives another value each time, as with times and memory.
    """

    label: str
    better: Literal["higher", "lower"] | None = None
    share: bool = False
    noisy: bool = False

    def write(self, mean: float, standard_error: float | None = None) -> str:
        """A value for people, and its standard error to as many decimals: two of a share, four digits of another.

        >>> Metric("AUROC", "higher", share=True).write(0.97861, 0.0019)
        '97.86 ± 0.19'
        >>> Metric("NLL", "lower").write(0.17, 0.00121)
        '0.1700 ± 0.0012'
        """
        scale = 100 if self.share else 1
        style = ".2f" if self.share else _style(mean)
        error = "" if standard_error is None else f" ± {scale * standard_error:{style}}"
        return f"{scale * mean:{style}}{error}"


def _style(value: float) -> str:
    if value == 0:
        return ".3f"
    magnitude = floor(log10(abs(value)))
    return f".{max(0, 3 - magnitude)}f" if -5 < magnitude < 6 else ".3e"


METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", "higher", share=True),
    "accuracy_clean": Metric("accuracy, clean", "higher", share=True),
    "accuracy_ambiguous": Metric("accuracy, ambiguous", "higher", share=True),
    "accuracy_ambiguous_best": Metric("accuracy, ambiguous, at best", share=True),
    "ece": Metric("ECE", "lower", share=True),
    "ece_by_chance": Metric("ECE if perfectly calibrated", share=True),
    "ece_uncalibrated": Metric("ECE as trained", "lower", share=True),
    "ece_adaptive": Metric("ECE, equal-mass bins", "lower", share=True),
    "nll": Metric("NLL", "lower"),
    "nll_uncalibrated": Metric("NLL as trained", "lower"),
    "brier": Metric("Brier score", "lower"),
    "brier_uncalibrated": Metric("Brier score as trained", "lower"),
    "auroc": Metric("AUROC", "higher", share=True),
    "auroc_clean": Metric("AUROC against clean", "higher", share=True),
    "auroc_ambiguous": Metric("AUROC, ambiguous from clean", share=True),
    "aupr_out": Metric("AUPR, OoD positive", "higher", share=True),
    "aupr_in": Metric("AUPR, iD positive", "higher", share=True),
    "fpr95": Metric("FPR at 95 % TPR", "lower", share=True),
    "auroc_error": Metric("AUROC, standard error", share=True),
    "fpr95_error": Metric("FPR at 95 % TPR, standard error", share=True),
    "fpr95_in": Metric("OoD passed with 95 % iD kept", "lower", share=True),
    "aurc": Metric("area under risk-coverage", "lower", share=True),
    **{
        f"accuracy_at_{100 * coverage:.0f}": Metric(f"accuracy on surest {coverage:.0%}", "higher", share=True)
        for coverage in COVERAGES
    },
    "false_alarm_rate": Metric("false alarms", share=True),
    "detection_rate": Metric("OoD detected", "higher", share=True),
    "temperature": Metric("temperature"),
    "conditional_cross_entropy": Metric("H(Y|Z)", "lower"),
    "joint_cross_entropy": Metric("H(Y,Z)", "lower"),
    "marginal_cross_entropy": Metric("H(Z)", "lower"),
    "overconfidence": Metric("overconfidence, nats"),
    "entropy_at_star": Metric("entropy at (0, -5)"),
    "mean_uncertainty": Metric("mean, nats:"),
    "entropy_deviation": Metric("deviation of the mean entropy"),
    "agreed_share": Metric("inputs that all agree on", share=True),
    "variance_violations": Metric("Dirichlet variance above empirical", share=True),
    "variance_violations_printed": Metric("the same, theorem as printed", share=True),
    "variance_violations_by_chance": Metric("the same, by chance", share=True),
    "variance_ratio": Metric("median ratio of variances"),
    "entropy_distance": Metric("distance of entropy distributions", share=True),
    "mean_entropy": Metric("mean entropy, nats"),
    "mean_log_density": Metric("mean log-density", "higher"),
    "mean_mutual_information": Metric("mean mutual information, nats"),
    "correlation_with_ensemble_mi": Metric("correlation with mutual information"),
    "distance_ratio_low": Metric("least distance ratio / median", "higher"),
    "distance_ratio_high": Metric("largest distance ratio / median", "lower"),
    "mean_accuracy": Metric("accuracy, mean of the curve", "higher", share=True),
    **{f"labels_to_{level}": Metric(f"labels to {level} %", "lower") for level in (70, 80, 90, 95)},
    "ambiguous_share": Metric("ambiguous, of all acquired", share=True),
    "round_seconds": Metric("seconds per round", "lower", noisy=True),
    "training_seconds": Metric("seconds to train and fit", "lower", noisy=True),
    "training_ratio": Metric("training time, ratio", "lower", noisy=True),
    "seconds_per_thousand": Metric("seconds / 1,000 inputs", "lower", noisy=True),
    "inference_ratio": Metric("inference time, ratio", "lower", noisy=True),
    "megabytes_per_thousand": Metric("MB / 1,000 inputs", "lower", noisy=True),
}


def describe(metric: str) -> Metric:
    """How to read the values of a metric; one that is not in `METRICS` is written under its own name, unjudged."""
    return METRICS.get(metric, Metric(metric))


def ood_metrics(in_scores: Tensor, out_scores: Tensor) -> dict[str, float]:
    """How well a score tells out of distribution, the positive class, from in distribution.

    Args:
        in_scores: Uncertainties of in-distribution inputs, (n,).
        out_scores: Uncertainties of out-of-distribution inputs, (m,).

    Returns:
        auroc; aupr_out and aupr_in, with the kind named as the positive class; fpr95, the share of iD inputs flagged
        when 95 % of OoD inputs are found; fpr95_in, the share of OoD inputs that pass when 95 % of iD inputs are kept.
    """
    in_scores, out_scores = in_scores.double(), out_scores.double()
    return {
        "auroc": auroc(in_scores, out_scores),
        "aupr_out": average_precision(in_scores, out_scores),
        "aupr_in": average_precision(-out_scores, -in_scores),
        "fpr95": fpr_at_tpr(in_scores, out_scores, 0.95),
        "fpr95_in": fpr_at_id_kept(in_scores, out_scores, 0.95),
    }


def ood_errors(in_scores: Tensor, out_scores: Tensor) -> dict[str, float]:
    """The standard errors of two of `ood_metrics`, over inputs of the same two kinds: auroc_error and fpr95_error."""
    in_scores, out_scores = in_scores.double(), out_scores.double()
    return {
        "auroc_error": auroc_standard_error(in_scores, out_scores),
        "fpr95_error": fpr_standard_error(in_scores, out_scores, 0.95),
    }


def classification_metrics(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> dict[str, float]:
    """How right and how well calibrated predictions are, as trained and after division of the logits by a temperature.

    Args:
        logits: Logits as trained, (sample, class). For an ensemble, the logarithms of its mean probabilities.
        labels: True classes, (sample,).
        temperature: The temperature that was fitted on held-out data.

    Returns:
        accuracy and temperature; nll, brier, ece (15 equal-width bins) and ece_adaptive (15 bins of equally many
        samples) after temperature scaling; nll_uncalibrated, brier_uncalibrated and ece_uncalibrated before it.
    """
    if not temperature > 0:
        raise InputError(f"A temperature must be above 0. Got {temperature}.")
    logits = logits.double()
    scaled = logits / temperature
    uncalibrated, probs = logits.softmax(1), scaled.softmax(1)
    return {
        "accuracy": accuracy(probs, labels),
        "temperature": float(temperature),
        "nll": negative_log_likelihood(scaled, labels),
        "nll_uncalibrated": negative_log_likelihood(logits, labels),
        "brier": brier_score(probs, labels),
        "brier_uncalibrated": brier_score(uncalibrated, labels),
        "ece": expected_calibration_error(probs, labels),
        "ece_uncalibrated": expected_calibration_error(uncalibrated, labels),
        "ece_adaptive": expected_calibration_error(probs, labels, adaptive=True),
    }


def selective_metrics(uncertainty: Tensor, correct: Tensor) -> dict[str, float]:
    """How right a classifier is that refuses its most uncertain predictions.

    Args:
        uncertainty: Larger is refused earlier, (n,).
        correct: Whether each prediction is right, (n,). Out-of-distribution inputs have no right prediction.

    Returns:
        aurc, the mean error rate over all coverages; accuracy_at_80, _90 and _95, the accuracy when that many per cent
        are answered.
    """
    accuracies = selective_accuracy(uncertainty, correct, COVERAGES)
    return {"aurc": risk_coverage(uncertainty, correct).area} | {
        f"accuracy_at_{100 * coverage:.0f}": value for coverage, value in zip(COVERAGES, accuracies, strict=True)
    }


def false_alarm_metrics(in_scores: Tensor, threshold: float, out_scores: Tensor | None = None) -> dict[str, float]:
    """What a calibrated threshold really does: inputs whose uncertainty is above it are called out of distribution.

    Args:
        in_scores: Uncertainties of in-distribution inputs that the threshold was not calibrated on, (n,).
        threshold: The threshold.
        out_scores: Uncertainties of out-of-distribution inputs, (m,).

    Returns:
        false_alarm_rate, the share of iD inputs that are called OoD; with OoD inputs also detection_rate, their share.
    """
    rates = {"false_alarm_rate": _share_above(in_scores, threshold)}
    if out_scores is not None:
        rates["detection_rate"] = _share_above(out_scores, threshold)
    return rates


def _share_above(scores: Tensor, threshold: float) -> float:
    if scores.numel() == 0 or scores.isnan().any():
        raise InputError(
            f"A rate needs scores that are not NaN, at least one. Got {scores.numel()}, of which "
            f"{int(scores.isnan().sum())} are NaN."
        )
    return float((scores.double() > threshold).double().mean())
