"""What all detectors do in the same way."""

import pytest
import torch
from torch import nn

import ddu
from ddu.detectors import BaseDetector, Energy, Evidence, Softmax
from ddu.errors import InputError
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
