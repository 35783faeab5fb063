"""The score: views, parts and their sum, against formulas; the paper's detector; the promised rate of false alarms."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import ddu
from ddu.density import GaussianDensity
from ddu.detectors.score import Part, Score, raw, shares
from ddu.errors import (
    CalibrationWarning,
    FeatureError,
    FewSamplesWarning,
    InputError,
    NotSupportedError,
)
from ddu.features import FeatureBatch
from tests.detectors.blobs import blobs
from tests.detectors.scored_blobs import CLASSES, X, calibrated, network

# Views


def test_shares_are_the_signed_roots_of_the_shares_and_the_log_of_the_sum():
    z = np.random.default_rng(0).normal(size=(50, 7))
    size = np.abs(z).sum(1, keepdims=True)
    expected = np.hstack([np.sign(z) * np.sqrt(np.abs(z) / size), np.log(size)])
    np.testing.assert_allclose(shares(torch.from_numpy(z)), expected, rtol=1e-12)


def test_larger_features_only_move_the_last_column_of_shares():
    z = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)).double()
    one, many = shares(z), shares(1000 * z)
    torch.testing.assert_close(many[:, :-1], one[:, :-1], rtol=1e-12, atol=0)
    torch.testing.assert_close(many[:, -1], one[:, -1] + math.log(1000), rtol=1e-12, atol=0)


def test_a_layer_that_is_silent_has_shares_that_are_finite_and_a_size_below_all_others():
    z = torch.tensor([[0.0, 0.0], [1e-30, 0.0], [-3.0, 1.0]])
    seen = shares(z)
    assert torch.isfinite(seen).all()
    assert seen[0].tolist()[:2] == [0.0, 0.0]
    assert seen[0, -1] < seen[1, -1] < seen[2, -1]


def test_the_raw_view_is_the_features():
    z = torch.randn(3, 2)
    assert raw(z) is z


# Parts


def mixture(samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features of classes that do not overlap, with covariances of their own."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % 2
    z = torch.randn(samples, 5, generator=generator).double() * torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0])
    return z * (1 + y[:, None]) + 100 * y[:, None], y


@pytest.mark.parametrize("prior", ["empirical", "uniform"])
def test_what_is_expected_of_a_density_is_what_samples_of_it_show(prior):
    part = Part("features", density=GaussianDensity(prior=prior))
    z, y = mixture(4000)
    part.update(z, z, y, None)
    mean, deviation = part.expected()
    new, labels = mixture(20_000, seed=1)
    values = part.value(new, new)
    assert mean == pytest.approx(float(values.mean()), abs=0.1)
    # What the classes' own means differ by is not in it
    within = torch.cat([values[labels == c] - values[labels == c].mean() for c in (0, 1)])
    assert deviation == pytest.approx(float(within.std()), rel=0.05)


@pytest.mark.parametrize("covariance", ["full", "shared"])
def test_what_is_expected_of_a_relative_density_is_the_difference_of_two_entropies(covariance):
    part = Part("features", density=GaussianDensity(covariance, background=True))
    z, y = mixture(4000)
    part.update(z, z, y, None)
    mean, deviation = part.expected()
    values = part.value(z, z)
    assert mean == pytest.approx(float(values.mean()), abs=0.5)
    assert float(values.std()) < 1.2 * deviation


def test_what_is_expected_of_the_energy_is_what_it_was_in_batches_of_any_size():
    logits = 3 * torch.randn(1000, CLASSES, generator=torch.Generator().manual_seed(0))
    part = Part("energy")
    for rows in logits.split([1, 500, 0, 499]):
        part.update(rows, rows, torch.zeros(len(rows), dtype=torch.int64), None)
    energies = -np.logaddexp.reduce(logits.double().numpy(), axis=1)
    assert part.expected() == pytest.approx((energies.mean(), energies.std(ddof=1)), rel=1e-9)


# The sum


def test_the_score_is_the_sum_of_its_parts_none_of_which_is_below_minus_one():
    detector = calibrated(network())
    prediction = detector.predict(torch.cat([X, 50 * X]))
    assert prediction.parts is not None
    assert list(prediction.parts) == ["1", "input of 4", "input of 4 (raw)", "energy"]
    parts = torch.stack(list(prediction.parts.values()))
    torch.testing.assert_close(parts.sum(0), prediction.epistemic)
    assert parts.min() == -1
    assert prediction.log_density is None
    assert detector.density_threshold is None


def test_held_out_data_has_a_median_of_0_and_a_quantile_of_1_in_every_part():
    score = Score([Part("energy"), Part("energy too")], [1])
    values = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 900.0]) + 7e4
    terms = score.standardized(values).terms(values)
    np.testing.assert_allclose(np.median(terms, axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(np.quantile(terms, 0.95, axis=0), 1, rtol=1e-2)
    assert score.centre == [0.0, 0.0]  # the one before is left alone


def test_before_calibration_a_part_is_standardised_to_the_same_scale_by_what_is_expected_of_it():
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(4000) % 2
    z = torch.randn(4000, 5, generator=generator).double() + 100 * y[:, None]
    logits = torch.randn(4000, 2, generator=generator).double()
    score = Score([Part("features", density=GaussianDensity()), Part("energy")], [5])
    score.update(z, logits, y)
    terms = score.prepare().terms(score.values(z, logits)).numpy()
    # Of a normal variable the quantile would be 1; half of a χ² variable of 5 degrees of freedom has a longer tail
    tail = float((stats.chi2.ppf(0.95, 5) - 5) / 2 / (stats.norm.ppf(0.95) * math.sqrt(5 / 2)))
    np.testing.assert_allclose(terms.mean(0), 0, atol=0.1)
    np.testing.assert_allclose(np.quantile(terms, 0.95, axis=0), np.array([tail, 1.0]), rtol=0.05)


def test_a_part_that_does_not_vary_neither_fails_nor_counts():
    (z, y), logits = mixture(200), torch.zeros(200, 2)
    score = Score([Part("features", density=GaussianDensity()), Part("energy")], [5])
    score.update(z, logits, y)
    values = score.prepare().values(z, logits)
    for one in (score, score.standardized(values)):
        terms = one.terms(values)
        assert torch.isfinite(terms).all()
        np.testing.assert_allclose(terms[:, 1], 0, atol=1e-6)


def test_neither_the_order_nor_the_size_of_batches_changes_a_score():
    detector = calibrated(network())
    whole, order = detector.predict(X).epistemic, torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(detector.predict(X[order]).epistemic, whole[order], rtol=1e-4, atol=1e-4)
    parts = torch.cat([detector.predict(x).epistemic for x in X.split([1, 1, 98, 100])])
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-4)


def test_a_far_input_is_flagged_though_its_logits_are_huge_and_its_energy_is_as_low_as_can_be():
    detector = calibrated(network())
    far = detector.predict(1000 * X[X.max(1).values > 0])
    assert far.parts is not None
    assert (far.parts["energy"] == -1).all()
    assert set(np.asarray(far.verdict)) == {ddu.Verdict.OUT_OF_DISTRIBUTION}


def test_layers_are_given_by_name_as_modules_as_stages_or_as_one():
    model = network()
    for features, names in {
        "stages": ["1", "input of 4", "input of 4 (raw)", "energy"],
        ("1", "4"): ["1", "input of 4", "input of 4 (raw)", "energy"],
        (model[1], model[4]): ["1", "input of 4", "input of 4 (raw)", "energy"],
        ("0", "2"): ["0", "2", "2 (raw)", "energy"],
        None: ["input of 4", "input of 4 (raw)", "energy"],
        "1": ["1", "1 (raw)", "energy"],
    }.items():
        detector = ddu.DDU(model, features=list(features) if isinstance(features, tuple) else features)
        parts = detector.fit([blobs(60)]).predict(X).parts
        assert parts is not None
        assert list(parts) == names


def test_options_take_parts_away():
    model = network()
    for options, names in (
        ({"view": "shares"}, ["1", "input of 4", "energy"]),
        ({"view": "raw"}, ["1", "input of 4", "energy"]),
        ({"energy": False}, ["1", "input of 4", "input of 4 (raw)"]),
        ({"features": None, "view": "shares"}, ["input of 4", "energy"]),
    ):
        parts = ddu.DDU(model, **options).fit([blobs(60)]).predict(X).parts
        assert parts is not None
        assert list(parts) == names
    assert ddu.DDU(model, features=None, view="shares", energy=False).fit([blobs(60)]).predict(X).parts is None


def test_a_layer_that_is_named_twice_is_refused():
    with pytest.raises(InputError) as caught:
        ddu.DDU(network(), features=["1", "4", "1"]).fit([blobs(60)])
    assert str(caught.value) == "The layers of DDU must differ, and '1' is there 2 times: name it once."


def test_a_sum_says_what_it_does_not_have():
    detector = calibrated(network())
    with pytest.raises(NotSupportedError) as caught:
        detector.density  # noqa: B018
    assert str(caught.value) == (
        "The score of this detector has 3 densities: use detector.score.densities, or a detector of one density, "
        "DDU.paper(model)."
    )
    for act, name in (
        (lambda: detector.fit_features(*blobs(60)), "fit_features"),
        (lambda: detector.score_features(X), "score_features"),
    ):
        with pytest.raises(NotSupportedError) as caught:
            act()
        assert str(caught.value) == (
            f"{name} needs a score of one density, and this one is a sum of parts: use batches of "
            "ddu.features.extract(detector.tap, loader) in fit and predict, or DDU.paper(model)."
        )


def test_features_of_other_layers_are_refused():
    detector = calibrated(network())
    with pytest.raises(FeatureError) as caught:
        detector.predict(FeatureBatch(torch.zeros(3, 6), torch.zeros(3, CLASSES)))
    assert str(caught.value) == (
        "The densities are of 14 features, these are 6. Use features of the same layers of the same network, or fit "
        "again."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "sharse"}, "DDU has no view 'sharse'. Did you mean 'shares'?"),
        ({"energy": "no"}, "The 'energy' parameter of DDU must be True or False. Got 'no' instead."),
        ({"features": []}, "The 'features' parameter of DDU must have at least one layer. Got none instead."),
        ({"seed": -1}, "The 'seed' parameter of DDU must be an integer from 0 to 2⁶³ - 1. Got -1 instead."),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(InputError) as caught:
        ddu.DDU(network(), **options)
    assert str(caught.value) == message


# Held-out data


def test_the_seed_decides_which_held_out_samples_standardise():
    one, same, other = (calibrated(network(), seed=seed).score for seed in (0, 0, 1))
    assert one is not None
    assert same is not None
    assert other is not None
    assert one.centre == same.centre
    assert one.centre != other.centre


def test_a_calibration_that_fails_leaves_the_earlier_standardisation():
    detector = calibrated(network())
    assert detector.score is not None
    before = (detector.score.centre, detector.score.scale, detector.calibration)
    x = X[(network()(X).max(1).values > 0.5)]
    with pytest.raises(CalibrationWarning):  # the model is right about all of it; warnings are errors here
        detector.calibrate([(x, network()(x).argmax(1))], 0.1)
    assert (detector.score.centre, detector.score.scale, detector.calibration) == before


def test_the_least_number_of_held_out_samples_is_told_with_both_purposes():
    detector = ddu.DDU(network()).fit([blobs(60)])
    with pytest.raises(InputError) as caught:
        detector.calibrate([blobs(123, seed=1)], false_alarm_rate=0.01)
    assert str(caught.value) == (
        "A false-alarm rate of 0.01 needs at least 124 held-out samples, 99 for the threshold and 25 that standardise "
        "the score, there are 123: hold out more, or accept a rate of 0.0102."
    )
    assert detector.calibrate([blobs(124, seed=1)], false_alarm_rate=0.01).epistemic_threshold is not None
    assert [detector.samples_for_threshold(n) for n in (123, 124, 35)] == [98, 99, 28]


@pytest.mark.parametrize(
    ("held_out", "confidence", "message"),
    [
        (
            73,
            0.95,
            "A false-alarm rate of 0.05 with a confidence of 0.95 needs at least 74 held-out samples, 59 for the "
            "threshold and 15 that standardise the score, there are 73: hold out more, or accept a rate of 0.0504.",
        ),
        (
            1,
            None,
            "A false-alarm rate of 0.05 needs at least 24 held-out samples, 19 for the threshold and 5 that "
            "standardise the score, there are 1: hold out more.",
        ),
        (
            0,
            None,
            "A false-alarm rate of 0.05 needs at least 24 held-out samples, 19 for the threshold and 5 that "
            "standardise the score, there are 0: hold out more.",
        ),
    ],
)
def test_too_few_held_out_samples_are_told_the_confidence_and_a_rate_that_can_be_kept(held_out, confidence, message):
    detector = ddu.DDU(network()).fit([blobs(60)])
    with pytest.raises(InputError) as caught:
        detector.check_held_out(held_out, 0.05, confidence)
    assert str(caught.value) == message


def test_the_rate_that_is_offered_can_be_kept():
    detector = ddu.DDU(network()).fit([blobs(60)])
    for held_out, confidence in ((2, None), (73, 0.95), (40, 0.9), (123, None)):
        with pytest.raises(InputError) as caught:
            detector.check_held_out(held_out, 0.001, confidence)
        offered = float(str(caught.value).removesuffix(".").rpartition(" ")[2])
        detector.check_held_out(held_out, offered, confidence)


def draw(samples: int, generator: torch.Generator) -> FeatureBatch:
    """Features, logits and labels as a calibrated network would give them."""
    z = torch.randn(samples, 3, generator=generator) ** 3  # far from Gaussian
    logits = torch.stack([2 * z[:, 0], 2 * z[:, 1]], 1)
    return FeatureBatch(z, logits, torch.softmax(logits, 1).multinomial(1, generator=generator).flatten())


@pytest.mark.parametrize("held_out", [130, 500])
def test_the_false_alarm_rate_holds_on_average_over_held_out_sets_and_splits(held_out):
    rate, generator = 0.05, torch.Generator().manual_seed(0)
    detector = ddu.DDU(nn.Linear(3, 2), features=None).fit([draw(500, generator)])
    realised = []
    for seed in range(300):
        detector.seed = seed
        detector.calibrate([draw(held_out, generator)], false_alarm_rate=rate)
        assert detector.epistemic_threshold is not None
        new = detector.evidence(draw(500, generator)).epistemic
        assert detector.epistemic_threshold is not None
        realised.append(float((new > detector.epistemic_threshold).double().mean()))
    samples = detector.samples_for_threshold(held_out)
    promised = math.floor(rate * (samples + 1)) / (samples + 1)
    assert rate - 1 / samples < promised <= rate
    error = np.std(realised) / math.sqrt(len(realised))
    assert error < 0.002
    assert np.mean(realised) == pytest.approx(promised, abs=4 * error)


# Precision


def test_autocast_does_not_touch_what_is_made_of_features():
    detector = calibrated(network())
    batch = detector.tap(X)
    expected = detector.predict(batch).epistemic
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(detector.predict(batch).epistemic, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_features_in_half_precision_are_looked_at_in_single(dtype):
    detector = calibrated(network())
    batch = detector.tap(X)
    half = batch._replace(features=batch.features.to(dtype))
    expected = detector.predict(batch._replace(features=half.features.float())).epistemic
    assert torch.equal(detector.predict(half).epistemic, expected)


@pytest.mark.parametrize("how", ["autocast", "a bfloat16 model", "autocast throughout"])
def test_half_precision_gives_the_same_verdicts_but_near_the_threshold(how):
    x = torch.cat([X, 3 * X, X + 5])
    single = calibrated(network())
    expected, threshold = single.predict(x), single.epistemic_threshold
    if how == "a bfloat16 model":
        found = calibrated(network().bfloat16()).predict(x)
    else:
        with torch.autocast("cpu", torch.bfloat16):
            detector = single if how == "autocast" else calibrated(network())
            found = detector.predict(x)
    assert threshold is not None
    # The features are rounded to 8 bits, which moves what is far out by more
    near = (expected.epistemic - threshold).abs() < 0.1 * (1 + expected.epistemic.abs())
    assert near.double().mean() < 0.1
    assert np.array_equal(
        np.asarray(found.verdict)[~near] == "out_of_distribution",
        np.asarray(expected.verdict)[~near] == "out_of_distribution",
    )


# The paper's detector


def test_the_papers_score_is_minus_the_log_density_of_a_mixture_as_scipy_computes_it():
    generator = torch.Generator().manual_seed(0)
    z, y = torch.randn(300, 5, generator=generator).double() ** 3, torch.arange(300) % 7 % 3
    new = 2 * torch.randn(100, 5, generator=generator).double()
    detector = ddu.DDU.paper(nn.Linear(5, 3)).fit_features(z, y)
    classes = [z[y == c].numpy() for c in range(3)]
    expected = -np.logaddexp.reduce(
        [
            stats.multivariate_normal(rows.mean(0), np.cov(rows.T)).logpdf(new.numpy()) + math.log(len(rows) / len(z))
            for rows in classes
        ]
    )
    np.testing.assert_allclose(detector.score_features(new), expected, rtol=1e-6)
    np.testing.assert_allclose(detector.density.log_density(new), -expected, rtol=1e-6)


def test_the_papers_detector_predicts_that_log_density():
    model = network().double()
    detector = ddu.DDU.paper(model).fit([blobs(600)]).calibrate([blobs(400, seed=1)], 0.05)
    prediction = detector.predict(X)
    assert prediction.log_density is not None
    assert torch.equal(prediction.epistemic, -prediction.log_density)
    assert prediction.parts is None
    assert detector.density_threshold == -detector.epistemic_threshold  # pyright: ignore[reportOptionalOperand]
    z = model[:4](X.double()).detach()
    np.testing.assert_allclose(prediction.epistemic, detector.score_features(z), rtol=1e-6)


def test_the_papers_detector_warns_of_a_class_with_no_more_samples_than_features():
    with pytest.warns(FewSamplesWarning, match=r"Only the regularization keeps it invertible \(shrinkage=None\)"):
        ddu.DDU.paper(network()).fit([blobs(18)])
