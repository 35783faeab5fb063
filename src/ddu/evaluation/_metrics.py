"""What the values of rows mean: their names, which direction is better, and how they are written."""

from dataclasses import dataclass
from math import floor, log10
from typing import Literal

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
    "ece": Metric("ECE", "lower", share=True),
    "ece_uncalibrated": Metric("ECE as trained", "lower", share=True),
    "ece_adaptive": Metric("ECE, equal-mass bins", "lower", share=True),
    "nll": Metric("NLL", "lower"),
    "nll_uncalibrated": Metric("NLL as trained", "lower"),
    "brier": Metric("Brier score", "lower"),
    "brier_uncalibrated": Metric("Brier score as trained", "lower"),
    "auroc": Metric("AUROC", "higher", share=True),
    "aupr_out": Metric("AUPR, OoD positive", "higher", share=True),
    "aupr_in": Metric("AUPR, iD positive", "higher", share=True),
    "fpr95": Metric("FPR at 95 % TPR", "lower", share=True),
    "fpr95_in": Metric("OoD passed with 95 % iD kept", "lower", share=True),
    "aurc": Metric("area under risk-coverage", "lower", share=True),
    **{
        f"accuracy_at_{100 * coverage:.0f}": Metric(f"accuracy on surest {coverage:.0%}", "higher", share=True)
        for coverage in COVERAGES
    },
    "false_alarm_rate": Metric("false alarms", share=True),
    "detection_rate": Metric("OoD detected", "higher", share=True),
    "temperature": Metric("temperature"),
    "training_seconds": Metric("seconds to train and fit", "lower", noisy=True),
    "training_ratio": Metric("training time, ratio", "lower", noisy=True),
    "seconds_per_thousand": Metric("seconds / 1,000 inputs", "lower", noisy=True),
    "inference_ratio": Metric("inference time, ratio", "lower", noisy=True),
    "megabytes_per_thousand": Metric("MB / 1,000 inputs", "lower", noisy=True),
}


def describe(metric: str) -> Metric:
    """How to read the values of a metric; one that is not in `METRICS` is written under its own name, unjudged."""
    return METRICS.get(metric, Metric(metric))
