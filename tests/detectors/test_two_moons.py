"""On the two moons every detector trains, fits, saves, loads and scores, and those that know distance know it.

The networks are the notes' and the paper's: ResFFN-4-128, for DUQ with SGD, all at a faster pace on half the points.
"""

from functools import cache

import pytest
import torch
from sklearn.datasets import make_moons

import ddu
from ddu.detectors import DUQ, SNGP, Energy, Ensemble, Mahalanobis, Softmax
from ddu.metrics import auroc
from ddu.training.objectives import DUQObjective

from .training import make, trained


def moons(samples, seed):
    x, y = make_moons(samples, noise=0.1, random_state=seed)
    return torch.from_numpy(x).float(), torch.from_numpy(y)


TRAIN, HELD_OUT, NEW = moons(1000, 0), moons(400, 1), moons(600, 2)


def far(distance, samples=600):
    """Points of the surrounding plane that are further than this from all training data."""
    points = torch.rand(20 * samples, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([7.0, 6.0])
    points -= torch.tensor([3.0, 2.75])
    return points[torch.cdist(points, TRAIN[0]).amin(1) > distance][:samples]


def resffn(seed=0, **options):
    return make("resffn4_128", seed, in_features=2, num_classes=2, **options)


@cache
def softmax_network(seed=0):
    return trained(resffn(seed, spectral_norm=3.0), *TRAIN, epochs=3, lr=3e-3, seed=seed)


def members():
    return [softmax_network(seed) for seed in range(3)]


@cache
def sngp_network():
    model = resffn(spectral_norm=0.95, head="sngp", head_options={"length_scale": 1.0})
    return trained(model, *TRAIN, epochs=5, lr=3e-3)


@cache
def duq_network():
    options = {"embedding_size": 10, "length_scale": 0.3, "momentum": 0.99, "initial_count": 20.0}
    model = resffn(spectral_norm=None, sensitive=False, head="duq", head_options=options)
    return trained(model, *TRAIN, objective=DUQObjective(penalty=1.0), epochs=15, lr=0.02, sgd=True)


@pytest.mark.parametrize(
    ("make_detector", "network", "least"),
    [
        pytest.param(Softmax, softmax_network, None, id="softmax"),
        pytest.param(Energy, softmax_network, None, id="energy"),
        pytest.param(Ensemble, members, None, id="ensemble"),
        pytest.param(Mahalanobis, softmax_network, 0.9, id="mahalanobis"),
        pytest.param(ddu.DDU, softmax_network, 0.95, id="ddu"),
        pytest.param(SNGP, sngp_network, 0.99, id="sngp"),
        pytest.param(lambda model: SNGP(model, method="mean_field"), sngp_network, 0.99, id="sngp by mean field"),
        pytest.param(DUQ, duq_network, 0.99, id="duq"),
    ],
)
@pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning")  # some get all held-out points right
def test_every_detector_lives_its_whole_life(tmp_path, make_detector, network, least):
    model = network()
    detector = make_detector(model).fit([TRAIN]).calibrate([HELD_OUT], false_alarm_rate=0.05)
    detector.save(tmp_path)
    loaded = ddu.load(tmp_path, model)
    known, unknown = loaded.predict(NEW[0]), loaded.predict(far(0.5))
    assert torch.equal(known.epistemic, detector.predict(NEW[0]).epistemic)
    assert float((known.label == NEW[1]).double().mean()) > 0.97
    if least is not None:
        assert auroc(known.epistemic, unknown.epistemic) > least
