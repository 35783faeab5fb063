"""Is this stream of inputs still like the calibration data? Inputs one by one may pass, and the stream still be wrong.

    monitor = Monitor.of(detector)
    monitor.update(detector.predict(images))
    print(monitor.report())

Each input is ranked by its epistemic score among the calibration scores *and the inputs before it*, ties at random. If
all of them are exchangeable, these p-values are independent and uniform (Vovk, Nouretdinov and Gammerman, "Testing
exchangeability on-line", 2003). So whoever bets against that with a capital of 1 has 100 at any time of the whole
stream with a probability of at most 1 / 100 (Ville's inequality). The capital is a test martingale, and an alarm is
raised when it reaches 1 / false_alarm_rate. p-values against a fixed set share its error: on a long stream they are
uniform for no set of finite size, and a martingale on them raises an alarm sooner or later.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any, Protocol, Self

import numpy as np
import torch

from ddu.conformal import check_share
from ddu.errors import InputError, NotFittedError
from ddu.types import Prediction, Verdict

_CELLS = 2**14  # of the grid on which scores are ranked
_LEAST = 20  # calibration scores
_CHUNK = 128  # inputs that are ranked together
_TINY = 2.0**-53

# Bets on a uniform x: `shape x^(shape - 1)`, for more small ones than there should be,
_SHAPES = np.array([0.5, 0.8, 0.95])
# and on the share of x below a limit, for a few that are very small
_LIMIT, _STAKE = 0.01, 0.05
# Of p, 1 - p, and how far p is from the middle and from both ends; most of the capital is on p: inputs are less known
_WEIGHTS = np.array([3.0] * 4 + [1.0] * 9)
_WEIGHTS /= _WEIGHTS.sum()


class OnlineRanks:
    """Ranks each score among calibration scores and all scores before it, in bounded memory.

    Scores are ranked by the cell of a grid that they fall into. A random tenth of the calibration scores makes the
    grid, and is not ranked, so that the ranks of all others are as exact as without a grid: equal cells are ties.

    Args:
        calibration: Scores of held-out inputs, (sample,).
        seed: Decides ties and the grid.

    >>> ranks = OnlineRanks(np.arange(1000.0))
    >>> bool(ranks.update(np.array([2000.0]))[0] < 0.002)
    True
    """

    def __init__(self, calibration: np.ndarray, seed: int = 0):
        scores = _finite(calibration)
        self._random = np.random.default_rng(seed)
        order = self._random.permutation(len(scores))
        tenth = max(2, len(scores) // 10)
        self._grid = np.unique(scores[order[:tenth]])
        self._counts = np.bincount(self._cells(scores[order[tenth:]]), minlength=_CELLS)

    def update(self, scores: np.ndarray) -> np.ndarray:
        """The p-value of each score: a share of about p of the inputs has scores that are as large, (sample,)."""
        chunks = [scores[i : i + _CHUNK] for i in range(0, len(scores), _CHUNK)]
        return np.concatenate([self._update(chunk) for chunk in chunks]) if chunks else np.empty(0)

    def _update(self, scores: np.ndarray) -> np.ndarray:
        cells, total = self._cells(scores), self._counts.sum()
        at_most = self._counts.cumsum()
        # Those before this chunk, then those before each within it
        above = total - at_most[cells] + np.tril(cells[None] > cells[:, None], -1).sum(1)
        equal = self._counts[cells] + np.tril(cells[None] == cells[:, None], -1).sum(1)
        self._counts += np.bincount(cells, minlength=_CELLS)
        # p = (above + u (equal + 1)) / (all + 1), with u in (0, 1]
        u = 1 - self._random.random(len(cells))
        return (above + u * (equal + 1)) / (total + np.arange(len(cells)) + 1)

    def _cells(self, scores: np.ndarray) -> np.ndarray:
        """The cell of each score: evenly between two points of the grid, and ever wider beyond its ends."""
        low, high = self._grid[0], self._grid[-1]
        spread = high - low if high > low else 1.0
        # 1 to k at the points of the grid; 0 and k + 1 at infinity
        inside = np.interp(scores, self._grid, np.arange(1.0, len(self._grid) + 1))
        with np.errstate(over="ignore"):
            below, beyond = np.maximum(low - scores, 0) / spread, np.maximum(scores - high, 0) / spread
        place = inside + 1 / (1 + below) - 1 / (1 + beyond)
        return np.minimum((place / (len(self._grid) + 1) * _CELLS).astype(np.int64), _CELLS - 1)


class Martingale:
    """The capital of somebody who bets that p-values are not uniform, beginning with 1.

    A share π_k of the capital, 1 / (1 + log k) - 1 / (1 + log(k + 1)), enters the game at the k-th p-value, so that a
    change is found soon however late it comes: after k inputs it has to win about log k + 2 log log k more. Each entry
    is spread over several bets, whose expectation is 1 if p is uniform:

        S_k = (S_(k-1) + π_k) bet(p_k),   capital = S_k + what has not entered yet.

    Attributes:
        count: How many p-values it has seen.
        peak: The logarithm of the largest capital so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self.peak = 0.0
        self._log_stakes = np.full(len(_WEIGHTS), -np.inf)  # log S of each bet

    def update(self, p_values: np.ndarray) -> np.ndarray:
        """The logarithm of the capital after each p-value, (sample,)."""
        if not len(p_values):
            return np.empty(0)
        k = self.count + np.arange(1, len(p_values) + 1)
        log_bets = _log_bets(p_values)
        log_won = log_bets.cumsum(0)
        # log S_k = log_won_k + log(S_0 + Σ_(j <= k) π_j / won_(j-1))
        entries = np.log(_not_entered(k - 1) - _not_entered(k))[:, None] + np.log(_WEIGHTS) - (log_won - log_bets)
        entries[0] = np.logaddexp(entries[0], self._log_stakes)
        log_stakes = log_won + np.logaddexp.accumulate(entries)
        capital = np.logaddexp(np.logaddexp.reduce(log_stakes, axis=1), np.log(_not_entered(k)))
        self.count, self._log_stakes = int(k[-1]), log_stakes[-1]
        self.peak = max(self.peak, float(capital.max()))
        return capital


def _not_entered(count: np.ndarray) -> np.ndarray:
    """The share of the capital that has not entered the game after so many p-values."""
    return 1 / (1 + np.log1p(count))


def _log_bets(p: np.ndarray) -> np.ndarray:
    """The logarithm of what each bet makes of 1, (sample, bet)."""
    uneven = np.abs(2 * p - 1)
    views = np.maximum(np.stack([p, 1 - p, uneven, 1 - uneven], axis=1), _TINY)  # all uniform if p is
    powers = np.log(_SHAPES) + (_SHAPES - 1) * np.log(views)[..., None]
    limit = np.log(1 - _STAKE + _STAKE / _LIMIT * (p <= _LIMIT))
    return np.concatenate([limit[:, None], powers.reshape(len(p), -1)], axis=1)


@dataclass(frozen=True)
class DriftReport:
    """What a monitor has found so far.

    Attributes:
        inputs: How many inputs were ranked.
        invalid: How many were invalid, and so were not.
        false_alarm_rate: The probability of an alarm at any time of a stream like the calibration data, at most.
        alarm: Whether the evidence has reached 1 / false_alarm_rate; stays so until a restart.
        alarm_at: The input, counted from 1, at which it did.
        log10_evidence: The common logarithm of the capital now.
        p_value: 1 / the largest capital so far: valid however often it is looked at.
        window: Over how many of the last inputs the following is.
        verdict_shares: The share of each verdict among them.
        ks_statistic: The largest difference between the distributions of their scores and the calibration scores.
        ks_p_value: Of a test whether both have one distribution; for one look, not for many.
    """

    inputs: int
    invalid: int
    false_alarm_rate: float
    alarm: bool
    alarm_at: int | None
    log10_evidence: float
    p_value: float
    window: int
    verdict_shares: Mapping[str, float]
    ks_statistic: float | None
    ks_p_value: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    def __str__(self) -> str:
        alarm = f"alarm at input {self.alarm_at:,}" if self.alarm else "no alarm"
        lines = [
            f"{self.inputs:,} inputs: {alarm} (p-value {self.p_value:.2g}, alarm at {self.false_alarm_rate:g}); "
            f"{self.invalid:,} invalid"
        ]
        if self.verdict_shares:
            shares = ", ".join(f"{share:.1%} {verdict}" for verdict, share in self.verdict_shares.items() if share)
            lines.append(f"the last {self.window:,}: {shares}")
        if self.ks_p_value is not None:
            lines.append(f"their scores against calibration: KS {self.ks_statistic:.3f}, p-value {self.ks_p_value:.2g}")
        return "\n".join(lines)


class _Calibrated(Protocol):
    """A detector, as far as a monitor needs it."""

    @property
    def calibration(self) -> Any: ...


class Monitor:
    """Watches a stream of predictions for a drift away from the calibration data.

    An alarm on a stream that is exchangeable with the calibration data has a probability of at most
    `false_alarm_rate`, over the whole stream, however long it is. Threads may share a monitor. Memory is bounded, and a
    batch costs less than a millisecond.

    Args:
        calibration: Epistemic scores of held-out inputs, (sample,).
        false_alarm_rate: The probability of a false alarm over the whole stream.
        window: Over how many of the last inputs verdicts are counted, and scores compared.
        seed: Decides ties.

    >>> import torch
    >>> monitor = Monitor(torch.randn(500))
    >>> monitor.update(torch.randn(100) + 3).report().alarm
    True
    """

    def __init__(self, calibration: Any, *, false_alarm_rate: float = 0.01, window: int = 1000, seed: int = 0):
        check_share("false-alarm rate", false_alarm_rate)
        if window < 1:
            raise InputError(f"The window of a monitor must have at least 1 input. Got {window} instead.")
        self.false_alarm_rate = false_alarm_rate
        self._calibration = np.sort(_finite(_as_array(calibration)))
        self._window, self._seed = window, seed
        self._lock = Lock()
        self.restart()

    @classmethod
    def of(cls, detector: _Calibrated, **options: Any) -> Self:
        """A monitor of the predictions of a calibrated detector."""
        if detector.calibration is None:
            raise NotFittedError("A monitor needs held-out scores: calibrate the detector first.")
        return cls(detector.calibration.held_out.epistemic, **options)

    def restart(self) -> None:
        """Forgets the stream. The false-alarm rate is that of each start."""
        with self._lock:
            self._ranks, self._martingale = OnlineRanks(self._calibration, self._seed), Martingale()
            self._now, self._alarm_at, self._invalid = 0.0, None, 0
            self._scores: deque[float] = deque(maxlen=self._window)
            self._verdicts: deque[str] = deque(maxlen=self._window)

    def update(self, seen: Prediction | Any) -> Self:
        """Takes the next inputs of the stream, in their order: a prediction, or epistemic scores, (sample,)."""
        verdicts = None
        if isinstance(seen, Prediction):
            verdicts, seen = seen.verdict, seen.epistemic
        scores = np.atleast_1d(_as_array(seen))
        valid = scores[~np.isnan(scores)]
        with self._lock:
            before = self._martingale.count
            capital = self._martingale.update(self._ranks.update(valid))
            if len(valid):
                self._now = float(capital[-1])
            over = np.flatnonzero(capital >= -math.log(self.false_alarm_rate))
            if self._alarm_at is None and len(over):
                self._alarm_at = before + int(over[0]) + 1
            self._invalid += len(scores) - len(valid)
            self._scores.extend(valid.tolist())
            if verdicts is not None:
                self._verdicts.extend(np.atleast_1d(verdicts).tolist())
        return self

    def report(self) -> DriftReport:
        """What was found so far."""
        with self._lock:
            scores, counts = np.array(self._scores), Counter(self._verdicts)
            inputs, peak = self._martingale.count, self._martingale.peak
            alarm_at, now, invalid = self._alarm_at, self._now, self._invalid
        statistic, p_value = kolmogorov_smirnov(self._calibration, scores) if len(scores) else (None, None)
        total = counts.total()
        return DriftReport(
            inputs=inputs,
            invalid=invalid,
            false_alarm_rate=self.false_alarm_rate,
            alarm=alarm_at is not None,
            alarm_at=alarm_at,
            log10_evidence=now / math.log(10),
            p_value=math.exp(-peak),
            window=total or len(scores),
            verdict_shares={str(verdict): counts[verdict] / total for verdict in Verdict} if total else {},
            ks_statistic=statistic,
            ks_p_value=p_value,
        )


def kolmogorov_smirnov(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The largest difference between two distribution functions, and the p-value of a test that they are one.

    P(K > √(nm / (n + m)) D) for Kolmogorov's distribution: P(K > x) = 2 Σ (-1)^(k-1) exp(-2 k² x²).

    >>> statistic, p_value = kolmogorov_smirnov(np.arange(100.0), np.arange(100.0) + 50)
    >>> statistic, p_value < 1e-10
    (0.5, True)
    """
    first, second = np.sort(first), np.sort(second)
    at = np.concatenate([first, second])
    shares = [np.searchsorted(scores, at, side="right") / len(scores) for scores in (first, second)]
    statistic = float(np.abs(shares[0] - shares[1]).max())
    x = statistic * math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    if x < 0.2:  # P > 1 - 1e-12, and the sum converges slowly
        return statistic, 1.0
    k = np.arange(1, 101)
    return statistic, float(np.clip(2 * ((-1.0) ** (k - 1) * np.exp(-2 * (k * x) ** 2)).sum(), 0, 1))


def _as_array(scores: Any) -> np.ndarray:
    if isinstance(scores, torch.Tensor):
        scores = scores.detach().cpu().double().numpy()
    return np.asarray(scores, dtype=np.float64)


def _finite(calibration: np.ndarray) -> np.ndarray:
    if calibration.ndim != 1 or len(calibration) < _LEAST or not np.isfinite(calibration).all():
        raise InputError(
            f"A monitor needs at least {_LEAST} finite calibration scores, (sample,). Got {calibration.dtype} of shape "
            f"{calibration.shape} with {int((~np.isfinite(calibration)).sum())} that are not finite instead."
        )
    return calibration
