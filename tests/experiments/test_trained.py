"""A set runs through a network once, whatever detectors ask for, and its features are let go."""

import gc
import weakref

import pytest
import torch

from ddu import data
from ddu.detectors import DDU, Energy, Mahalanobis, Softmax, join_evidence
from ddu.experiments.trained import Members, TrainedNetwork
from ddu.features import FeatureBatch
from ddu.models import Classifier
from ddu.runs import Run, RunSpec, train_run
from ddu.training import RECIPES


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    recipe = RECIPES["two_moons"].with_changes(epochs=1)
    spec = RunSpec("resffn2_16", "two_moons", recipe, method=None)
    found = train_run(spec, tmp_path_factory.mktemp("runs") / "moons")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def sets(run):
    return run.load_data()._asdict()


def counted(network: TrainedNetwork) -> list[int]:
    """The sizes of the batches that run through the network from now on."""
    seen: list[int] = []
    network.model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    return seen


def layers(model: Classifier) -> list[str]:
    """Two layers of the network, and not its last."""
    return [name for name, module in model.named_modules() if isinstance(module, torch.nn.LeakyReLU)][:2]


def detectors(model: Classifier):
    first, second = layers(model)
    return {
        "softmax": Softmax(model),
        "energy": Energy(model),
        "ddu": DDU(model),
        "ddu of an early layer": DDU(model, features=first),
        "mahalanobis of two layers": Mahalanobis(model, layers=[first, second]),
        "mahalanobis": Mahalanobis(model),
    }


@pytest.mark.parametrize("first", ["softmax", "ddu", "mahalanobis of two layers"])
def test_a_set_runs_through_the_network_once_whichever_detector_asks_first(run, sets, first):
    network = TrainedNetwork(run, sets)
    all_of_them = detectors(network.model)
    for detector in all_of_them.values():
        network.expect(detector)
    seen = counted(network)
    for name in ("train", "validation", "test"):
        for detector in (all_of_them[first], *all_of_them.values()):
            list(network.batches(name, detector))
        network.forget(name)
        assert sum(seen) == len(sets[name])
        assert network.extraction_seconds(name) > 0
        seen.clear()


def test_what_was_not_expected_is_extracted_when_it_is_asked_for(run, sets):
    network = TrainedNetwork(run, sets)
    all_of_them = detectors(network.model)
    network.expect(all_of_them["ddu"])
    network.batches("test", all_of_them["ddu"])
    seen = counted(network)
    late = network.batches("test", all_of_them["ddu of an early layer"])
    assert sum(size for size in seen if size > 1) == len(sets["test"])  # single inputs find the layer
    direct = [all_of_them["ddu of an early layer"].tap(inputs) for inputs, _ in data.loader(sets["test"])]
    assert torch.equal(torch.cat([batch.features for batch in late]), torch.cat([batch.features for batch in direct]))


@pytest.mark.parametrize("name", ["softmax", "energy", "ddu", "ddu of an early layer", "mahalanobis of two layers"])
def test_each_detector_says_of_the_cache_what_it_says_of_the_inputs(run, sets, name):
    network = TrainedNetwork(run, sets)
    all_of_them = detectors(network.model)
    for detector in all_of_them.values():
        network.expect(detector)
    cached = all_of_them[name].fit(network.batches("train", all_of_them[name]), progress=False)
    found = [cached.evidence(batch) for batch in network.batches("test", cached)]
    alone = detectors(run.load_model())[name].fit(data.loader(sets["train"]), progress=False)
    expected = [alone.evidence(inputs) for inputs, _ in data.loader(sets["test"])]
    for ours, theirs in zip(join_evidence(found), join_evidence(expected), strict=True):
        torch.testing.assert_close(ours, theirs)
    labels = torch.cat([batch.labels for batch in network.batches("test", cached)])
    assert labels.tolist() == sets["test"].labels.tolist()


def test_a_detector_that_has_to_see_the_inputs_gets_them(run, sets):
    network = TrainedNetwork(run, sets)
    moved = Mahalanobis(network.model, perturbation=0.01)
    network.expect(moved)
    inputs, labels = next(iter(network.batches("test", moved)))
    assert not isinstance(inputs, FeatureBatch)
    assert inputs.shape == (512, 2)
    assert labels.tolist() == sets["test"].labels[:512].tolist()
    assert network.extraction_seconds("test", moved) == 0


def test_features_of_a_set_are_let_go_and_its_logits_are_kept(run, sets):
    network = TrainedNetwork(run, sets)
    detector = DDU(network.model)
    network.expect(detector)
    kept = network.batches("validation", detector)
    batches = network.batches("test", detector)
    features = [weakref.ref(layer) for batch in network._features["test"] for layer in batch.features.values()]
    del batches
    network.forget("test")
    gc.collect()
    assert features
    assert all(one() is None for one in features)
    assert network._features.keys() == {"validation"}
    assert len(kept) == 1
    assert torch.cat([batch.logits for batch in network.logits("test")]).shape == (len(sets["test"]), 2)
    network.forget("never seen")


def test_members_are_joined_from_logits_that_were_extracted_before(run, sets):
    networks = [TrainedNetwork(run, sets) for _ in range(2)]
    networks[0].logits("test")
    seen = [counted(network) for network in networks]
    members = Members(networks)
    batch = members.batches("test", Softmax(networks[0].model))[0]
    assert [sum(one) for one in seen] == [0, len(sets["test"])]
    torch.testing.assert_close(batch.logits.softmax(1), networks[0].logits("test")[0].logits.softmax(1))
    assert members.training_seconds == 2 * run.metrics["seconds"]
