"""The loop: what it does in a round, and that nothing but seed, round and labels decides it."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from ddu.active import ActiveLearner, Choice, Diverse, ExcludeOutliers, PowerSampling, Top, by_recipe
from ddu.data import ArrayDataset, DataInfo
from ddu.detectors import DDU, Ensemble, Mahalanobis, Softmax
from ddu.errors import ArtifactError, FewSamplesWarning, InputError, LabelError
from ddu.training import RECIPES, CrossEntropy, Recipe

from .conftest import make_network, train_briefly


def outcome(records):
    return [(record.round, record.labels, record.accuracy, record.indices) for record in records]


def test_a_run_measures_at_every_size_and_ends_without_acquiring(blobs):
    learner = blobs.learner(per_round=5)
    records = list(learner.run(until=33))
    assert [record.labels for record in records] == [16, 21, 26, 31, 33]
    assert [len(record.indices) for record in records] == [5, 5, 5, 2, 0]
    assert [record.round for record in records] == [0, 1, 2, 3, 4]
    assert records == learner.records
    acquired = np.concatenate([record.indices for record in records]).astype(int)
    assert len(set(acquired)) == 17
    assert set(learner.unlabelled()) == set(range(120)) - set(acquired)
    assert 0.5 < records[0].accuracy < records[-1].accuracy <= 1


def test_the_accuracy_is_that_of_the_detector_on_the_test_set(blobs):
    learner = blobs.learner(batch_size=33)
    inputs, labels = blobs.test.tensors
    assert learner.measure() == float((learner.detector.predict(inputs).label == labels).double().mean())
    assert blobs.learner(test=None).step().accuracy is None


def test_a_proposal_has_indices_scores_and_both_uncertainties_the_best_first(blobs):
    learner = blobs.learner()
    learner.teach([4, 8], blobs.oracle(np.array([4, 8])))
    proposal = learner.propose(6)
    prediction = learner.detector.predict(blobs.pool)
    epistemic = prediction.epistemic.clone()
    epistemic[[4, 8]] = -torch.inf
    assert proposal.indices.tolist() == epistemic.argsort(descending=True)[:6].tolist()
    assert proposal.scores == pytest.approx(epistemic[proposal.indices].numpy())
    assert proposal.epistemic == pytest.approx(proposal.scores)
    assert proposal.aleatoric == pytest.approx(prediction.aleatoric[proposal.indices].numpy(), rel=1e-4, abs=1e-6)
    assert proposal.predicted.tolist() == prediction.label[proposal.indices].tolist()
    assert len(proposal) == 6


def test_asking_again_gives_the_same_until_something_is_taught(blobs):
    learner = blobs.learner(acquisition="power", candidates=40)
    first, second = learner.propose(), learner.propose()
    assert np.array_equal(first.indices, second.indices)
    learner.teach(first.indices, blobs.oracle(first.indices))
    assert not set(first.indices) & set(learner.propose().indices)


def test_labels_may_be_taught_by_hand_without_oracle_or_initial_samples(blobs):
    learner = blobs.learner(labelled=None, oracle=None)
    with pytest.raises(InputError, match=r"^There are no labels to learn from: give labelled=, or teach some samples "):
        learner.propose()
    learner.teach(list(range(16)), [label % 4 for label in range(16)])
    assert learner.num_labels == 16
    assert learner.round == 1
    assert learner.propose(3).indices.min() >= 16
    with pytest.raises(InputError, match=r"^There is no oracle to ask: give oracle=, or use propose and teach\.$"):
        learner.step()


def test_a_pool_that_runs_out_ends_the_run(blobs):
    learner = blobs.learner(pool=blobs.pool[:12])
    assert [record.labels for record in learner.run(until=1000)] == [16, 21, 26, 28]
    with pytest.raises(InputError, match=r"^All 12 samples of the pool are labelled: there is nothing to propose\.$"):
        learner.propose()


def test_candidates_are_a_new_draw_in_every_round(blobs):
    learner = blobs.learner(candidates=30, acquisition=Top("epistemic"))
    chosen = [learner.propose(30).indices]
    learner.teach(chosen[0][:1], blobs.oracle(chosen[0][:1]))
    chosen.append(learner.propose(1000).indices)
    assert [len(set(one)) for one in chosen] == [30, 30]
    assert set(chosen[0]) != set(chosen[1])


def test_members_are_an_ensemble_of_different_networks(blobs):
    learner = blobs.learner(detector=Ensemble, members=3)
    members = list(learner.detector.model)
    assert len(members) == 3
    assert len({float(member[0].weight.detach().sum()) for member in members}) == 3
    record = learner.step()
    assert len(record.indices) == 5


def make_mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))


def ensemble_of(**changes):
    recipe = by_recipe("quick", epochs=3, lr=0.02, batch_size=8, **changes)
    return {"detector": Ensemble, "members": 3, "model_factory": make_mlp, "trainer": recipe}


def test_members_of_a_recipe_are_trained_together_to_what_each_is_alone(blobs):
    stages, one_by_one = [], []
    together = blobs.learner(**ensemble_of(), on_stage=stages.append)
    alone = blobs.learner(**ensemble_of(together=False), on_stage=one_by_one.append)
    assert (together.trains_together, alone.trains_together) == (True, False)
    for one, other in zip(together.detector.model, alone.detector.model, strict=True):
        torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-6)
    assert stages == ["training 3 networks on 16 labels"]
    assert one_by_one == [f"training network {number} of 3 on 16 labels" for number in (1, 2, 3)]


def test_a_learner_does_not_mix_members_trained_together_and_alone(blobs, tmp_path):
    options = ensemble_of()
    whole = list(blobs.learner(**options).run(until=31))
    stopped = blobs.learner(**options)
    stopped.step()
    stopped.save(tmp_path)
    with pytest.raises(InputError, match=r"has trains_together=True, and this one has trains_together=None: use the"):
        blobs.learner(**ensemble_of(together=False)).resume(tmp_path)
    assert outcome(blobs.learner(**options).resume(tmp_path).run(until=31)) == outcome(whole[1:])


def test_one_network_an_own_trainer_and_an_own_objective_are_never_trained_together(blobs):
    assert not blobs.learner(**ensemble_of() | {"members": 1}).trains_together
    assert not blobs.learner(detector=Ensemble, members=3).trains_together
    assert not blobs.learner(**ensemble_of(objective=CrossEntropy)).trains_together
    message = r"^Members are trained together by cross-entropy: leave out objective= or together=True\.$"
    with pytest.raises(InputError, match=message):
        by_recipe(objective=CrossEntropy, together=True)


def test_samples_may_come_as_batches_or_one_by_one(blobs):
    info = DataInfo("blobs", (6,), tuple("abcd"))
    pool = ArrayDataset(blobs.pool.numpy(), blobs.labels.numpy(), info)
    inputs, labels = (tensor.numpy() for tensor in blobs.labelled.tensors)
    batches = blobs.learner(pool=pool, labelled=ArrayDataset(inputs, labels, info))
    one_by_one = blobs.learner(pool=TensorDataset(blobs.pool, blobs.labels), labelled=list(blobs.labelled))
    assert outcome(batches.run(until=26)) == outcome(one_by_one.run(until=26)) == outcome(blobs.learner().run(until=26))


# Randomness


def test_seed_and_round_decide_everything_and_torchs_own_state_is_left_alone(blobs):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first = outcome(blobs.learner(seed=3).run(until=26))
    assert torch.equal(torch.rand(3), expected)
    assert outcome(blobs.learner(seed=3).run(until=26)) == first
    assert outcome(blobs.learner(seed=4).run(until=26)) != first


def test_every_round_starts_from_fresh_weights(blobs):
    untrained = []

    def remember(model, samples, validation, *, seed):
        untrained.append(model[0].weight.detach().clone())

    learner = blobs.learner(trainer=remember)
    list(learner.run(until=26))
    assert len(untrained) == 3
    assert not any(torch.equal(untrained[i], untrained[j]) for i, j in ((0, 1), (1, 2), (0, 2)))


def test_equal_scores_are_broken_by_the_seed(blobs):
    class Indifferent(Softmax):
        def predict(self, x, **options):
            prediction = super().predict(x, **options)
            prediction.epistemic.fill_(1.0)
            return prediction

    chosen = [tuple(blobs.learner(detector=Indifferent, seed=seed).propose(5).indices) for seed in range(4)]
    assert len(set(chosen)) == 4
    assert all(one != tuple(range(5)) for one in chosen)


# Resuming

VARIANTS = {
    "density": {},
    "a changing choice of candidates": {"candidates": 50},
    "power sampling": {"acquisition": PowerSampling()},
    "an updated density": {"acquisition": Diverse(), "retrain_every": 3},
    "without outliers": {"acquisition": ExcludeOutliers(Top(), quantile=0.8)},
    "an ensemble": {"detector": Ensemble, "members": 2},
    "random": {"acquisition": "random"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_learner_that_was_stopped_has_the_same_future(variant, blobs, tmp_path):
    whole = list(blobs.learner(**VARIANTS[variant]).run(until=46))
    stopped = blobs.learner(**VARIANTS[variant])
    for _ in range(4):
        stopped.step()
        stopped.save(tmp_path)
    stopped.step()  # not saved: as if it had been killed
    resumed = blobs.learner(**VARIANTS[variant]).resume(tmp_path)
    assert resumed.num_labels == 36
    assert outcome(resumed.records) == outcome(whole[:4])
    assert outcome(resumed.run(until=46)) == outcome(whole[4:])
    assert outcome(resumed.records) == outcome(whole)


class OwnAcquisition:
    """The first ones."""

    def choose(self, candidates, k, random):
        return Choice(np.arange(k), np.zeros(k))


def test_an_acquisition_of_ones_own_is_resumed(blobs, tmp_path):
    learner = blobs.learner(acquisition=ExcludeOutliers(OwnAcquisition(), quantile=0.9))
    learner.step()
    learner.save(tmp_path)
    again = blobs.learner(acquisition=ExcludeOutliers(OwnAcquisition(), quantile=0.9)).resume(tmp_path)
    assert again.propose(3).indices.tolist() == learner.propose(3).indices.tolist()


def test_labels_are_not_resumed_with_another_pool(blobs, tmp_path):
    learner = blobs.learner()
    learner.teach([7], [1])
    learner.save(tmp_path)
    with pytest.raises(InputError, match=r"has pool=120 samples \(\w+\), and this one has pool=120 samples"):
        blobs.learner(pool=blobs.pool.flip(0)).resume(tmp_path)


def test_a_run_that_is_continued_after_its_end_has_every_round_once(blobs, tmp_path):
    learner = blobs.learner()
    list(learner.run(21))
    learner.save(tmp_path)
    again = blobs.learner().resume(tmp_path)
    list(again.run(26))
    assert [(record.round, record.labels) for record in again.records] == [(0, 16), (1, 21), (2, 26)]


def test_settings_that_the_learner_does_not_know_must_be_the_same_too(blobs, tmp_path):
    blobs.learner(settings={"recipe": {"epochs": 3, "milestones": (1, 2)}}).save(tmp_path)
    blobs.learner(settings={"recipe": {"epochs": 3, "milestones": (1, 2)}}).resume(tmp_path)
    with pytest.raises(InputError, match=r" has epochs=3, and this one has epochs=4: use the same, or another folder"):
        blobs.learner(settings={"recipe": {"epochs": 4, "milestones": (1, 2)}}).resume(tmp_path)


def test_resuming_from_nothing_is_a_beginning(blobs, tmp_path):
    assert blobs.learner().resume(tmp_path / "nowhere").round == 0


def test_another_learner_and_a_damaged_file_are_refused(blobs, tmp_path):
    learner = blobs.learner()
    learner.step()
    learner.save(tmp_path)
    with pytest.raises(
        InputError,
        match=r"^The learner in \S+ has seed=0, and this one has seed=1: use the same, or another folder\.$",
    ):
        blobs.learner(seed=1).resume(tmp_path)
    with pytest.raises(InputError, match=r"acquisition=Top\(score='epistemic'\), and this one has acquisition=Random"):
        blobs.learner(acquisition="random").resume(tmp_path)
    path = tmp_path / "learner.json"
    text = path.read_text()
    path.write_text(text[:-40])
    damaged = r"learner\.json is damaged \(.*\): choose another folder for this learner\.$"
    with pytest.raises(ArtifactError, match=damaged):
        blobs.learner().resume(tmp_path)
    path.write_text(json.dumps({name: value for name, value in json.loads(text).items() if name != "rounds"}))
    with pytest.raises(ArtifactError, match=damaged):
        blobs.learner().resume(tmp_path)
    path.write_text(json.dumps(json.loads(text) | {"version": 2}))
    with pytest.raises(ArtifactError, match=r"learner\.json is not the state of an active learner that this ddu can "):
        blobs.learner().resume(tmp_path)


# A density that is updated instead of fitted again


def one_density(model):
    return DDU(model, features=None, view="raw", energy=False)


@pytest.mark.parametrize("detector", [one_density, DDU])
def test_between_trainings_the_moments_are_updated_to_what_a_refit_gives(blobs, detector):
    learner = blobs.learner(retrain_every=4, detector=detector)
    networks = []
    for _ in range(3):
        learner.step()
        networks.append(learner.detector.model)
    assert networks[0] is networks[1] is networks[2]
    labelled = [
        blobs.labelled.tensors,
        *((blobs.pool[[*r.indices]], blobs.labels[[*r.indices]]) for r in learner.records),
    ]
    inputs, labels = (torch.cat(column) for column in zip(*labelled, strict=True))
    assert len(labels) == learner.num_labels == 31
    with pytest.warns(FewSamplesWarning):
        refitted = detector(networks[0]).fit([(inputs, labels)])
    updated = learner.detector.score
    for one, other in zip(refitted.score.densities, updated.densities, strict=True):
        for name, tensor in one.state_tensors().items():
            torch.testing.assert_close(other.state_tensors()[name], tensor, rtol=1e-7, atol=1e-9)
    # What standardises the parts of a sum is that of the samples before
    refitted.score.centre, refitted.score.scale = updated.centre, updated.scale
    expected = refitted.predict(blobs.pool).epistemic
    torch.testing.assert_close(learner.detector.predict(blobs.pool).epistemic, expected, rtol=1e-4, atol=1e-4)
    learner.step()
    assert learner.detector.model is not networks[0]


def test_between_trainings_the_accuracy_stands_and_the_test_set_is_not_read_again(blobs):
    learner = blobs.learner(retrain_every=2)
    accuracies = [record.accuracy for record in learner.run(until=31)]
    assert accuracies[0] == accuracies[1]
    assert accuracies[2] == accuracies[3]


def test_other_detectors_are_fitted_again_between_trainings(blobs):
    learner = blobs.learner(detector=Mahalanobis, retrain_every=2)
    before = learner.detector
    scores = before.predict(blobs.pool).epistemic
    learner.step()
    assert learner.detector is before
    assert not torch.equal(learner.detector.predict(blobs.pool).epistemic, scores)


# The best epoch


class Ruinous(CrossEntropy):
    """Sets all weights to zero in every epoch after the second."""

    def __init__(self):
        super().__init__()
        self.epoch = 0

    def on_epoch_start(self, model):
        self.epoch += 1

    def after_step(self, model, inputs, labels):
        if self.epoch > 2:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()


def test_the_best_validation_model_is_the_best_epochs_copy(blobs):
    recipe = Recipe(epochs=4, batch_size=8, optimiser="adam", lr=0.01, schedule="constant", select="best")
    options = {"validation": blobs.test, "detector": Softmax}
    best = blobs.learner(trainer=by_recipe(recipe, objective=Ruinous), **options)
    assert best.measure() > 0.5
    assert all(float(parameter.detach().abs().max()) > 0 for parameter in best.detector.model.parameters())
    last = blobs.learner(trainer=by_recipe(recipe, objective=Ruinous, select="last"), **options)
    assert all(float(parameter.detach().abs().max()) == 0 for parameter in last.detector.model.parameters())


def test_the_default_is_the_recipe_for_active_learning(blobs, monkeypatch):
    asked = {}
    monkeypatch.setattr("ddu.active.learner.fit", lambda *arguments, **options: asked.update(options))
    learner = ActiveLearner(make_network, Softmax, blobs.pool, blobs.labelled)
    learner.propose(1)
    assert asked["recipe"] == RECIPES["active_learning"]


# Mistakes


@pytest.mark.parametrize(
    ("indices", "labels", "message"),
    [
        ([1, 2], [0], r"^teach takes one label for each index, at least one\. Got indices of shape \(2,\) and labels "),
        ([], [], r"^teach takes one label for each index, at least one\. Got indices of shape \(0,\) and labels of "),
        ([1, 120], [0, 0], r"^There is no index 120 in a pool of 120 samples\.$"),
        ([1, 1], [0, 0], r"^Index 1 would be taught twice: it has a label already, which `correct` changes\.$"),
        ([7], [0], r"^Index 7 would be taught twice: it has a label already, which `correct` changes\.$"),
        ([1, 2], [3, 4], r"^There is no class 4: the network has 4, from 0\.$"),
        ([-1], [0], r"^The indices must be integers from 0\. Got \[-1\] \(int64\)\.$"),
        ([1], [0.5], r"^The labels must be integers from 0\. Got \[0\.5\] \(float64\)\.$"),
    ],
)
def test_what_cannot_be_taught_is_said_and_changes_nothing(indices, labels, message, blobs):
    learner = blobs.learner()
    learner.teach([7], [1])
    with pytest.raises(LabelError, match=message):
        learner.teach(indices, labels)
    assert learner.num_labels == 17


def test_a_corrected_label_is_as_good_as_the_right_one(blobs):
    learner, right = blobs.learner(), blobs.learner()
    learner.teach([7, 9], [1, 2])
    learner.teach([4], [0])
    mistaken = learner.propose(5)
    learner.correct([9], [3])
    right.teach([7, 9], [1, 3])
    right.teach([4], [0])
    assert learner.num_labels == right.num_labels
    assert learner.propose(5).scores == pytest.approx(right.propose(5).scores, rel=1e-6)
    assert not np.array_equal(mistaken.scores, right.propose(5).scores)
    with pytest.raises(LabelError, match=r"^Index 3 has no label to correct: teach it\.$"):
        learner.correct([9, 3], [0, 0])
    with pytest.raises(LabelError, match=r"^There is no class 9: the network has 4, from 0\.$"):
        learner.correct([9], [9])


@pytest.mark.parametrize("k", [0, -3, 2.5])
def test_the_number_proposed_is_a_whole_one(k, blobs):
    with pytest.raises(
        InputError, match=rf"^The number of samples to propose must be an integer of at least 1\. Got {k} "
    ):
        blobs.learner().propose(k)


def test_numbers_of_numpy_are_numbers(blobs):
    assert len(blobs.learner(seed=np.int64(3), per_round=np.int64(2)).propose(np.int64(2))) == 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"members": 0}, "The 'members' parameter of ActiveLearner must be an integer of at least 1. Got 0 instead."),
        (
            {"candidates": 2.5},
            "The 'candidates' parameter of ActiveLearner must be an integer of at least 1. Got 2.5 instead.",
        ),
        ({"seed": -1}, "The 'seed' parameter of ActiveLearner must be an integer of at least 0. Got -1 instead."),
    ],
)
def test_a_wrong_parameter_is_named(option, message, blobs):
    with pytest.raises(InputError) as error:
        blobs.learner(**option)
    assert str(error.value) == message


def test_networks_are_handed_over_in_evaluation_mode(blobs):
    assert not blobs.learner().detector.model.training


# What a trainer is shown


@pytest.fixture
def held_out(blobs):
    """Validation samples that are not those of the test."""
    return TensorDataset(*blobs.draw(40, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("members", [1, 2])
def test_a_trainer_is_shown_the_validation_set_and_never_the_test_set(blobs, held_out, members):
    seen = []

    def watch(model, samples, validation, *, seed):
        train_briefly(model, samples, validation, seed=seed)
        seen.append(validation)

    detector = Ensemble if members > 1 else Softmax
    learner = blobs.learner(trainer=watch, validation=held_out, detector=detector, members=members)
    learner.step()
    learner.measure()
    assert len(seen) == 2 * members  # in two rounds
    assert all(validation is held_out for validation in seen)
    seen.clear()
    blobs.learner(trainer=watch, validation=None).propose(1)
    assert seen == [None]


def test_a_recipe_validates_on_the_validation_set_and_trains_on_the_labelled_one(blobs, held_out, monkeypatch):
    shown = []
    monkeypatch.setattr("ddu.active.learner.fit", lambda model, *samples, **options: shown.extend(samples))
    learner = blobs.learner(trainer=by_recipe(), validation=held_out, detector=Softmax)
    learner.propose(1)
    train, validation = shown
    assert validation is held_out
    assert torch.equal(train.__getitems__(range(len(train)))[0], blobs.labelled.tensors[0])
