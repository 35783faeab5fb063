"""DUQ: the kernel of the nearest centroid."""

import numpy as np
import pytest
import torch
from torch import nn

from ddu.detectors import DUQ
from ddu.errors import LayerError
from ddu.testing import check_detector
from ddu.testing.contract import blobs
from ddu.training.objectives import DUQObjective

from .training import make, trained

NEW = blobs(200, seed=1)[0]


def train(x, y):
    options = {"embedding_size": 8, "length_scale": 0.3, "momentum": 0.9}
    model = make("resffn2_16", in_features=4, num_classes=3, spectral_norm=None, head="duq", head_options=options)
    return trained(model, x, y, objective=DUQObjective(0.1), epochs=10, lr=5e-3)


@pytest.fixture(scope="module")
def model():
    return train(*blobs(600, seed=0))


def test_it_keeps_to_the_contract():
    check_detector(DUQ, train=train)


def test_probabilities_are_normalised_kernels_and_the_score_is_the_nearest(model):
    with torch.no_grad():
        kernels = model(NEW).double().exp()
    prediction = DUQ(model).predict(NEW)
    np.testing.assert_allclose(prediction.probs, kernels / kernels.sum(1, keepdim=True), rtol=1e-4)
    np.testing.assert_allclose(prediction.epistemic, -kernels.amax(1).log(), rtol=1e-4, atol=1e-6)


def test_it_ranks_like_the_kernel_and_goes_on_where_that_underflows(model):
    away = torch.linspace(1, 1e4, 50)[:, None] * torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    scores = DUQ(model).predict(away).epistemic
    assert (model(away[-20:]).exp() == 0).all()
    assert (scores[-20:].diff() > 0).all()


def test_another_network_is_refused():
    with pytest.raises(LayerError) as caught:
        DUQ(nn.Linear(4, 3))
    assert str(caught.value) == (
        "This detector needs a network with one RBFHead, and the Linear has 0: train one that "
        'ddu.create_model(..., head="duq") makes.'
    )
