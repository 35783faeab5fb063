"""What all detectors do in the same way."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddu
from ddu import Prediction
from ddu.detectors import DUQ, SNGP, BaseDetector, Energy, Ensemble, Evidence, Mahalanobis, Softmax
from ddu.errors import (
    CalibrationWarning,
    DDUWarning,
    FewSamplesWarning,
    InputError,
    LabelError,
    LabelWarning,
    LogitsWarning,
    NotSupportedError,
)
from ddu.features import LogitsTap, extract
from tests.detectors.blobs import blob_classifier, blobs


@pytest.fixture
def model():
    return blob_classifier()


class FirstInput(BaseDetector):
    """As little as a detector has to say."""

    name = "first_input"
    needs_fit = False

    def __init__(self, model):
        super().__init__(LogitsTap(model), None)

    def _evidence(self, batch):
        return Evidence(batch.logits, batch.logits[:, 0])


def test_a_new_detector_says_only_how_it_scores(model):
    detector = FirstInput(model).calibrate([blobs()], false_alarm_rate=0.1)
    prediction = detector.predict(blobs(seed=1)[0])
    assert torch.equal(prediction.epistemic, model(blobs(seed=1)[0])[:, 0].detach())
    assert prediction.log_density is None
    assert set(prediction.verdict) <= set(ddu.Verdict)


@pytest.mark.parametrize("make", [ddu.DDU, Softmax, Energy])
def test_a_batch_extracted_before_is_as_good_as_its_inputs(model, make):
    detector = make(model)
    train, held_out, new = (list(extract(detector.tap, [blobs(seed=seed)])) for seed in range(3))
    cached = detector.fit(train).calibrate(held_out, false_alarm_rate=0.1).predict(new[0])
    fresh = make(model).fit([blobs()]).calibrate([blobs(seed=1)], false_alarm_rate=0.1).predict(blobs(seed=2)[0])
    assert torch.equal(cached.probs, fresh.probs)
    assert torch.equal(cached.epistemic, fresh.epistemic)
    assert cached.verdict.tolist() == fresh.verdict.tolist()


def test_a_detector_without_a_way_to_learn_is_refused_before_it_reads_anything(model):
    class SumsUp(FirstInput):
        needs_fit = True

        def _collect(self, batches, expected_samples):
            return sum(len(batch.logits) for batch in batches)

    loader = iter([blobs()])
    with pytest.raises(NotSupportedError) as caught:
        SumsUp(model).fit(loader)
    assert str(caught.value) == (
        "SumsUp needs a fit, and defines no way to learn: define _learn, or _collect and _finish, or set needs_fit = "
        "False."
    )
    assert len(list(loader)) == 1


def test_the_threshold_is_the_conformal_quantile_of_the_epistemic_scores(model):
    held_out = blobs(99, seed=1)
    detector = Softmax(model).calibrate([held_out], false_alarm_rate=0.05)
    scores = detector.predict(held_out[0]).epistemic.sort(descending=True).values
    assert detector.epistemic_threshold == float(scores[4])  # the fifth largest: 0.05 of 99 + 1
    assert (detector.predict(held_out[0]).verdict == ddu.Verdict.OUT_OF_DISTRIBUTION).sum() == 4


def test_a_detector_without_a_density_prints_no_column_for_it(model):
    prediction = Softmax(model).calibrate([blobs(seed=1)], false_alarm_rate=0.1).predict(blobs()[0])
    columns = ["label", "confidence", "candidates", "aleatoric", "epistemic", "p_value", "verdict"]
    assert repr(prediction).splitlines()[0].split() == columns
    assert "log_density" not in prediction.to_pandas()
    assert prediction[3].log_density is None


def test_what_has_nothing_to_learn_leaves_the_loader_alone(model):
    def never():
        raise AssertionError("It was read.")
        yield

    assert Softmax(model).fit(never()).predict(blobs()[0]).verdict is None


def test_logits_that_are_not_finite_are_refused(model):
    x = torch.cat([blobs()[0], torch.full((2, 4), float("nan"))])
    with pytest.raises(InputError) as caught:
        Energy(model).evidence(x)
    assert str(caught.value) == "The model gave NaN or infinite logits for 2 of 302 inputs: check it."


def test_printing_shows_the_options_and_the_state(model):
    detector = Softmax(model, score="confidence")
    assert repr(detector) == "Softmax(LogitsTap(Sequential), score='confidence', fitted)"
    detector.calibrate([blobs(seed=1)], false_alarm_rate=0.1)
    assert repr(detector) == "Softmax(LogitsTap(Sequential), score='confidence', calibrated)"


def test_loading_gives_the_class_that_was_saved_with_its_options(model, tmp_path):
    saved = Softmax(model, score="confidence", class_names=["ant", "bee", "cat"])
    saved.calibrate([blobs(seed=1)], false_alarm_rate=0.1).save(tmp_path)
    loaded = ddu.load(tmp_path, model)
    assert isinstance(loaded, Softmax)
    assert (loaded.score, loaded.class_names, loaded.calibration) == (
        "confidence",
        saved.class_names,
        saved.calibration,
    )


def test_a_calibration_belongs_to_the_weights_it_was_made_with(model, tmp_path):
    detector = Energy(model).calibrate([blobs(seed=1)], false_alarm_rate=0.1)
    nn.init.zeros_(model[0].bias)
    detector.save(tmp_path)
    with pytest.raises(ddu.errors.ArtifactError, match="load the weights it was fitted to, or fit again"):
        ddu.load(tmp_path, model)


def test_features_are_not_replaced_where_there_are_none(model, tmp_path):
    Energy(model).save(tmp_path)
    with pytest.raises(InputError) as caught:
        ddu.load(tmp_path, model, features="0")
    assert str(caught.value) == f"{tmp_path} holds a detector 'energy', which has no features= to replace."


def test_class_names_as_a_mapping_are_refused(model):
    with pytest.raises(InputError) as caught:
        Energy(model, class_names={0: "ant"})
    assert str(caught.value) == "The 'class_names' parameter of Energy must be a sequence in the order of the classes."


# Rates that are set later, and calibration without labels


@pytest.mark.parametrize("make", [ddu.DDU, Softmax])
def test_a_rate_that_is_set_later_needs_no_data_and_one_that_cannot_be_kept_changes_nothing(model, make):
    at_once, later = (make(model).fit([blobs()]).calibrate([blobs(seed=1)], rate) for rate in (0.05, 0.2))
    later.false_alarm_rate = 0.05
    new = blobs(seed=2)[0]
    assert later.calibration == at_once.calibration
    assert later.predict(new).verdict.tolist() == at_once.predict(new).verdict.tolist()
    with pytest.raises(InputError, match=r"^A false-alarm rate of 0\.001 needs at least 999 held-out samples"):
        later.false_alarm_rate = 0.001
    assert later.false_alarm_rate == 0.05
    with pytest.raises(ddu.errors.NotFittedError, match="This Softmax detector is not calibrated yet"):
        Softmax(model).false_alarm_rate = 0.1


def test_a_verdict_is_a_p_value_of_at_most_the_rate(model):
    detector = ddu.DDU(model).fit([blobs()]).calibrate([blobs(seed=1)], 0.05)
    prediction = detector.predict(torch.cat([blobs(seed=2)[0], 9 + blobs(20, seed=3)[0]]))
    assert prediction.least_p_value == 1 / 241  # of 300, a fifth standardises the parts
    assert prediction.p_value is not None
    unknown = np.array(prediction.verdict) == ddu.Verdict.OUT_OF_DISTRIBUTION
    assert (unknown == (prediction.p_value <= 0.05).numpy()).all()
    assert unknown[300:].any()


@pytest.mark.parametrize("make", [ddu.DDU, Softmax])
def test_without_labels_the_p_values_are_the_same_and_nothing_is_ambiguous(model, make):
    (x, y), new = blobs(seed=1), blobs(seed=2)[0]
    labelled = make(model).fit([blobs()]).calibrate([(x, y)], 0.05).predict(new)
    detector = make(model).fit([blobs()])
    for held_out in (x, iter(x.split(100)), TensorDataset(x, y)):
        found = detector.calibrate(held_out, 0.05, labels=False).predict(new)
        torch.testing.assert_close(found.epistemic, labelled.epistemic)
        assert (found.p_value - labelled.p_value).abs().max() <= 1 / 241  # ties, up to rounding
        assert set(found.verdict) == {ddu.Verdict.IN_DISTRIBUTION, ddu.Verdict.OUT_OF_DISTRIBUTION}
        assert (found.candidates, detector.temperature, detector.entropy_threshold) == (None, 1.0, None)


def test_candidates_and_the_error_rate_follow_what_was_asked_for(model):
    detector = Softmax(model).calibrate([blobs(900, seed=1)], 0.05, error_rate=0.15, coverage=0.9)
    x, y = blobs(3000, seed=2)
    prediction = detector.predict(x)
    assert prediction.candidates is not None
    covered = prediction.candidates.gather(1, y[:, None]).double().mean()
    assert covered == pytest.approx(0.9, abs=0.05)
    clear = torch.from_numpy(prediction.verdict == ddu.Verdict.IN_DISTRIBUTION)
    assert (prediction.label != y)[clear].double().mean() <= 0.15
    with pytest.raises(InputError, match=r"^An error rate of 0\.0001 with a confidence of 0\.95 cannot be promised"):
        detector.calibrate([blobs(900, seed=1)], 0.05, error_rate=0.0001)
    assert detector.calibration is not None
    assert detector.calibration.error_rate == 0.15  # the earlier calibration stands


# Inputs to judge


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: x,
        lambda x, y: x.numpy(),
        lambda x, y: list(x),
        lambda x, y: list(x.numpy()),
        lambda x, y: (x,),
        lambda x, y: {"input": x},
        lambda x, y: TensorDataset(x, y),
        lambda x, y: TensorDataset(x),
        lambda x, y: DataLoader(TensorDataset(x, y), 64),
        lambda x, y: iter(x.split(70)),
        lambda x, y: [*x.split(70)],
        lambda x, y: [(x[:9], y[:9].tolist()), {"x": x[9:], "labels": y[9:]}],
        lambda x, y: (part for part in x.split(1)),
    ],
    ids=[
        *("tensor", "array", "tensors", "arrays", "tuple", "mapping", "labelled set", "set", "loader", "iterator"),
        *("batches", "labelled batches", "one by one"),
    ],
)
def test_inputs_come_in_many_forms(model, form):
    detector = Energy(model).calibrate([blobs(seed=1)], 0.1)
    x, y = blobs()
    expected, found = Prediction.join([detector.predict(part) for part in x.split(300)]), detector.predict(form(x, y))
    torch.testing.assert_close(found.epistemic, expected.epistemic)
    torch.testing.assert_close(found.probs, expected.probs)
    assert len(found.verdict) == 300


def test_a_stack_of_batches_is_answered_with_the_iterator(model):
    x, _ = blobs()
    with pytest.raises(InputError) as caught:
        Energy(model).predict([x[:100], x[100:200]])
    assert str(caught.value) == (
        "The inputs have the shape (2, 100, 4), one dimension too many: pass x.flatten(0, 1). A list of batches is "
        "stacked; pass it as an iterator, iter(batches)."
    )


def test_nothing_to_predict_is_said(model):
    with pytest.raises(InputError) as caught:
        Energy(model).predict(iter([]))
    assert str(caught.value) == "The inputs are an iterable that gave no batches, so there is nothing to predict."


@pytest.mark.parametrize("make", [ddu.DDU, Softmax, Mahalanobis])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_input_that_is_not_finite_is_invalid_and_the_others_are_as_before(model, make, value):
    detector = make(model).fit([blobs()]).calibrate([blobs(seed=1)], 0.1)
    x = blobs(seed=2)[0]
    expected = detector.predict(x)
    x[[3, 280], 1] = value
    found = detector.predict(x)
    valid = torch.ones(300, dtype=torch.bool)
    valid[[3, 280]] = False
    assert torch.equal(found[valid].epistemic, expected[valid].epistemic)
    assert found[valid].verdict.tolist() == expected[valid].verdict.tolist()
    assert found[~valid].verdict.tolist() == [ddu.Verdict.INVALID] * 2
    assert found[~valid].reason.tolist() == ["it has NaN or infinity"] * 2
    assert found[~valid].label.tolist() == [-1, -1]
    assert found[~valid].p_value.isnan().all()
    assert not found[~valid].candidates.any()
    with pytest.raises(InputError) as caught:
        detector.predict(x, invalid="raise")
    assert str(caught.value) == ("2 of 300 inputs cannot be judged; the first, at position 3: it has NaN or infinity.")


def test_what_a_model_makes_of_an_input_is_looked_at_too(model):
    class Fragile(nn.Module):
        def forward(self, x):
            return model(x) / (x[:, :1] != 7)

    x = blobs(seed=2)[0]
    x[5, 0] = 7
    found = Softmax(Fragile()).predict((x,))
    assert found.reason is not None
    assert found.reason[5] == "its logits are NaN or infinite"
    assert (found.reason != "").sum() == 1
    assert found.verdict is None


# What a newcomer does wrong


def reading(read, batch_size=10):
    """A loader of `blobs` that writes down the number of each sample it reads."""

    class Reading(TensorDataset):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    def make(x, y):
        return DataLoader(Reading(x, y), batch_size)

    return make


@pytest.mark.parametrize("make", [ddu.DDU, Softmax, Mahalanobis])
@pytest.mark.parametrize("method", ["fit", "calibrate"])
def test_a_data_set_in_the_place_of_a_loader_is_refused(model, make, method):
    detector = make(model).fit([blobs()])
    with pytest.raises(InputError) as caught:
        getattr(detector, method)(TensorDataset(*blobs()))
    assert str(caught.value) == (
        "The loader is a TensorDataset, which gives one sample at a time: pass DataLoader(dataset, batch_size=...), or "
        "with batch_size=None if it gives whole batches."
    )


@pytest.mark.parametrize("method", ["fit", "calibrate"])
def test_listed_labels_out_of_range_are_refused_after_one_batch(model, method):
    detector, read, (x, y) = ddu.DDU(model).fit([blobs()]), [], blobs()
    with pytest.raises(LabelError) as caught:
        getattr(detector, method)(reading(read)(x, torch.where(torch.arange(300) == 250, 3, y)))
    assert str(caught.value) == (
        "Labels must be below the number of classes, 3. Got 3 at position 250: check that labels are indices from 0 "
        "to 2."
    )
    # the first batch, and the samples that prove that the listed labels are those given
    assert len(read) <= 13 + 16  # eight samples are read twice before, to see whether they are augmented


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (
            0,
            "The model has 3 classes, and the labels of the 200 training samples cover 2 of them; class 2 has none. "
            "Add samples of every class, or restrict the model to those of the data, classes=[0, 1], with labels from "
            "0 to 1 in that order.",
        ),
        (1, "Class 2 has 1 sample, and a variance needs at least 2: add samples, or leave the class out."),
    ],
)
@pytest.mark.parametrize("make", [ddu.DDU, Mahalanobis])
def test_a_class_with_too_few_samples_is_refused_after_one_batch_or_at_the_end(model, make, keep, message):
    x, y = blobs()
    kept = (y < 2) | (y == 2).cumsum(0).le(keep)
    x, y = x[kept], y[kept]
    read = []
    for loader in (reading(read)(x, y), list(zip(x.split(50), y.split(50), strict=True))):
        with pytest.raises(LabelError) as caught:
            make(model).fit(loader)
        assert (
            str(caught.value).removesuffix(" What this pass learned is kept: detector.keep_classes([0, 1]).") == message
        )
    assert len(read) <= 13 + 16  # eight samples are read twice before, to see whether they are augmented


def test_labels_that_a_data_set_lists_but_does_not_give_are_not_held_against_it(model):
    class Relabelled(TensorDataset):
        """Lists the labels of all its classes, and gives those of a coarser division."""

        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x, y // 2

    x, y = blobs()
    expected = ddu.DDU(model).fit([(x, y)])
    fitted = ddu.DDU(model).fit(DataLoader(Relabelled(x, 2 * y), 300))
    assert torch.equal(fitted.predict(x).epistemic, expected.predict(x).epistemic)


def test_a_head_of_many_more_classes_than_the_data_has_is_refused_or_warned_of():
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1000))
    with pytest.warns(FewSamplesWarning), pytest.raises(LabelError) as caught:
        ddu.DDU(model).fit([blobs()])
    assert str(caught.value) == (
        "The model has 1,000 classes, and the labels of the 300 training samples cover 3 of them; class 3 has none. "
        "Add samples of every class, or restrict the model to those of the data, classes=[0, 1, 2], with labels from 0 "
        "to 2 in that order. What this pass learned is kept: detector.keep_classes([0, 1, 2])."
    )
    with (
        pytest.warns(CalibrationWarning),
        pytest.warns(LabelWarning, match="They cover 3 of the model's 1,000 classes"),
    ):
        Energy(model).calibrate([blobs()], 0.1)


@pytest.mark.parametrize("make", [ddu.DDU, Energy])
def test_labels_at_chance_level_are_warned_of_at_the_line_that_gave_them(model, make):
    x, y = blobs()
    detector = make(model).fit([(x, y)])
    shuffled = [(x, y[torch.randperm(300, generator=torch.Generator().manual_seed(0))])]
    methods = [detector.fit] if detector.needs_fit else []
    for method in (*methods, lambda loader: detector.calibrate(loader, 0.1)):
        with pytest.warns(DDUWarning) as warned:
            method(shuffled)
        assert (warned[0].category, warned[0].filename) == (LabelWarning, __file__)
        assert str(warned[0].message).startswith("The labels are what the model predicts for ")


def test_a_warning_that_is_made_an_error_leaves_the_fit_as_it_was(model):
    (x, y), new = blobs(), blobs(seed=1)[0]
    detector = ddu.DDU(model).fit([(x, y)])
    before = detector.predict(new).epistemic
    with pytest.raises(LabelWarning):  # as all warnings are here
        detector.fit([(x, y.roll(1))])
    assert torch.equal(detector.predict(new).epistemic, before)


@pytest.mark.parametrize("make", [ddu.DDU, Energy])
def test_probabilities_in_the_place_of_logits_are_refused(model, make):
    ends_in_softmax = nn.Sequential(*model, nn.Softmax(1))
    message = (
        "The model returns probabilities instead of logits: each of 300 rows sums to 1. Leave out its softmax, for "
        "instance model[:-1], or have it return log-probabilities, probs.log()."
    )
    for act in (
        lambda: make(ends_in_softmax).fit([blobs()]).calibrate([blobs()], 0.1),
        lambda: Energy(ends_in_softmax).predict(blobs()[0]),
        lambda: Ensemble([model, ends_in_softmax]).predict(blobs()[0]),
    ):
        with pytest.raises(InputError) as caught:
            act()
        assert str(caught.value) == message
    assert make(ends_in_softmax[:-1]).fit([blobs()]).predict(blobs()[0]).verdict is None


@pytest.mark.parametrize("make", [ddu.DDU, Softmax, Energy, Mahalanobis, SNGP, DUQ])
def test_what_is_no_model_is_refused(make):
    with pytest.raises(InputError) as caught:
        make("resnet18")
    assert str(caught.value) == "model= must be a torch.nn.Module. Got str instead."


def test_class_names_are_counted_before_calibration_too(model):
    with pytest.raises(InputError) as caught:
        Softmax(model, class_names=["ant", "bee"]).calibrate([blobs()], 0.1)
    assert str(caught.value) == "There are 2 class names for 3 classes: give one for each."


# Log-probabilities


@pytest.mark.parametrize("make", [ddu.DDU, Energy])
def test_log_probabilities_are_warned_of_where_the_energy_counts(model, make):
    x, y = blobs()
    ended = make(nn.Sequential(model, nn.LogSoftmax(1)))
    with pytest.warns(LogitsWarning) as caught:
        ended.fit([(x[:120], y[:120]), (x[120:], y[120:])]) if make is ddu.DDU else ended.calibrate([(x, y)], 0.1)
    (warning,) = caught
    assert str(warning.message) == (
        f"The model returns log-probabilities instead of logits: exp of each of {120 if make is ddu.DDU else 300} rows "
        "sums to 1. The energy -log Σ exp(logit) is then 0 whatever the input, and tells nothing: leave out the "
        "model's log-softmax, for instance model[:-1], or the energy of the score, ddu.DDU(model, energy=False)."
    )
    assert warning.filename == __file__


def test_log_probabilities_are_right_where_no_energy_counts(model):
    ended = nn.Sequential(model, nn.LogSoftmax(1))
    for detector in (ddu.DDU(ended, energy=False), ddu.DDU.paper(ended), Softmax(ended), Ensemble([ended, model])):
        detector.fit([blobs()]).calibrate([blobs(seed=1)], 0.1)


@pytest.mark.parametrize("labels", [True, False])
def test_logits_are_not_taken_for_log_probabilities(model, labels):
    x, y = blobs(seed=1)
    detector = ddu.DDU(model).fit([blobs()])
    detector.calibrate([(x, y)] if labels else x, 0.1, labels=labels)
    ended = Energy(nn.Sequential(model, nn.LogSoftmax(1)))
    if not labels:
        with pytest.warns(LogitsWarning):
            ended.calibrate(x, 0.1, labels=False)
