"""A model with more classes than the data has is restricted to those of the data."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddu
from ddu.detectors import Mahalanobis
from ddu.errors import ArtifactError, InputError, LabelError, NotFittedError
from tests.artifacts.files import manifest_of, sign

CLASSES = [0, 3, 7]
HEAD = nn.functional.one_hot(torch.tensor([0, 2, 4, 1, 4, 4, 4, 3, 4, 4]), 5).float()  # logit c is one of four inputs


def data(samples=300, seed=0):
    """Inputs of the classes 0, 3 and 7 of a model with ten, and labels from 0 to 2."""
    y = torch.arange(samples) % 3
    places = torch.tensor([0, 1, 3])[y]
    return torch.randn(samples, 4, generator=torch.Generator().manual_seed(seed)) + 2 * torch.eye(4)[places], y


def own(y):
    """Labels in the numbering of the model."""
    return torch.tensor(CLASSES)[y]


@pytest.fixture
def model():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 10))
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.eye(5, 4))
        model.get_parameter("0.bias").zero_()
        model.get_parameter("2.weight").copy_(4 * HEAD)
        model.get_parameter("2.bias").zero_()
    return model


def with_head_of_three(model):
    """The same model with a head that has the three outputs alone."""
    head = nn.Linear(5, 3)
    with torch.no_grad():
        head.weight.copy_(model.get_parameter("2.weight")[CLASSES])
        head.bias.copy_(model.get_parameter("2.bias")[CLASSES])
    return nn.Sequential(model[0], model[1], head)


MAKERS = [ddu.DDU, ddu.DDU.paper, Mahalanobis]


def same(a, b):
    for name in ("probs", "label", "aleatoric", "epistemic", "p_value"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name))
    assert np.array_equal(a.verdict, b.verdict)


@pytest.mark.parametrize("make", MAKERS)
def test_it_is_the_detector_of_a_model_with_these_outputs(model, make, tmp_path):
    names = ["ant", "dog", "hen"]
    detector = make(model, classes=CLASSES, class_names=names).fit([data()]).calibrate([data(seed=1)], 0.05)
    expected = make(with_head_of_three(model), class_names=names).fit([data()]).calibrate([data(seed=1)], 0.05)
    x, y = data(60, seed=2)
    found = detector.predict(x)
    same(found, expected.predict(x))
    same(detector.predict(detector.tap(x)), found)
    assert found.probs.shape == (60, 3)
    assert float((found.label == y).double().mean()) > 0.8
    assert found.to_dict()["label"][0] in names
    detector.save(tmp_path)
    same(ddu.load(tmp_path, model).predict(x), found)
    assert "classes=[0, 3, 7]" in repr(detector)


def test_samples_are_added_to_these_classes(model):
    first, second = data(), data(seed=3)
    detector = ddu.DDU(model, classes=CLASSES).fit([first])
    detector.update(detector.tap(second[0])._replace(labels=second[1]))
    assert detector.score is not None
    assert detector.score.densities[0].counts_.tolist() == [200, 200, 200]


ADVICE = (
    "The model has 10 classes, and the labels of the 300 training samples cover 3 of them; class 1 has none. Add "
    "samples of every class, or restrict the model to those of the data, classes=[0, 3, 7], with labels from 0 to 2 "
    "in that order."
)


@pytest.mark.parametrize("make", MAKERS)
def test_it_is_said_before_the_pass_where_labels_can_be_read_and_at_its_end_elsewhere(model, make):
    x, y = data()
    with pytest.raises(LabelError) as caught:
        make(model).fit(DataLoader(TensorDataset(x, own(y)), 50))
    assert str(caught.value) == ADVICE
    with pytest.raises(LabelError) as caught:
        make(model).fit([(x, own(y))])
    assert str(caught.value) == ADVICE + " What this pass learned is kept: detector.keep_classes([0, 3, 7])."


@pytest.mark.parametrize("make", MAKERS)
def test_what_was_learned_can_be_kept(model, make, tmp_path):
    x, y = data()
    names = [f"class {c}" for c in range(10)]
    detector = make(model, class_names=names)
    with pytest.raises(LabelError):
        detector.fit(iter([(x[:100], own(y[:100])), (x[100:], own(y[100:]))]))
    with pytest.raises(NotFittedError):
        detector.predict(x)
    assert detector.keep_classes(CLASSES) is detector
    assert detector.class_names == ("class 0", "class 3", "class 7")
    with pytest.warns(ddu.errors.OverlapWarning):  # it knows what it was fitted to
        detector.calibrate([(x, y)], 0.05)
    detector.calibrate([data(seed=1)], 0.05)
    expected = make(model, classes=CLASSES).fit([(x, y)]).calibrate([data(seed=1)], 0.05)
    same(detector.predict(data(60, seed=2)[0]), expected.predict(data(60, seed=2)[0]))
    detector.save(tmp_path)
    same(ddu.load(tmp_path, model).predict(x), detector.predict(x))


def test_nothing_is_kept_of_a_fit_that_was_not_refused_for_it(model):
    with pytest.raises(NotFittedError, match="There is no pass to keep"):
        ddu.DDU(model).keep_classes(CLASSES)
    with pytest.raises(NotFittedError, match="There is no pass to keep"):
        ddu.DDU(model, classes=CLASSES).fit([data()]).keep_classes([0, 1])


def test_a_class_with_samples_is_not_forgotten(model):
    x, y = data()
    detector = ddu.DDU(model)
    with pytest.raises(LabelError):
        detector.fit([(x, own(y))])
    with pytest.raises(LabelError, match=r"^Class 7 has 100 samples, and only classes without any are forgotten: "):
        detector.keep_classes([0, 3])
    assert detector.keep_classes(CLASSES).is_fitted


def test_labels_in_the_numbering_of_the_model_are_answered(model):
    x, y = data()
    for loader in ([(x, own(y))], DataLoader(TensorDataset(x, own(y)), 50)):
        with pytest.raises(LabelError) as caught:
            ddu.DDU(model, classes=CLASSES).fit(loader)
        assert str(caught.value).startswith("Labels must be below the number of classes, 3. Got 7 at position 2: ")
        assert str(caught.value).endswith(" With classes=[0, 3, 7], they are counted from 0 in that order.")


@pytest.mark.parametrize("classes", [[0], [0, 0], [0, -1], [0, 1.5], "0123", [True, False], 3])
def test_what_are_no_classes_is_refused(model, classes):
    with pytest.raises(InputError, match=r"^The 'classes' must be at least two numbers of classes of the model"):
        ddu.DDU(model, classes=classes)


def test_classes_that_the_model_does_not_have_are_refused(model):
    detector = ddu.DDU(model, classes=[0, 3, 10])
    with pytest.raises(InputError, match=r"^The 'classes' must be below the number of classes, 10\. Got 10 instead\.$"):
        detector.fit([data()])


def test_a_softmax_is_found_although_some_outputs_are_left_out(model):
    with pytest.raises(InputError, match=r"^The model returns probabilities"):
        ddu.DDU(nn.Sequential(*model, nn.Softmax(1)), classes=CLASSES, features="0").fit([data()])


def test_a_file_without_classes_has_all_and_bad_ones_are_refused(model, tmp_path):
    detector = ddu.DDU(with_head_of_three(model)).fit([data()])
    detector.save(tmp_path)
    manifest = manifest_of(tmp_path)
    options = manifest["content"]["options"]
    assert options.pop("classes") is None
    sign(tmp_path, manifest)
    x = data(seed=2)[0]
    assert torch.equal(ddu.load(tmp_path, detector.model).predict(x).probs, detector.predict(x).probs)
    options["classes"] = "all"
    sign(tmp_path, manifest)
    with pytest.raises(ArtifactError, match="The 'classes' must be at least two numbers"):
        ddu.load(tmp_path, detector.model)
