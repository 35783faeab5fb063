"""One forward pass serves several taps: each gets what it would have read itself, bit for bit."""

import pytest
import torch
from torch import nn

import ddu
from ddu.detectors import Mahalanobis, Softmax
from ddu.errors import InputError, NotFittedError
from ddu.features import FeatureTap, LayersTap, LogitsTap, Place, SharedTap, extract

# The networks are not trained
pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")

HEAD, FIRST = Place("input", "4"), Place("output", "0")


@pytest.fixture
def model():
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))


def samples(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(60, 4, generator=generator), torch.arange(60) % 3


def count_runs(model):
    runs = []
    model.register_forward_hook(lambda *_: runs.append(1))
    return runs


def detectors(model):
    return [ddu.DDU(model), Mahalanobis(model, layers=["0", "4"]), Mahalanobis(model), Softmax(model)]


def test_every_detector_is_the_same_on_shared_features_bit_for_bit(model):
    shared = SharedTap(model, [detector.tap for detector in detectors(model)])
    train, new = (list(extract(shared, [samples(seed)])) for seed in range(2))
    for alone, served in zip(detectors(model), detectors(model), strict=True):
        alone.fit([samples()])
        served.fit([shared.batch_for(served.tap, batch) for batch in train])
        own, theirs = alone.evidence(samples(1)[0]), served.evidence(shared.batch_for(served.tap, new[0]))
        assert torch.equal(own.logits, theirs.logits)
        assert torch.equal(own.epistemic, theirs.epistemic)


def test_a_tap_gets_the_batch_that_it_reads_itself(model):
    x, _ = samples()
    taps = [FeatureTap(model), FeatureTap(model, model[0]), LayersTap(model, ["2", "0"]), LogitsTap(model)]
    shared = SharedTap(model, taps)
    batch = shared(x)
    for tap in taps:
        for one, other in zip(tap(x), shared.batch_for(tap, batch), strict=True):
            assert one is other is None or torch.equal(one, other)


def test_all_places_are_read_in_one_forward_pass(model):
    shared = SharedTap(model, [detector.tap for detector in detectors(model)])
    shared(samples()[0])
    runs = count_runs(model)
    batch = shared(samples()[0])
    assert len(runs) == 1
    assert list(batch.features) == [Place("output", "1"), HEAD, FIRST]  # the stages, then the layers


def test_places_keep_the_order_of_the_layers_and_are_hashable(model):
    tap = LayersTap(model, ["4", "0"])
    tap(samples()[0])
    assert tap.places == (HEAD, FIRST)
    assert len({tap.places, (HEAD, FIRST)}) == 1
    assert LogitsTap(model).places == ()


def test_places_are_known_after_the_first_call(model):
    with pytest.raises(NotFittedError, match="found on the first call"):
        _ = FeatureTap(model).places
    assert FeatureTap(model, {"kind": "output", "layer": "0"}).places == (FIRST,)


def test_a_tap_that_was_made_later_is_served_whether_it_asks_or_names_the_place(model):
    shared = SharedTap(model, [FeatureTap(model)])
    batch = shared(samples()[0])
    runs = count_runs(model)
    for features in (None, HEAD._asdict()):
        tap = FeatureTap(model, features)
        assert shared.serves(tap)
        assert torch.equal(shared.batch_for(tap, batch).features, batch.features[HEAD])
        assert tap.places == (HEAD,)
    assert not runs


def test_a_tap_of_another_place_is_not_served(model):
    shared = SharedTap(model, [FeatureTap(model)])
    batch = shared(samples()[0])
    stranger = FeatureTap(model, "0")
    assert not shared.serves(stranger)
    assert not shared.serves(FeatureTap(model, nn.Linear(4, 8)))
    assert not shared.serves(lambda x: x)
    with pytest.raises(InputError) as caught:
        shared.batch_for(stranger, batch)
    assert str(caught.value) == (
        "FeatureTap(Sequential, features='0') reads a place that was not extracted. "
        "There are [Place(kind='input', layer='4')]."
    )


def test_a_callable_is_no_place_to_share(model):
    with pytest.raises(InputError, match="which a callable is not"):
        SharedTap(model, [FeatureTap(model, lambda x: x)])


def test_labels_of_a_loader_reach_every_tap(model):
    tap = LayersTap(model, ["0", "2"])
    shared = SharedTap(model, [tap])
    (batch,) = extract(shared, [samples()])
    assert torch.equal(shared.batch_for(tap, batch).labels, samples()[1])
    assert tap.widths == [8, 6]
