"""Ranks, p-values and bounds: equal to independent references, and the rates they promise are kept."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from ddu.calibration import Calibration, HeldOut, calibrate
from ddu.conformal import (
    benjamini_hochberg,
    binomial_cdf,
    candidate_level,
    conformal_rank,
    count_at_least,
    error_rate_threshold,
)
from ddu.errors import InputError
from ddu.types import Verdict


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def five_errors(share: float, trials: int) -> float:
    """Five standard errors of a share that is counted in so many trials."""
    return 5 * math.sqrt(share * (1 - share) / trials)


# Ranks


@pytest.mark.parametrize(
    ("samples", "rate", "rank"),
    [(1, 0.5, 1), (19, 0.05, 1), (39, 0.05, 2), (99, 0.07, 7), (99, 0.29, 29), (9, 0.9, 9), (3, 0.99, 3)],
)
def test_the_rank_is_the_rate_of_one_more_rounded_down(samples: int, rate: float, rank: int) -> None:
    """Also where the product of floats falls on the wrong side of an integer."""
    assert conformal_rank(samples, rate) == rank
    assert conformal_rank(samples, np.float64(rate)) == rank


@pytest.mark.parametrize("samples", [60, 299, 1000, 20_000])
@pytest.mark.parametrize(("rate", "confidence"), [(0.05, 0.95), (0.1, 0.9), (0.2, 0.5)])
def test_with_a_confidence_the_rank_is_the_largest_that_the_beta_distribution_allows(samples, rate, confidence) -> None:
    rank = conformal_rank(samples, rate, confidence=confidence)
    assert stats.beta.cdf(rate, rank, samples + 1 - rank) >= confidence
    assert stats.beta.cdf(rate, rank + 1, samples - rank) < confidence


@pytest.mark.parametrize("confidence", [None, 0.95])
@pytest.mark.parametrize("samples", [1, 5, 11, 20, 50, 98])
def test_the_rate_that_the_refusal_offers_is_accepted(samples: int, confidence: float | None) -> None:
    with pytest.raises(InputError) as refusal:
        conformal_rank(samples, 0.01, confidence=confidence)
    offered = float(str(refusal.value).rsplit(" ", 1)[1].rstrip("."))
    assert conformal_rank(samples, offered, confidence=confidence) == 1


@pytest.mark.parametrize(("confidence", "needed"), [(None, 99), (0.95, 299)])
def test_the_refusal_says_how_many_are_needed(confidence: float | None, needed: int) -> None:
    with pytest.raises(InputError, match=f" needs at least {needed} held-out samples, there are {needed - 1}: "):
        conformal_rank(needed - 1, 0.01, confidence=confidence)
    assert conformal_rank(needed, 0.01, confidence=confidence) == 1


@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5, float("nan"), "0.1", None])
def test_what_is_no_share_is_refused(rate: Any) -> None:
    with pytest.raises(InputError) as caught:
        conformal_rank(10, rate)
    assert str(caught.value) == f"The false-alarm rate must be a float between 0 and 1. Got {rate!r} instead."


@pytest.mark.parametrize("count", [-1, 0, 3, 40, 999, 1000])
@pytest.mark.parametrize("probability", [1e-6, 0.02, 0.5, 0.999])
def test_the_binomial_distribution_is_scipys(count: int, probability: float) -> None:
    assert binomial_cdf(count, 1000, probability) == pytest.approx(
        stats.binom.cdf(count, 1000, probability), rel=1e-9, abs=1e-300
    )


# Verdicts and p-values


def judged(held_out: Tensor, new: Tensor, rate: float, **settings: Any) -> tuple[np.ndarray, Tensor]:
    """What is flagged, and the p-values."""
    kept = HeldOut(held_out, torch.zeros(len(held_out)).long())
    calibration = Calibration(kept, false_alarm_rate=rate, **settings)
    label = torch.zeros(len(new)).long()
    flagged = calibration.verdicts(new, torch.zeros_like(new), label) == Verdict.OUT_OF_DISTRIBUTION
    return flagged, calibration.p_values(new, label)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("samples", "rate"), [(19, 0.05), (50, 0.1), (99, 0.07), (333, 0.29), (1000, 0.01)])
@pytest.mark.parametrize("values", [3, 40, None], ids=["many ties", "some ties", "no ties"])
def test_a_verdict_is_the_rule_of_the_kth_largest_score_and_a_p_value_of_at_most_the_rate(
    dtype: torch.dtype, samples: int, rate: float, values: int | None
) -> None:
    def scores(count: int, seed: int) -> Tensor:
        drawn = 1e3 * torch.randn(count, generator=draws(seed), dtype=dtype) - 1e6
        return drawn if values is None else torch.randint(values, (count,), generator=draws(seed)).to(dtype) / 7

    held_out = scores(samples, 0)
    new = torch.cat([scores(500, 1), held_out, torch.tensor([-1e9, 1e9], dtype=dtype)])
    flagged, p_values = judged(held_out, new, rate)
    rank = math.floor(round(rate * (samples + 1), 9))
    threshold = float(held_out.double().sort(descending=True).values[rank - 1])
    assert (flagged == (new.double() > threshold).numpy()).all()
    assert (flagged == (p_values <= rate).numpy()).all()
    by_hand = [(1 + int((held_out >= score).sum())) / (samples + 1) for score in new]
    assert p_values.tolist() == by_hand


def test_the_papers_p_value_is_the_plain_share() -> None:
    held_out, new = torch.arange(100.0), torch.tensor([-1.0, 50.0, 94.0, 94.5, 95.0, 200.0])
    flagged, p_values = judged(held_out, new, 0.05, threshold="training_quantile")
    assert p_values.tolist() == [1.0, 0.5, 0.06, 0.05, 0.05, 0.0]
    assert flagged.tolist() == [False, False, False, True, True, True]


@pytest.mark.parametrize(("samples", "rate"), [(19, 0.05), (50, 0.1), (99, 0.01), (30, 0.25)])
def test_the_rate_is_kept_exactly_on_average_over_held_out_sets(samples: int, rate: float) -> None:
    """An exchangeable new value is flagged with probability k / (n + 1), whatever the distribution."""
    trials = 4000
    values = torch.randn(trials, samples + 1, generator=draws(), dtype=torch.float64).exp()
    rank = conformal_rank(samples, rate)
    alarms = sum(int(count_at_least(row[-1:], row[:-1].sort().values)) < rank for row in values)
    exact = rank / (samples + 1)
    assert exact <= rate + 1e-12
    assert alarms / trials == pytest.approx(exact, abs=five_errors(exact, trials))


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_with_a_confidence_the_rate_is_kept_by_that_share_of_held_out_sets(confidence: float) -> None:
    trials, samples, rate = 2000, 400, 0.05
    held_out = torch.rand(trials, samples, generator=draws(), dtype=torch.float64)
    rank = conformal_rank(samples, rate, confidence=confidence)
    # of uniform scores, the rate of a set is what lies above its threshold
    rates = 1 - held_out.sort(descending=True).values[:, rank - 1]
    kept = float((rates <= rate).double().mean())
    exact = stats.beta.cdf(rate, rank, samples + 1 - rank)
    assert kept == pytest.approx(exact, abs=five_errors(exact, trials))
    assert exact >= confidence
    plain = held_out.sort(descending=True).values[:, conformal_rank(samples, rate) - 1]
    average = float((1 - plain <= rate).double().mean())
    assert average < 0.65


def test_a_rate_per_class_holds_in_each_where_one_for_all_flags_the_rare_class_more() -> None:
    """Scores of the rare class, one in ten, are larger."""
    predicted = (torch.arange(4000) % 10 == 0).long()

    def scores(seed: int) -> Tensor:
        return torch.randn(4000, generator=draws(seed)) + predicted

    shares = {}
    for per_class in (False, True):
        calibration = Calibration(HeldOut(scores(0), predicted), false_alarm_rate=0.05, per_class=per_class)
        new = scores(1)
        flagged = calibration.verdicts(new, torch.zeros(4000), predicted) == Verdict.OUT_OF_DISTRIBUTION
        shares[per_class] = [float(flagged[(predicted == c).numpy()].mean()) for c in (0, 1)]
        assert calibration.epistemic_threshold is None or not per_class
    assert shares[False][1] > 0.15 > 3 * shares[False][0]
    # held-out sets of 3,600 and 400, and as many new ones
    assert shares[True] == [
        pytest.approx(0.05, abs=five_errors(0.05, 1800)),
        pytest.approx(0.05, abs=five_errors(0.05, 200)),
    ]


def test_a_class_with_too_few_held_out_inputs_is_named_and_one_with_none_is_compared_with_all() -> None:
    predicted = torch.tensor([0] * 90 + [1] * 10)
    kept = HeldOut(torch.arange(100.0), predicted)
    with pytest.raises(InputError) as caught:
        Calibration(kept, false_alarm_rate=0.05, per_class=True)
    assert str(caught.value) == (
        "Within the predicted class 1: A false-alarm rate of 0.05 needs at least 19 held-out samples, there "
        "are 10: hold out more, or accept a rate of 0.091."
    )
    calibration = Calibration(kept, false_alarm_rate=0.1, per_class=True)
    assert calibration.p_values(torch.full((3,), 89.0), torch.tensor([0, 1, 2])).tolist() == [2 / 91, 1.0, 12 / 101]


def test_outliers_are_scipys_and_false_discoveries_as_rare_as_promised() -> None:
    trials, rate = 200, 0.1
    shares, found = [], 0
    for trial in range(trials):
        held_out = torch.randn(1000, generator=draws(trial)).sort().values
        new = torch.randn(100, generator=draws(trial + trials))
        new[:10] += 4
        p_values = (1 + count_at_least(new, held_out)).double() / 1001
        flagged = benjamini_hochberg(p_values, rate)
        if trial < 50:
            assert (flagged.numpy() == (stats.false_discovery_control(p_values.numpy()) <= rate + 1e-12)).all()
        shares.append(float(flagged[10:].sum()) / max(int(flagged.sum()), 1))
        found += int(flagged[:10].sum())
    error = float(np.std(shares)) / math.sqrt(trials)
    assert np.mean(shares) <= rate * 0.9 + 3 * error  # 90 of 100 are in distribution
    assert found / trials > 5
    assert not benjamini_hochberg(torch.ones(5), rate).any()
    assert benjamini_hochberg(torch.zeros(0), rate).shape == (0,)


# Errors


def selective(samples: int, generator: torch.Generator, *, errors: float = 0.1) -> tuple[Tensor, Tensor]:
    """Entropies, and whether a prediction is right; errors are more frequent where the entropy is large."""
    entropy = torch.rand(samples, generator=generator, dtype=torch.float64)
    return entropy, torch.rand(samples, generator=generator) >= 2 * errors * entropy


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_error_rate_is_kept_by_that_share_of_held_out_sets(confidence: float) -> None:
    """Up to an entropy h, a share of 0.1 h is wrong, so that a threshold of at most 0.5 keeps a rate of 0.05."""
    trials, thresholds = 80, []
    for seed in range(trials):
        entropy, correct = selective(1000, draws(seed))
        try:
            thresholds.append(error_rate_threshold(entropy, correct, 0.05, confidence))
        except InputError:
            thresholds.append(0.0)
    kept = float(np.mean(np.array(thresholds) <= 0.5))
    assert kept >= confidence - five_errors(confidence, trials)
    assert np.mean(thresholds) > 0.1  # and it is of use


def test_where_all_are_good_enough_nothing_is_left_out() -> None:
    entropy, correct = selective(3000, draws(), errors=0.005)
    assert error_rate_threshold(entropy, correct, 0.02) == float(entropy.max())


def test_where_all_entropies_are_equal_all_inputs_are_tested() -> None:
    correct = torch.arange(1000) % 100 > 0
    assert error_rate_threshold(torch.full((1000,), 0.5), correct, 0.02) == 0.5
    with pytest.raises(InputError, match=r"accept an error rate of 0\.017\.$"):
        error_rate_threshold(torch.full((1000,), 0.5), correct, 0.01)


@pytest.mark.parametrize("tied", ["entropies", "scores"])
def test_the_error_rate_is_kept_where_many_inputs_are_equal(tied: str) -> None:
    """Of rows of few values, most have one entropy or one score; those of large scores are wrong more often."""
    trials, broken = 60, 0
    for seed in range(trials):
        score, entropy, chance = torch.rand(3, 2000, generator=draws(seed), dtype=torch.float64)
        if tied == "entropies":  # 0 for 95 %, of which 2 % are wrong, and 1 for the rest
            entropy = (entropy > 0.95).double()
            correct, rate, most = chance >= torch.where(entropy > 0, 0.5, 0.04 * score), 0.015, -1.0
        else:  # up to an entropy h, 0.03 h are wrong, all among the 40 % of the largest score, which is not flagged
            score = (score > 0.6).double()
            correct, rate, most = chance >= 0.15 * score * entropy, 0.025, 0.025 / 0.03
        kept = HeldOut(score, torch.zeros(2000, dtype=torch.int64), entropy, correct, chance)
        try:
            threshold = Calibration(kept, false_alarm_rate=0.2, error_rate=rate).entropy_threshold
        except InputError:
            continue
        assert threshold is not None
        broken += threshold > most
    assert broken / trials <= 0.05 + five_errors(0.05, trials)


@pytest.mark.parametrize(("samples", "errors"), [(60, 0.1), (300, 0.4), (1000, 0.5)])
def test_an_error_rate_that_cannot_be_promised_is_answered_with_one_that_can(samples: int, errors: float) -> None:
    entropy, correct = selective(samples, draws(), errors=errors)
    with pytest.raises(InputError, match=r"^An error rate of 0\.001 with a confidence of 0\.95 cannot be ") as caught:
        error_rate_threshold(entropy, correct, 0.001)
    offered = float(str(caught.value).rsplit(" ", 1)[1].rstrip("."))
    assert error_rate_threshold(entropy, correct, offered) <= float(entropy.max())


# Candidates


def probabilities(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Of four classes, with labels drawn from them."""
    probs = torch.randn(samples, 4, generator=generator).mul(2).softmax(1)
    return probs, torch.multinomial(probs, 1, generator=generator).squeeze(1)


@pytest.mark.parametrize(("samples", "coverage"), [(99, 0.9), (500, 0.95), (40, 0.7), (9, 0.95)])
def test_candidates_are_mapies(samples: int, coverage: float) -> None:
    """Theirs may be empty; here the likeliest class is always a candidate."""
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class AsGiven(ClassifierMixin, BaseEstimator):
        """The probabilities are the inputs."""

        classes_ = np.arange(4)
        fitted_ = True

        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            return x

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x.argmax(1)

    probs, labels = probabilities(samples, draws())
    new, _ = probabilities(300, draws(1))
    level = candidate_level(probs.gather(1, labels[:, None]).squeeze(1), coverage)
    ours = new.double() >= level
    if samples == 9:  # 1 in 20 cannot be told from 9: all classes are candidates; theirs is an error
        assert ours.all()
        return
    theirs = SplitConformalClassifier(
        AsGiven(), confidence_level=coverage, conformity_score="lac", prefit=True
    ).conformalize(probs.numpy(), labels.numpy())
    _, sets = theirs.predict_set(new.numpy())
    assert (ours.numpy() == sets[:, :, 0]).all()


@pytest.mark.parametrize(("samples", "coverage"), [(19, 0.9), (200, 0.95)])
def test_the_right_class_is_a_candidate_as_often_as_promised(samples: int, coverage: float) -> None:
    trials, hits = 2000, 0
    for seed in range(trials):
        probs, labels = probabilities(samples + 1, draws(seed))
        right = probs.gather(1, labels[:, None]).squeeze(1)
        hits += float(right[-1]) >= candidate_level(right[:-1], coverage)
    exact = math.ceil(round(coverage * (samples + 1), 9)) / (samples + 1)
    assert hits / trials == pytest.approx(exact, abs=five_errors(exact, trials))


def test_all_promises_hold_together_with_a_temperature_that_is_fitted_to_the_same_data() -> None:
    """On average over calibrations by 300 inputs: false alarms, errors among what is in distribution, coverage."""
    sets, flagged, covered, kept = 40, [], [], []
    for seed in range(sets):
        generator = draws(seed)
        logits = 3 * torch.randn(2300, 4, generator=generator)
        labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
        scores = torch.randn(2300, generator=generator)
        held_out = slice(0, 300)
        calibration = calibrate(
            3 * logits[held_out],
            scores[held_out],
            labels[held_out],
            false_alarm_rate=0.1,
            error_rate=0.15,
            coverage=0.9,
        )
        scaled = 3 * logits[300:] / calibration.temperature
        probs = scaled.softmax(1)
        label, truth = probs.argmax(1), labels[300:]
        verdicts = calibration.verdicts(scores[300:], torch.special.entr(probs).sum(1), label)
        candidates = calibration.candidates(probs, label)
        assert candidates is not None
        clear = torch.from_numpy(verdicts == Verdict.IN_DISTRIBUTION)
        flagged.append(float((verdicts == Verdict.OUT_OF_DISTRIBUTION).mean()))
        covered.append(float(candidates.gather(1, truth[:, None]).double().mean()))
        kept.append(float((label != truth)[clear].double().mean()) <= 0.15)
    error = 5 / math.sqrt(sets)
    assert np.mean(flagged) == pytest.approx(30 / 301, abs=error * float(np.std(flagged)))
    assert np.mean(covered) >= 0.9 - error * float(np.std(covered))
    assert np.mean(kept) >= 0.95 - five_errors(0.95, sets)


def test_a_class_is_a_candidate_at_the_level_itself_and_the_fewest_of_a_class_limit_the_p_values() -> None:
    predicted = (torch.arange(40) < 10).long()
    kept = HeldOut(torch.arange(40.0), predicted, torch.ones(40), predicted == 1, torch.full((40,), 0.25))
    calibration = Calibration(kept, false_alarm_rate=0.1, per_class=True)
    assert calibration.candidate_level == 0.25
    found = calibration.candidates(torch.tensor([[0.5, 0.25, 0.2, 0.05]]), torch.tensor([0]))
    assert found is not None
    assert found.tolist() == [[True, True, False, False]]
    assert calibration.least_p_value == 1 / 11


def test_a_p_value_that_is_the_limit_but_for_rounding_is_rejected() -> None:
    """Of three, at a rate of 0.3, the limit of one is 0.1: 0.3 * 1 / 3 is less by a unit of rounding."""
    for inputs, rate in [(3, 0.3), *((inputs, rate) for inputs in range(1, 100) for rate in (0.05, 0.1, 0.3))]:
        p_values = torch.ones(inputs, dtype=torch.float64)
        p_values[0] = 1 / round(inputs / rate)
        assert benjamini_hochberg(p_values, rate)[0] == (p_values[0] * inputs <= rate * (1 + 1e-9))


@pytest.mark.parametrize(("per_class", "known"), [(False, 179), (True, 180)])
def test_the_error_rate_is_of_the_inputs_below_the_threshold_or_those_of_each_class(
    per_class: bool, known: int
) -> None:
    """Of 199, 19 are above the threshold and one is it; of 95 and 104 within classes, 8 and 9, and one each."""
    predicted = (torch.arange(199) < 95).long()
    kept = HeldOut(torch.arange(199.0), predicted, torch.rand(199), torch.ones(199).bool(), torch.rand(199))
    with pytest.raises(InputError, match=f"cannot be promised from {known} held-out inputs that are known, of which 0"):
        Calibration(kept, false_alarm_rate=0.1, per_class=per_class, error_rate=1e-4)
