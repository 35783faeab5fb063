"""SNGP: the posterior of the head, and the mean of its softmax."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import ddu
from ddu.detectors import SNGP
from ddu.errors import InputError, LayerError
from ddu.layers import GaussianProcessHead, mean_field_logits
from ddu.measures import entropy
from ddu.testing import check_detector
from ddu.testing.contract import blobs

from .training import make, trained

NEW = blobs(200, seed=1)[0]


def train(x, y):
    options = {"num_features": 128, "length_scale": 2.0}
    model = make("resffn2_16", in_features=4, num_classes=3, spectral_norm=2.0, head="sngp", head_options=options)
    return trained(model, x, y, epochs=6, lr=5e-3)


@pytest.fixture(scope="module")
def model():
    return train(*blobs(600, seed=0))


@pytest.mark.parametrize("method", ["monte_carlo", "mean_field"])
def test_it_keeps_to_the_contract(method):
    check_detector(lambda model: SNGP(model, method=method), train=train)


@pytest.mark.parametrize("ridge", [0.1, 1.0])
def test_the_variance_is_that_of_bayesian_regression_on_the_heads_features(model, ridge):
    x, y = blobs(600, seed=0)
    detector = SNGP(model, ridge=ridge).fit([(x[:100], y[:100]), (x[100:], y[100:])])
    with torch.no_grad():
        phi, new = (model.head.features(model.forward_features(part)).double().numpy() for part in (x, NEW))
    covariance = np.linalg.inv(phi.T @ phi + ridge * np.eye(128))
    np.testing.assert_allclose(detector.variance(NEW), np.diag(new @ covariance @ new.T), rtol=1e-4)


def test_the_score_is_the_entropy_of_the_mean_softmax_over_draws(model):
    detector = SNGP(model, samples=7, seed=3).fit([blobs(600, seed=0)])
    noise = torch.randn(7, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with torch.no_grad():
        mean = torch.stack(
            [
                torch.softmax(model(NEW).double() + detector.variance(NEW).double().sqrt()[:, None] * draw, dim=1)
                for draw in noise
            ]
        ).mean(0)
    prediction = detector.predict(NEW)
    np.testing.assert_allclose(prediction.probs, mean, rtol=1e-4)
    np.testing.assert_allclose(prediction.epistemic, torch.special.entr(mean).sum(1), rtol=1e-4)


def test_the_mean_field_scales_the_logits_down(model):
    detector = SNGP(model, method="mean_field", factor=2.0).fit([blobs(600, seed=0)])
    with torch.no_grad():
        logits = mean_field_logits(model(NEW), detector.variance(NEW), 2.0)
    np.testing.assert_allclose(detector.predict(NEW).epistemic, entropy(logits), rtol=1e-4)


def test_more_draws_say_the_same_more_exactly(model):
    few, more, most = (SNGP(model, samples=n).fit([blobs(600, seed=0)]).predict(NEW) for n in (10, 1000, 20_000))
    assert (more.epistemic - most.epistemic).abs().max() < 0.3 * (few.epistemic - most.epistemic).abs().max()


def test_more_data_leaves_less_open(model):
    x, y = blobs(600, seed=0)
    some, all_of_it = (SNGP(model).fit([(x[:n], y[:n])]).variance(NEW) for n in (100, 600))
    assert (all_of_it < some).all()
    assert float(SNGP(model).fit([(x, y)]).variance(100 * NEW).mean()) > 10 * float(all_of_it.mean())


def test_it_is_loaded_with_its_options(model, tmp_path):
    SNGP(model, method="mean_field", samples=5, seed=9, factor=1.5, ridge=0.5).fit([blobs(600, seed=0)]).save(tmp_path)
    loaded = ddu.load(tmp_path, model)
    assert isinstance(loaded, SNGP)
    assert loaded._options() == {"method": "mean_field", "samples": 5, "seed": 9, "factor": 1.5, "ridge": 0.5}


def test_a_head_on_its_own_is_a_network_too():
    x, model = blobs(300, seed=0)[0], GaussianProcessHead(4, 3, num_features=64, length_scale=3.0)
    prediction = SNGP(model).fit([(x, model(x).argmax(1))]).predict(x)
    assert (prediction.epistemic <= math.log(3) * (1 + 1e-6)).all()


def test_another_network_is_refused():
    with pytest.raises(LayerError) as caught:
        SNGP(nn.Linear(4, 3))
    assert str(caught.value) == (
        "This detector needs a network with one GaussianProcessHead, and the Linear has 0: train one that "
        'ddu.create_model(..., head="sngp") makes.'
    )


def test_an_unknown_method_is_refused(model):
    with pytest.raises(InputError) as caught:
        SNGP(model, method="laplace")
    assert str(caught.value) == (
        "The 'method' parameter of SNGP must be 'monte_carlo' or 'mean_field'. Got 'laplace' instead."
    )
