"""What Prometheus is told: requests, batches, the queue, verdicts, p-values and drift."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ddu.messages import require
from ddu.monitoring import Monitor
from ddu.types import Prediction, Verdict

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_INPUTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_P_VALUES = (0.001, 0.005, 0.01, 0.05, *(tenth / 10 for tenth in range(1, 11)))


class Metrics:
    """The metrics of one server, in a registry of their own.

    Args:
        waiting: How many inputs wait in the queue.
        monitor: Watches for drift, if there are calibration scores.
    """

    def __init__(self, waiting: Callable[[], int], monitor: Monitor | None = None):
        prometheus: Any = require("prometheus_client", extra="serve", purpose="The metrics of ddu serve")
        self._prometheus, self._monitor = prometheus, monitor
        self._registry = registry = prometheus.CollectorRegistry()
        self._latency = prometheus.Histogram(
            "ddu_request_seconds",
            "From the first byte of a request to the last of its answer.",
            ["route", "status"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._batches = prometheus.Histogram(
            "ddu_batch_inputs", "Inputs that were judged together.", buckets=_INPUTS, registry=registry
        )
        self._p_values = prometheus.Histogram(
            "ddu_p_value", "The p-value of each input.", buckets=_P_VALUES, registry=registry
        )
        self._verdicts = prometheus.Counter("ddu_verdicts", "Inputs by their verdict.", ["verdict"], registry=registry)
        for verdict in Verdict:
            self._verdicts.labels(str(verdict))
        queue = prometheus.Gauge("ddu_queue_inputs", "Inputs that wait to be judged.", registry=registry)
        queue.set_function(waiting)
        if monitor is not None:
            registry.register(self)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Counts a request that was answered."""
        self._latency.labels(route, str(status)).observe(seconds)

    def count_batch(self, prediction: Prediction) -> None:
        """Counts a batch that was judged, and shows it to the monitor."""
        self._batches.observe(len(prediction))
        for verdict in [] if prediction.verdict is None else np.atleast_1d(prediction.verdict):
            self._verdicts.labels(str(verdict)).inc()
        for p_value in [] if prediction.p_value is None else prediction.p_value.tolist():
            if p_value == p_value:
                self._p_values.observe(p_value)
        if self._monitor is not None:
            self._monitor.update(prediction)

    def collect(self) -> Iterator[Any]:
        """What the monitor has found, in the families of Prometheus."""
        from prometheus_client.core import GaugeMetricFamily

        assert self._monitor is not None
        report = self._monitor.report()
        for name, words, value in (
            ("ddu_drift_log10_evidence", "The common logarithm of the test martingale.", report.log10_evidence),
            ("ddu_drift_p_value", "1 / the largest martingale so far: valid however often.", report.p_value),
            ("ddu_drift_alarm", "Whether it has reached 1 / the false-alarm rate.", report.alarm),
            ("ddu_drift_inputs", "Inputs that were ranked.", report.inputs),
            ("ddu_drift_ks_statistic", "The window against calibration.", report.ks_statistic),
            ("ddu_drift_ks_p_value", "Of one look at the window.", report.ks_p_value),
        ):
            yield GaugeMetricFamily(name, words, float("nan") if value is None else float(value))
        shares = GaugeMetricFamily("ddu_window_verdict_share", "Verdicts of the last inputs.", labels=["verdict"])
        for verdict, share in report.verdict_shares.items():
            shares.add_metric([verdict], share)
        yield shares

    def page(self) -> tuple[bytes, str]:
        """All of it in the text format of Prometheus, and its content type."""
        return self._prometheus.generate_latest(self._registry), self._prometheus.CONTENT_TYPE_LATEST
