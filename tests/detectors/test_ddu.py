"""The DDU detector around small networks: what it takes, what it learns, and what it says when something is wrong."""

import gc
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddu
from ddu.detectors import passes
from ddu.errors import CalibrationWarning, FeatureError, InputError, LabelError, LayerError, NotFittedError
from ddu.features import FeatureTap, extract
from ddu.metrics import negative_log_likelihood
from tests.detectors.blobs import blobs


def loader(samples=600, seed=0, size=64):
    x, y = blobs(samples, seed)
    return list(zip(x.split(size), y.split(size), strict=True))


def one_density(model, **options):
    """A detector whose score is minus the log-density of the penultimate features."""
    return ddu.DDU(model, **{"features": None, "view": "raw", "energy": False, **options})


def classifier(sharpness=1.0):
    """The Bayes classifier of `blobs`, log p(c | x) = 2 x_c + const, with its logits multiplied by `sharpness`."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    with torch.no_grad():
        for name, value in {"0.weight": torch.eye(4), "2.weight": 2 * sharpness * torch.eye(3, 4)}.items():
            model.get_parameter(name).copy_(value)
        for name in ("0.bias", "2.bias"):
            model.get_parameter(name).zero_()
    return model


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(2, 4), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, a, b):
        return self.head(torch.tanh(self.left(a) + self.right(b)))


def two_inputs():
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return TwoInputs()


X = blobs(200, seed=9)[0]


# What it takes


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param(lambda x, y: [[x, y]], id="lists"),
        pytest.param(lambda x, y: [{"x": x, "labels": y}], id="mappings"),
        pytest.param(lambda x, y: [{"image": x, "target": y}], id="mapping with a name of its own"),
        pytest.param(lambda x, y: [(x.numpy(), y.numpy())], id="arrays"),
        pytest.param(lambda x, y: [(x.double(), y.int())], id="other precisions"),
        pytest.param(lambda x, y: DataLoader(TensorDataset(x, y), batch_size=50), id="DataLoader"),
        pytest.param(lambda x, y: zip(x.split(30), y.split(30), strict=True), id="iterator"),
    ],
)
def test_loaders_of_any_kind_give_the_same_fit(batches):
    x, y = blobs(600)
    expected = ddu.DDU(classifier()).fit([(x, y)]).predict(X).epistemic
    actual = ddu.DDU(classifier()).fit(batches(x, y)).predict(X).epistemic
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["tuple", "mapping"])
def test_a_model_of_two_inputs_is_called_as_it_wants(kind):
    x, y = blobs(300)
    a, b = x[:, :2], x[:, 2:]
    model = two_inputs()
    batch = (a, b, y) if kind == "tuple" else {"b": b, "a": a, "y": y}
    inputs = (a, b) if kind == "tuple" else {"b": b, "a": a}
    prediction = ddu.DDU(model).fit([batch]).predict(inputs)
    with torch.no_grad():
        assert torch.equal(prediction.probs, torch.softmax(model(a, b), 1))


@pytest.mark.parametrize("view", ["auto", "raw", "shares"])
def test_features_by_name_module_and_callable_are_the_same_features(view):
    model = classifier()
    scores = [
        ddu.DDU(model, features=features, view=view).fit(loader()).predict(X).epistemic
        for features in (None, "1", model[1], "2", model[2], lambda x: model[1](model[0](x)))
    ]
    for other in scores[1:]:
        assert torch.equal(scores[0], other)


def test_an_unknown_layer_is_named_with_its_neighbours():
    with pytest.raises(LayerError, match="Sequential has no layer '7'"):
        ddu.DDU(classifier(), features="7").fit(loader())


def test_a_bfloat16_model_gives_finite_scores_that_rank_like_those_of_single_precision():
    single = one_density(classifier()).fit(loader()).predict(X)
    detector = one_density(classifier().bfloat16()).fit(loader()).calibrate(loader(seed=1), false_alarm_rate=0.05)
    half = detector.predict(X)
    assert half.probs.dtype == half.epistemic.dtype == torch.float32
    # bfloat16 has 8 bits: features are off by up to 2⁻⁹ of their size
    np.testing.assert_allclose(half.epistemic, single.epistemic, rtol=0.02, atol=0.05)
    assert detector.model.get_parameter("0.weight").dtype == torch.bfloat16


# Fitting


def test_one_pass_equals_fit_features_on_extracted_features():
    model = classifier()
    rows = list(extract(FeatureTap(model), loader()))
    z, y = torch.cat([row.features for row in rows]), torch.cat([row.labels for row in rows if row.labels is not None])
    streamed, given = one_density(model).fit(loader()), one_density(model).fit_features(z, y)
    assert torch.equal(streamed.predict(X).epistemic, given.predict(X).epistemic)
    from_numpy = one_density(model).fit_features(z.numpy(), y.numpy())
    assert torch.equal(streamed.predict(X).epistemic, from_numpy.predict(X).epistemic)


def test_the_log_density_is_that_of_the_features():
    detector = one_density(classifier(), density=ddu.GaussianDensity(prior="uniform")).fit(loader())
    expected = ddu.GaussianDensity(prior="uniform").fit(*blobs(600)).log_density(X)
    np.testing.assert_allclose(-detector.predict(X).epistemic, expected, rtol=1e-4)


def test_memory_does_not_grow_with_the_number_of_batches(monkeypatch):
    monkeypatch.setattr(passes, "_ROWS", 256)

    def numbers_held(batches):
        held = 0

        def stream():
            nonlocal held
            for i in range(batches):
                if i == batches - 1:
                    held = sum(item.numel() for item in gc.get_objects() if type(item) is torch.Tensor)
                yield blobs(48, seed=i)

        detector = ddu.DDU(classifier()).fit(stream())
        assert detector.score is not None
        assert [int(density.counts_.sum()) for density in detector.score.densities] == [48 * batches] * 2
        return held

    # 6 batches are gathered at a time, so one waits at the end of 19 and of 199
    few, many = numbers_held(20), numbers_held(200)
    assert many < few + 48 * 4  # not even the features of one batch more


def test_waiting_features_are_joined_before_they_are_added():
    """Batches smaller and larger than what is gathered, and a last one of a single row."""
    x, y = blobs(10_001)
    pieces = [1, 4095, 5000, 904, 1]
    batches = list(zip(x.split(pieces), y.split(pieces), strict=True))
    detector = ddu.DDU(classifier()).fit(batches)
    assert detector.score is not None
    for density in detector.score.densities:
        assert density.counts_.tolist() == [3334, 3334, 3333]


@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal", "low_rank"])
@pytest.mark.parametrize("background", [False, True])
def test_every_covariance_with_and_without_a_background(covariance, background):
    density = ddu.GaussianDensity(covariance, rank=2, background=background)
    detector = one_density(classifier(), density=density).fit(loader()).calibrate(loader(seed=1), 0.05)
    reference = ddu.GaussianDensity(covariance, rank=2, background=background).fit(*blobs(600))
    expected = reference.relative_log_density(X) if background else reference.log_density(X)
    # a relative density is a difference of two larger numbers
    np.testing.assert_allclose(-detector.predict(X).epistemic, expected, rtol=1e-4, atol=1e-4)
    assert detector.has_density is not background
    assert not density.is_fitted  # the one that was passed in is a recipe


def test_class_numbers_come_from_the_logits():
    x, y = blobs(600)
    with pytest.raises(LabelError) as caught:
        ddu.DDU(classifier()).fit([(x, y + 1)])
    assert str(caught.value) == (
        "Labels must be below the number of classes, 3. Got 3 at position 2: check that labels are indices from 0 to 2."
    )
    with pytest.raises(LabelError) as caught:
        ddu.DDU(classifier()).fit([(x[y != 2], y[y != 2])])
    assert str(caught.value) == (
        "The model has 3 classes, and the labels of the 400 training samples cover 2 of them; class 2 has none. Add "
        "samples of every class, or restrict the model to those of the data, classes=[0, 1], with labels from 0 to 1 "
        "in that order. What this pass learned is kept: detector.keep_classes([0, 1])."
    )


def test_an_empty_loader_is_refused():
    with pytest.raises(InputError) as caught:
        ddu.DDU(classifier()).fit([])
    assert str(caught.value) == (
        "The loader gave no batches, so there is nothing to fit: check its data set and sampler."
    )
    with pytest.raises(InputError) as caught:
        ddu.DDU(classifier()).fit(loader()).calibrate([])
    assert str(caught.value) == (
        "The loader gave no batches, so there is nothing to calibrate on: check its data set and sampler."
    )


@pytest.mark.parametrize("method", ["fit", "fit_features"])
def test_a_wrong_number_of_class_names_is_refused(method):
    detector = one_density(classifier(), class_names=["ant", "bee"])
    if method == "fit":
        with pytest.raises(InputError) as caught:
            detector.fit(loader())
        assert str(caught.value) == "There are 2 class names for 3 classes: give one for each."
    else:
        with pytest.raises(LabelError, match="Labels must be below the number of classes, 2"):
            detector.fit_features(*blobs(600))


def test_class_names_are_printed():
    prediction = ddu.DDU(classifier(), class_names=["ant", "bee", "cat"]).fit(loader()).predict(8 * torch.eye(3, 4))
    assert [line.split()[1] for line in repr(prediction).splitlines()[1:4]] == ["ant", "bee", "cat"]


def test_an_unfitted_detector_says_so():
    for act in (lambda d: d.predict(X), lambda d: d.calibrate(loader()), lambda d: d.save("nowhere")):
        with pytest.raises(NotFittedError) as caught:
            act(ddu.DDU(classifier()))
        assert str(caught.value) == ("This DDU detector is not fitted yet. Call fit(loader) first.")


@pytest.mark.parametrize("make", [ddu.DDU, ddu.DDU.paper])
def test_printing_tells_the_state(make):
    detector = make(classifier())
    assert repr(detector).endswith(", not fitted)")
    assert repr(detector.fit(loader())).endswith(", fitted)")
    assert repr(detector.calibrate(loader(seed=1), 0.05)).endswith(", calibrated)")


def test_uncalibrated_predictions_print_the_hint():
    prediction = ddu.DDU(classifier()).fit(loader()).predict(X)
    assert prediction.verdict is None
    assert repr(prediction).endswith("\nNo verdicts: calibrate the detector on held-out data first.")


# Calibrating


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2])
def test_the_false_alarm_rate_holds_on_new_data(rate):
    held_out, new = 1500, 6000  # a fifth of the held-out data standardises
    detector = ddu.DDU(classifier()).fit(loader()).calibrate(loader(held_out, seed=1), false_alarm_rate=rate)
    verdict = np.asarray(detector.predict(blobs(new, seed=2)[0]).verdict)
    share = np.mean(verdict == ddu.Verdict.OUT_OF_DISTRIBUTION)
    # four standard deviations: binomial for the new data, and as much again for the threshold from the held-out data
    assert share == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) * (1 / (0.8 * held_out) + 1 / new)))


def test_held_out_data_itself_is_flagged_at_most_at_the_rate():
    detector = ddu.DDU.paper(classifier()).fit(loader()).calibrate(loader(999, seed=1), false_alarm_rate=0.05)
    flagged = np.asarray(detector.predict(blobs(999, seed=1)[0]).verdict) == ddu.Verdict.OUT_OF_DISTRIBUTION
    assert flagged.sum() == 49  # the 50th smallest of 999 is the threshold, and those below it are flagged


def test_the_temperature_undoes_overconfidence():
    model = classifier(sharpness=3.0)
    detector = ddu.DDU(model).fit(loader()).calibrate(loader(3000, seed=1), false_alarm_rate=0.05)
    # the model is the Bayes classifier with its logits times 3; the standard error at 3,000 samples is about 3 %
    assert detector.temperature == pytest.approx(3.0, rel=0.12)
    x, y = blobs(3000, seed=2)
    calibrated = -detector.predict(x).probs.double().log().gather(1, y[:, None]).mean()
    with torch.no_grad():
        overconfident = negative_log_likelihood(model.eval()(x), y)
        bayes = negative_log_likelihood(classifier().eval()(x), y)
    assert calibrated < overconfident - 0.1
    assert calibrated == pytest.approx(bayes, abs=0.01)


def test_the_training_quantile_is_the_plain_quantile():
    detector = ddu.DDU.paper(classifier()).fit(loader())
    detector.calibrate(loader(), false_alarm_rate=0.03, threshold="training_quantile")
    scores = (-detector.predict(blobs(600)[0]).epistemic).double().numpy()
    assert detector.density_threshold == pytest.approx(np.sort(scores)[18], rel=1e-5)  # 18 of 600 are below it


def test_an_unknown_threshold_is_refused():
    unknown: Any = "best"
    with pytest.raises(InputError) as caught:
        ddu.DDU(classifier()).fit(loader()).calibrate(loader(seed=1), threshold=unknown)
    assert str(caught.value) == ("The 'threshold' must be one of 'conformal', 'training_quantile'. Got 'best' instead.")


def test_ambiguous_inputs_are_between_classes_and_unknown_ones_far_out():
    detector = ddu.DDU(classifier()).fit(loader()).calibrate(loader(seed=1), false_alarm_rate=0.01)
    clear, between, far = torch.tensor([[3.0, 0.0, 0, 0], [1.0, 1.0, 1.0, 0], [0.0, 0.0, 0.0, 30.0]])
    prediction = detector.predict(torch.stack([clear, between, far]))
    assert [one.verdict for one in prediction] == list(ddu.Verdict)[:3]


def test_too_few_held_out_samples_are_refused():
    detector = ddu.DDU.paper(classifier()).fit(loader())
    with pytest.raises(InputError) as caught:
        detector.calibrate(loader(60, seed=1), false_alarm_rate=0.01)
    assert str(caught.value) == (
        "A false-alarm rate of 0.01 needs at least 99 held-out samples, there are 60: hold out more, or accept a rate "
        "of 0.0164."
    )


@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5, float("nan")])
def test_a_rate_outside_of_0_and_1_is_refused(rate):
    with pytest.raises(InputError, match="The false-alarm rate must be a float between 0 and 1"):
        ddu.DDU(classifier()).fit(loader()).calibrate(loader(seed=1), false_alarm_rate=rate)


def test_bad_held_out_labels_are_refused():
    x, y = blobs(300, seed=1)
    with pytest.raises(LabelError, match="Labels must be below the number of classes, 3"):
        ddu.DDU(classifier()).fit(loader()).calibrate([(x, y + 1)], false_alarm_rate=0.05)


# When something fails


def state(detector):
    p = detector.predict(X)
    return p.probs.tolist(), p.epistemic.tolist(), None if p.verdict is None else p.verdict.tolist()


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(lambda d: d.fit([]), id="fit on nothing"),
        pytest.param(lambda d: d.fit([(X, torch.full((200,), 7))]), id="fit with bad labels"),
        pytest.param(
            lambda d: d.fit([*loader(seed=5), (X * float("nan"), torch.zeros(200).long())]), id="fit with NaN"
        ),
        pytest.param(lambda d: d.calibrate(loader(9, seed=1)), id="calibrate on too little"),
        pytest.param(lambda d: d.calibrate([(X, torch.full((200,), 7))], 0.1), id="calibrate with bad labels"),
        pytest.param(lambda d: d.predict(X * float("nan"), invalid="raise"), id="predict NaN"),
        pytest.param(lambda d: d.calibrate([(X, (2 * X[:, :3]).argmax(1))], 0.1), id="calibrate where all is right"),
    ],
)
def test_a_failure_leaves_the_detector_as_it_was(failure):
    detector = ddu.DDU(classifier()).fit(loader()).calibrate(loader(seed=1), false_alarm_rate=0.05)
    before = state(detector)
    with pytest.raises((InputError, CalibrationWarning)):  # warnings are errors here
        failure(detector)
    assert state(detector) == before


def test_fit_features_without_a_class_leaves_the_detector_as_it_was():
    detector = one_density(classifier()).fit(loader()).calibrate(loader(seed=1), false_alarm_rate=0.05)
    before = state(detector)
    with pytest.raises(LabelError):
        detector.fit_features(X, 2 * (torch.arange(200) % 2))
    assert state(detector) == before


def test_a_loader_that_breaks_half_way_leaves_the_detector_as_it_was():
    def broken():
        yield from loader(seed=5)
        raise ConnectionError("the disk went away")

    detector = ddu.DDU(classifier()).fit(loader())
    before = state(detector)
    with pytest.raises(ConnectionError, match="the disk went away"):
        detector.fit(broken())
    assert state(detector) == before


def test_inputs_that_are_not_finite_are_refused_in_words():
    with pytest.raises(FeatureError, match="1 of 2 rows of features are not finite"):
        ddu.DDU(classifier()).fit(loader()).evidence(torch.tensor([[0.0] * 4, [float("inf")] * 4]))


def test_a_batch_of_none_gives_a_prediction_of_none():
    detector = ddu.DDU(classifier()).fit(loader()).calibrate(loader(seed=1), false_alarm_rate=0.05)
    prediction = detector.predict(X[:0])
    assert len(prediction) == 0
    assert prediction.probs.shape == (0, 3)
