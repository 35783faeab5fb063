"""Ensembles: what their members say together, and one artefact for all of them."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import ddu
from ddu.detectors import Ensemble, Softmax, load_members
from ddu.errors import ArtifactError, InputError
from ddu.features import extract
from ddu.measures import entropy, mutual_information, predictive_entropy
from ddu.testing import check_detector
from ddu.testing.contract import blobs

X = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))


def network(seed=0):
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))


def members(model):
    """A model and two that differ from it a little."""
    others = [copy.deepcopy(model) for _ in range(2)]
    with torch.no_grad():
        for scale, other in zip((0.5, 2.0), others, strict=True):
            for parameter in other.parameters():
                parameter += 0.1 * scale * parameter.sin()
    return [model, *others]


def logits_of(models):
    with torch.no_grad():
        return torch.stack([model.eval()(X) for model in models])


@pytest.fixture
def models():
    return [network(seed) for seed in range(3)]


@pytest.mark.parametrize("score", ["mutual_information", "predictive_entropy", "expected_entropy"])
def test_it_keeps_to_the_contract(score):
    check_detector(
        lambda model: Ensemble(members(model), score=score),
        load=lambda folder, model: ddu.load(folder, members(model)),
        distance_aware=False,
    )


def test_probabilities_are_the_mean_and_scores_those_of_the_members(models):
    logits = logits_of(models)
    prediction = Ensemble(models).predict(X)
    torch.testing.assert_close(prediction.probs, torch.softmax(logits, -1).mean(0))
    torch.testing.assert_close(prediction.aleatoric, predictive_entropy(logits))
    torch.testing.assert_close(prediction.epistemic, mutual_information(logits))
    torch.testing.assert_close(
        Ensemble(models, score="predictive_entropy").predict(X).epistemic, predictive_entropy(logits)
    )


def test_the_decomposition_takes_the_disagreement_out_of_the_entropy(models):
    parts = Ensemble(models).decompose(X)
    torch.testing.assert_close(parts.predictive_entropy, parts.expected_entropy + parts.mutual_information)
    torch.testing.assert_close(parts.expected_entropy, entropy(logits_of(models)).mean(0))


@pytest.mark.parametrize("score", ["mutual_information", "predictive_entropy", "expected_entropy"])
def test_the_score_is_a_part_of_the_decomposition(models, score):
    detector = Ensemble(models, score=score)
    assert torch.equal(detector.predict(X).epistemic, getattr(detector.decompose(X), score))


def test_members_that_agree_have_no_negative_mutual_information():
    """In single precision it would be negative for about half of the inputs."""
    models = [network() for _ in range(3)]
    with torch.no_grad():
        for factor, model in enumerate(models):
            model.get_parameter("4.weight").mul_(1 + 1e-5 * factor)
    assert (Ensemble(models).decompose(X).mutual_information > -1e-14).all()


def test_members_that_are_one_network_agree(models):
    ensemble, single = Ensemble([models[0]] * 4).predict(X), Softmax(models[0]).predict(X)
    torch.testing.assert_close(ensemble.epistemic, torch.zeros(200), rtol=0, atol=1e-7)
    torch.testing.assert_close(ensemble.probs, single.probs)


def test_the_order_of_the_members_does_not_matter(models):
    torch.testing.assert_close(Ensemble(models).predict(X).epistemic, Ensemble(models[::-1]).predict(X).epistemic)


def test_more_members_know_more_about_where_they_differ():
    """Trained on the same blobs from other starts, they agree there and not far away."""
    x, y = blobs(600, seed=0)
    trained = []
    for seed in range(5):
        model = network(seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            for _ in range(100):
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        trained.append(model)
    known, far = blobs(300, seed=1)[0], 4 * torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
    ensemble = Ensemble(trained)
    assert ensemble.predict(far).epistemic.mean() > 2 * ensemble.predict(known).epistemic.mean()


def test_what_its_tap_extracted_is_as_good_as_the_inputs(models):
    detector = Ensemble(models)
    (batch,) = extract(detector.tap, [(X, torch.zeros(200).long())])
    assert torch.equal(detector.predict(batch).epistemic, detector.predict(X).epistemic)


def test_the_members_are_part_of_the_artefact(models, tmp_path):
    with torch.no_grad():
        labels = logits_of(models).mean(0).argmax(1) * (torch.arange(200) % 4 > 0)
    saved = Ensemble(models).calibrate([(X, labels)], false_alarm_rate=0.1)
    saved.save(tmp_path)
    again = load_members(tmp_path, network)
    loaded = ddu.load(tmp_path, again)
    assert isinstance(loaded, Ensemble)
    assert torch.equal(loaded.predict(X).epistemic, saved.predict(X).epistemic)
    np.testing.assert_array_equal(loaded.predict(X).verdict, saved.predict(X).verdict)
    for model, other in zip(models, again, strict=True):
        assert model is not other
        assert torch.equal(model.get_parameter("0.weight"), other.get_parameter("0.weight"))


def test_more_than_ten_members_keep_their_order(tmp_path):
    models = [network(seed) for seed in range(12)]
    Ensemble(models).save(tmp_path)
    for model, other in zip(models, load_members(tmp_path, network), strict=True):
        assert torch.equal(model.get_parameter("0.weight"), other.get_parameter("0.weight"))


def test_other_members_are_refused(models, tmp_path):
    Ensemble(models).save(tmp_path)
    with pytest.raises(ArtifactError, match="The detector was fitted to a ModuleList with the fingerprint"):
        ddu.load(tmp_path, models[::-1])
    with pytest.raises(ArtifactError, match="are not of this architecture"):
        load_members(tmp_path, lambda: nn.Linear(4, 3))


def test_members_are_not_loaded_from_another_detector(models, tmp_path):
    Softmax(models[0]).save(tmp_path)
    with pytest.raises(ArtifactError) as caught:
        load_members(tmp_path, network)
    assert str(caught.value) == f"{tmp_path} holds a detector 'softmax', which has no members to load."


@pytest.mark.parametrize("wrong", [lambda m: m[0], lambda m: m[:1], lambda m: [], lambda m: [m[0], "resnet18"]])
def test_what_is_no_ensemble_is_refused(models, wrong):
    with pytest.raises(InputError) as caught:
        Ensemble(wrong(models))
    assert str(caught.value) == "An ensemble needs a list of at least two torch.nn.Modules."


def test_an_unknown_score_is_refused(models):
    with pytest.raises(InputError) as caught:
        Ensemble(models, score="variance")
    assert str(caught.value) == (
        "The 'score' parameter of Ensemble must be 'mutual_information', 'predictive_entropy' or 'expected_entropy'. "
        "Got 'variance' instead."
    )
