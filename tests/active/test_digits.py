"""What active learning is for, on real digits: fewer labels, and none wasted on what no label can settle."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from ddu.active import ActiveLearner, labels_to_reach
from ddu.data import ambiguous_digits, digits, stratified_split
from ddu.detectors import DDU, Ensemble, Softmax
from ddu.models import create_model

pytestmark = pytest.mark.slow  # whole curves of three seeds

SEEDS = 3
BUDGET = 150
INITIAL = 20

PLAIN = partial(create_model, "resffn2_64", in_features=64, spectral_norm=None)
SMOOTH = partial(create_model, "resffn2_64", in_features=64)

METHODS = {
    "random": {"model_factory": PLAIN, "detector": Softmax, "acquisition": "random"},
    "entropy": {"model_factory": PLAIN, "detector": Softmax},
    "density": {"model_factory": SMOOTH, "detector": DDU},
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


def draw(seed):
    """Digits to begin with, for the pool and for the test, with as many of each class; and where to draw more from."""
    generator = torch.Generator().manual_seed(seed)
    everything = digits()
    share = INITIAL / len(everything)
    parts = stratified_split(everything.labels, [share, 0.6, 0.4 - share], generator)
    return [everything[part] for part in parts], generator


def vectors(images):
    return (images.flatten(1) - 0.305) / 0.376


def learner(method, seed, labelled, pool, test):
    return ActiveLearner(
        pool=vectors(pool.images),
        labelled=TensorDataset(vectors(labelled.images), labelled.labels),
        oracle=lambda indices: pool.labels[indices],
        test=TensorDataset(vectors(test.images), test.labels),
        trainer=train,
        per_round=10,
        seed=seed,
        **METHODS[method],
    )


@pytest.fixture(scope="module")
def labels_to_90():
    """Of each method, the mean number of labels over seeds; one that does not get there counts as one round more."""

    def needed(method, seed):
        (labelled, pool, test), _ = draw(seed)
        curve = {}
        for record in learner(method, seed, labelled, pool, test).run(until=BUDGET):
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
    shares = {}
    for method in ("density", "entropy"):
        found = []
        for seed in range(SEEDS):
            (labelled, pool, test), generator = draw(seed)
            clean = pool[torch.randperm(len(pool), generator=generator)[:100]]
            mixed = clean + ambiguous_digits(pool.images, pool.labels, 9 * len(clean), generator)
            learning = learner(method, seed, labelled, mixed, test)
            acquired = [index for record in learning.run(until=70) for index in record.indices]
            assert len(acquired) == 50
            found.append(np.mean([index >= len(clean) for index in acquired]))
        shares[method] = np.mean(found)
    # Nine in ten are ambiguous: entropy looks for them, density does not
    assert shares["density"] < 0.75 < 0.9 < shares["entropy"]
