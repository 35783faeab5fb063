"""On handwritten digits every detector trains, fits, saves, loads and scores; the unknown are digits in pieces."""

from functools import cache

import pytest
import torch
from sklearn.datasets import load_digits

import ddu
from ddu.detectors import DUQ, SNGP, Energy, Ensemble, Mahalanobis, Softmax
from ddu.metrics import auroc
from ddu.training.objectives import DUQObjective

from .training import make, trained

IMAGES, LABELS = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
ORDER = torch.randperm(len(IMAGES), generator=torch.Generator().manual_seed(0))
X, Y = IMAGES[ORDER].float() / 16, LABELS[ORDER]
TRAIN, HELD_OUT, NEW = ((X[part], Y[part]) for part in (slice(1000), slice(1000, 1400), slice(1400, None)))


def shuffled_pixels():
    """The same pixels in an order that is another for each image."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([image[torch.randperm(64, generator=generator)] for image in NEW[0]])


def resffn(seed=0, **options):
    return make("resffn2_64", seed, in_features=64, num_classes=10, **options)


@cache
def softmax_network(seed=0):
    return trained(resffn(seed), *TRAIN, epochs=8, lr=3e-3, seed=seed)


def members():
    return [softmax_network(seed) for seed in range(3)]


@cache
def sngp_network():
    model = resffn(head="sngp", head_options={"length_scale": 3.0, "num_features": 512})
    return trained(model, *TRAIN, epochs=8, lr=3e-3)


@cache
def duq_network():
    """The notes' settings for CIFAR-10, at the pace of a small set."""
    options = {"embedding_size": 32, "momentum": 0.99}
    model = resffn(spectral_norm=None, head="duq", head_options=options)
    return trained(model, *TRAIN, objective=DUQObjective(penalty=0.5), epochs=20, lr=0.05, sgd=True)


@pytest.mark.parametrize(
    ("make_detector", "network", "least"),
    [
        pytest.param(Softmax, softmax_network, 0.8, id="softmax"),
        pytest.param(lambda model: Softmax(model, score="confidence"), softmax_network, 0.8, id="confidence"),
        pytest.param(Energy, softmax_network, 0.8, id="energy"),
        pytest.param(Ensemble, members, 0.9, id="ensemble"),
        pytest.param(Mahalanobis, softmax_network, 0.95, id="mahalanobis"),
        pytest.param(lambda model: Mahalanobis(model, relative=True), softmax_network, 0.9, id="relative"),
        pytest.param(lambda model: Mahalanobis(model, layers=["first", "head"]), softmax_network, 0.95, id="layers"),
        pytest.param(ddu.DDU, softmax_network, 0.95, id="ddu"),
        pytest.param(SNGP, sngp_network, 0.9, id="sngp"),
        pytest.param(DUQ, duq_network, 0.9, id="duq"),
    ],
)
def test_every_detector_lives_its_whole_life(tmp_path, make_detector, network, least):
    model = network()
    detector = make_detector(model).fit([TRAIN]).calibrate([HELD_OUT], false_alarm_rate=0.05)
    detector.save(tmp_path)
    loaded = ddu.load(tmp_path, model)
    known, unknown = loaded.predict(NEW[0]), loaded.predict(shuffled_pixels())
    assert torch.equal(known.epistemic, detector.predict(NEW[0]).epistemic)
    assert float((known.label == NEW[1]).double().mean()) > 0.93
    assert auroc(known.epistemic, unknown.epistemic) > least
    flagged = float((known.verdict == ddu.Verdict.OUT_OF_DISTRIBUTION).mean())
    assert flagged < 0.05 + 4 * (0.05 * 0.95 * (1 / 400 + 1 / 397)) ** 0.5
