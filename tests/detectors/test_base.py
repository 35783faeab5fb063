"""What all detectors do in the same way."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddu
from ddu.detectors import DUQ, SNGP, BaseDetector, Energy, Ensemble, Evidence, Mahalanobis, Softmax
from ddu.errors import CalibrationWarning, DDUWarning, InputError, LabelError, LabelWarning
from ddu.features import FeatureTap, LogitsTap, extract


def blobs(samples=300, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % 3
    return torch.randn(samples, 4, generator=generator) + 2 * torch.eye(3, 4)[y], y


@pytest.fixture
def model():
    """A classifier that needs no training: logit c is the c-th input, squashed; the other features are random."""
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        model.get_parameter("0.weight")[:3] = torch.eye(3, 4)
        model.get_parameter("2.weight").copy_(torch.eye(3, 8))
        return model


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
    train, held_out, new = (list(extract(FeatureTap(model), [blobs(seed=seed)])) for seed in range(3))
    cached = make(model).fit(train).calibrate(held_out, false_alarm_rate=0.1).predict(new[0])
    fresh = make(model).fit([blobs()]).calibrate([blobs(seed=1)], false_alarm_rate=0.1).predict(blobs(seed=2)[0])
    assert torch.equal(cached.probs, fresh.probs)
    assert torch.equal(cached.epistemic, fresh.epistemic)
    assert cached.verdict.tolist() == fresh.verdict.tolist()


def test_the_threshold_is_the_conformal_quantile_of_the_epistemic_scores(model):
    held_out = blobs(99, seed=1)
    detector = Softmax(model).calibrate([held_out], false_alarm_rate=0.05)
    scores = detector.predict(held_out[0]).epistemic.sort(descending=True).values
    assert detector.epistemic_threshold == float(scores[4])  # the fifth largest: 0.05 of 99 + 1
    assert (detector.predict(held_out[0]).verdict == ddu.Verdict.OUT_OF_DISTRIBUTION).sum() == 4


def test_a_detector_without_a_density_prints_no_column_for_it(model):
    prediction = Softmax(model).calibrate([blobs(seed=1)], false_alarm_rate=0.1).predict(blobs()[0])
    assert repr(prediction).splitlines()[0].split() == ["label", "confidence", "aleatoric", "epistemic", "verdict"]
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
        Energy(model).predict(x)
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
    assert len(read) <= 13


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (
            0,
            "The model has 3 classes, and the labels of the 200 training samples cover 2 of them; class 2 has none. "
            "Add samples of every class, or give the model a head of 2 outputs, trained on labels from 0 to 1.",
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
        assert str(caught.value) == message
    assert len(read) <= 13


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
    with pytest.raises(LabelError) as caught:
        ddu.DDU(model).fit([blobs()])
    assert str(caught.value) == (
        "The model has 1,000 classes, and the labels of the 300 training samples cover 3 of them; class 3 has none. "
        "Add samples of every class, or give the model a head of 3 outputs, trained on labels from 0 to 2."
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
