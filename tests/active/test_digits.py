"""What active learning is for, on real digits: fewer labels, and none wasted on what no label can settle."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from ddu.active import ActiveLearner
from ddu.detectors import Ensemble, Softmax, find_method
from ddu.experiments.active_protocols import PROTOCOLS, draw_sets, read_source
from ddu.experiments.learning_curves import labels_to_reach
from ddu.models import create_model

pytestmark = pytest.mark.slow  # whole curves of three seeds

SEEDS = 3
BUDGET = 150

PLAIN = partial(create_model, "resffn2_64", in_features=64, spectral_norm=None)
SMOOTH = partial(create_model, "resffn2_64", in_features=64)

METHODS = {
    "random": {"model_factory": PLAIN, "detector": Softmax, "acquisition": "random"},
    "entropy": {"model_factory": PLAIN, "detector": Softmax},
    "density": {"model_factory": SMOOTH, "detector": find_method("density").make},
    "mutual information": {"model_factory": PLAIN, "detector": Ensemble, "members": 3},
}


def train(model, samples, validation, *, seed):
    """Sixty steps of Adam: a network this small learns in less time than a trainer takes to start."""
    inputs, labels = samples.__getitems__(range(len(samples)))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(60):
        rows = torch.randperm(len(inputs))[:64]
        optimiser.zero_grad()
        cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimiser.step()


def learner(method, seed, sets):
    return ActiveLearner(
        pool=sets.pool,
        labelled=sets.labelled,
        oracle=lambda indices: sets.pool.labels[indices],
        test=sets.test,
        trainer=train,
        per_round=10,
        seed=seed,
        **METHODS[method],
    )


@pytest.fixture(scope="module")
def labels_to_90():
    """Of each method, the mean number of labels over seeds; one that does not get there counts as one round more."""
    source = read_source(PROTOCOLS["digits"])

    def needed(method, seed):
        curve, sets = {}, draw_sets(PROTOCOLS["digits"], seed, source)
        for record in learner(method, seed, sets).run(until=BUDGET):
            curve[record.labels] = record.accuracy
            if labels_to_reach(curve, 0.9):
                break
        return labels_to_reach(curve, 0.9) or BUDGET + 10

    return {
        method: np.mean([needed(method, seed) for seed in range(SEEDS)])
        for method in ("random", "density", "mutual information")
    }


def test_density_reaches_90_percent_with_fewer_labels_than_random(labels_to_90):
    assert labels_to_90["density"] < labels_to_90["random"]


def test_mutual_information_reaches_90_percent_with_fewer_labels_than_random(labels_to_90):
    assert labels_to_90["mutual information"] < labels_to_90["random"]


def test_density_acquires_fewer_ambiguous_digits_than_entropy():
    shares, source = {}, read_source(PROTOCOLS["dirty_digits"])
    for method in ("density", "entropy"):
        found = []
        for seed in range(SEEDS):
            sets = draw_sets(PROTOCOLS["dirty_digits"], seed, source)
            acquired = [index for record in learner(method, seed, sets).run(until=70) for index in record.indices]
            assert len(acquired) == 50
            found.append(sets.ambiguous[acquired].mean())
        shares[method] = np.mean(found)
    # Nine in ten are ambiguous: entropy looks for them, density does not
    assert shares["density"] < 0.75 < 0.9 < shares["entropy"]
