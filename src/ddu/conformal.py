"""Rates that hold for finite samples: ranks among held-out scores, p-values, and binomial bounds.

Held-out inputs and a new one from the same distribution are exchangeable, so that the rank of the new score among all
n + 1 is uniform, whatever the distribution. Bates et al., "Testing for outliers with conformal p-values", 2023, have
the p-values, their Benjamini-Hochberg procedure and the Beta distribution of the rate of one held-out set; Sadinle et
al., "Least ambiguous set-valued classifiers with bounded error levels", 2019, the candidate sets.
"""

import math
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from ddu.errors import InputError

# Shares of the held-out inputs at which an error rate is tested
_STEPS = 20


def conformal_rank(samples: int, false_alarm_rate: float, *, confidence: float | None = None) -> int:
    """Which of so many held-out scores in descending order is the threshold, counted from 1.

    k = ⌊rate (n + 1)⌋: a new score is above the k-th largest with probability at most k / (n + 1) ≤ rate, on average
    over held-out sets. That of one held-out set has the distribution Beta(k, n + 1 - k); with a confidence, k is the
    largest rank at which it is at most the rate with that probability.

    Args:
        samples: How many set the threshold.
        false_alarm_rate: The rate to keep.
        confidence: The share of held-out sets for which the rate is to hold; None is on average over them.

    >>> conformal_rank(199, 0.01), conformal_rank(999, 0.01), conformal_rank(999, 0.01, confidence=0.95)
    (2, 10, 5)
    """
    needed = least_samples(false_alarm_rate, confidence)
    if samples < needed:
        raise too_few(f"{needed} held-out samples", samples, samples, false_alarm_rate, confidence)
    # The rate as it was written: 0.07 (99 + 1) is 7, not 7.000000000000001
    rank = math.floor(Fraction(str(float(false_alarm_rate))) * (samples + 1))
    return rank if confidence is None else _confident_rank(samples, rank, float(false_alarm_rate), confidence)


def least_samples(false_alarm_rate: float, confidence: float | None = None) -> int:
    """How many held-out samples `conformal_rank` needs.

    >>> least_samples(0.01), least_samples(0.01, 0.95)
    (99, 299)
    """
    check_share("false-alarm rate", false_alarm_rate)
    least = math.ceil(1 / Fraction(str(float(false_alarm_rate)))) - 1
    if confidence is None:
        return least
    check_share("confidence", confidence)
    # P(no held-out score is among the largest `rate`) = (1 - rate)ⁿ
    return max(least, math.ceil(math.log1p(-confidence) / math.log1p(-false_alarm_rate) * (1 - 1e-12)))


def too_few(needed: str, samples: int, left: int, false_alarm_rate: float, confidence: float | None) -> InputError:
    """The error of a set that is too small for a rate.

    Args:
        needed: What it takes, in words.
        samples: How many there are.
        left: How many of them set the threshold.
        false_alarm_rate: The rate.
        confidence: With which it is to hold; None is on average.

    >>> print(too_few("19 held-out samples", 9, 9, 0.05, None))
    A false-alarm rate of 0.05 needs at least 19 held-out samples, there are 9: hold out more, or accept a rate of 0.1.
    """
    sure = "" if confidence is None else f" with a confidence of {confidence:g}"
    rate = possible_rate(left, confidence)
    ways = "hold out more" if rate is None else f"hold out more, or accept a rate of {rate:g}"
    return InputError(
        f"A false-alarm rate of {false_alarm_rate:g}{sure} needs at least {needed}, there are {samples}: {ways}."
    )


def possible_rate(samples: int, confidence: float | None = None) -> float | None:
    """A rate for which so many held-out samples are enough, rounded up to four digits; None if there is none below 1.

    >>> possible_rate(99), possible_rate(0)
    (0.01, None)
    """
    rate = 1 / (samples + 1)
    if confidence is not None and samples:
        rate = max(rate, -math.expm1(math.log1p(-confidence) / samples))
    rate = math.ceil(1e4 * rate * (1 - 1e-12)) / 1e4
    return rate if rate < 1 else None


def _confident_rank(samples: int, highest: int, rate: float, confidence: float) -> int:
    """The largest k with P(Beta(k, n + 1 - k) ≤ rate) = P(Binomial(n, rate) ≥ k) ≥ confidence, or 0."""
    low, high = 0, highest + 1
    while high - low > 1:
        middle = (low + high) // 2
        keeps = binomial_cdf(middle - 1, samples, rate) <= (1 - confidence) * (1 + 1e-9)  # equal, but for rounding
        low, high = (middle, high) if keeps else (low, middle)
    return low


def count_at_least(scores: Tensor, ordered: Tensor) -> Tensor:
    """How many of the held-out scores, in ascending order, are at least as large as each of some others.

    >>> count_at_least(torch.tensor([0.5, 2.0, 9.0]), torch.tensor([1.0, 2.0, 2.0, 3.0]))
    tensor([4, 3, 0])
    """
    return len(ordered) - torch.searchsorted(ordered, scores)


def benjamini_hochberg(p_values: Tensor, false_discovery_rate: float) -> Tensor:
    """Which hypotheses to reject, so that the expected share of false rejections is at most the given rate.

    The r smallest of m p-values are rejected, for the largest r at which the r-th is at most rate r / m.

    >>> benjamini_hochberg(torch.tensor([0.01, 0.6, 0.03, 0.04]), 0.1)
    tensor([ True, False,  True,  True])
    """
    check_share("false-discovery rate", false_discovery_rate)
    ordered = p_values.double().sort().values
    ranks = torch.arange(1, len(ordered) + 1, dtype=torch.float64, device=ordered.device)
    allowed = false_discovery_rate * ranks / max(len(ordered), 1)
    small = (ordered <= allowed * (1 + 1e-12)).nonzero()  # equal, but for rounding
    return p_values <= ordered[small[-1]] if len(small) else torch.zeros_like(p_values, dtype=torch.bool)


def candidate_level(label_probs: Tensor, coverage: float) -> float:
    """The probability from which a class is a candidate, so that the right one is among them at the given rate.

    Of n held-out probabilities of the right class it is the ⌈coverage (n + 1)⌉-th largest; 0 if there are too few.

    >>> candidate_level(torch.tensor([0.9, 0.8, 0.4, 0.7]), 0.8)
    0.4...
    """
    check_share("coverage", coverage)
    rank = math.ceil(Fraction(str(float(coverage))) * (len(label_probs) + 1))
    return float(label_probs.double().sort(descending=True).values[rank - 1]) if rank <= len(label_probs) else 0.0


def error_rate_threshold(entropy: Tensor, correct: Tensor, error_rate: float, confidence: float = 0.95) -> float:
    """The largest entropy up to which predictions are wrong at most at the given rate, with the given confidence.

    Of m held-out inputs ordered by entropy, thresholds at 5 %, 10 %, ... 100 % of them are tested one after the other,
    from the first that enough inputs lie below, until one fails; the last that passed is taken. The test is exact: the
    b inputs below the s-th entropy, or all of them, are independent, and P(Binomial(b, rate) ≤ wrong) must be at most
    1 - confidence. Equal entropies fall on one side together. Several tests need no correction if the share of errors,
    once above the rate, stays above it as the threshold grows.

    Raises:
        InputError: No threshold can be promised to keep the rate; the message says which rate one can.

    >>> wrong = torch.arange(1000) > 960
    >>> error_rate_threshold(torch.arange(1000.0), ~wrong, 0.02)
    949.0
    """
    check_share("error rate", error_rate)
    check_share("confidence", confidence)
    ordered, order = entropy.double().sort(stable=True)
    errors = (~correct[order]).cumsum(0).tolist()
    sizes = sorted({len(errors) * step // _STEPS for step in range(1, _STEPS + 1)} - {0, 1})
    below = torch.searchsorted(ordered, ordered[[size - 1 for size in sizes]]).tolist()
    tests = [(count, errors[count - 1]) for count in sorted({*below, len(errors)} - {0})]
    count = _last_to_pass(tests, error_rate, 1 - confidence)
    if count is None:
        total = errors[-1] if errors else 0
        bounds = sorted(_largest_rate(wrong, count, 1 - confidence) for count, wrong in tests)
        offers = [math.ceil(1e4 * bound) / 1e4 for bound in bounds]
        offer = next((rate for rate in offers if rate < 1 and _last_to_pass(tests, rate, 1 - confidence)), None)
        ways = "hold out more" if offer is None else f"hold out more, or accept an error rate of {offer:g}"
        raise InputError(
            f"An error rate of {error_rate:g} with a confidence of {confidence:g} cannot be promised from "
            f"{len(errors)} held-out inputs that are known, of which {total} are predicted wrongly: {ways}."
        )
    above = ordered[count:]
    has_ties = int((above == above[:1]).sum()) != 1
    # Up to the next entropy, unless others equal it, which would then be on this side as well
    return float(ordered[count - 1] if has_ties else above[0])


def _last_to_pass(tests: list[tuple[int, int]], rate: float, level: float) -> int | None:
    """How many inputs are below the threshold of the last test that passes before one fails.

    The first is one that forgives a few errors, where there are so many inputs: chance alone must not end it there.
    """
    able = (
        [(count, wrong) for count, wrong in tests if binomial_cdf(forgiven, count, rate) <= level]
        for forgiven in (3, 1, 0)
    )
    last = None
    for count, wrong in next(filter(None, able), []):
        if binomial_cdf(wrong, count, rate) > level:
            break
        last = count
    return last


def _largest_rate(wrong: int, samples: int, level: float) -> float:
    """The rate p at which P(Binomial(n, p) ≤ wrong) is the level: the upper limit of Clopper and Pearson."""
    low, high = 0.0, 1.0
    for _ in range(20):  # to 1e-6
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_cdf(wrong, samples, middle) > level else (low, middle)
    return high


@lru_cache(maxsize=10_000)  # the same tests recur
def binomial_cdf(count: int, samples: int, probability: float) -> float:
    """P(Binomial(samples, probability) ≤ count), for a probability between 0 and 1.

    >>> binomial_cdf(1, 3, 0.5)
    0.5...
    """
    if not 0 <= count < samples:
        return float(count >= samples)
    k = torch.arange(count + 1, dtype=torch.float64)
    n, p = torch.tensor([samples, probability], dtype=torch.float64)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    return min(float(torch.logsumexp(ways + k * p.log() + (n - k) * torch.log1p(-p), dim=0).exp()), 1.0)


def check_share(what: str, value: object) -> None:
    """Refuses what is no share."""
    if not isinstance(value, float | int) or not 0 < value < 1:
        raise InputError(f"The {what} must be a float between 0 and 1. Got {value!r} instead.")
