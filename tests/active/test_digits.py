"""What active learning is for, on real digits: fewer labels, and none wasted on what no label can settle."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from ddu.active import ActiveLearner, labels_to_reach
from ddu.data import mix_pairs, stratified_split
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
    pixels, labels = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    inputs = (pixels.float() / 16 - 0.305) / 0.376
    share = INITIAL / len(labels)
    parts = stratified_split(labels, [share, 0.6, 0.4 - share], generator)
    return [(inputs[part], labels[part]) for part in parts], generator


def learner(method, seed, labelled, pool, test):
    return ActiveLearner(
        pool=pool[0],
        labelled=TensorDataset(*labelled),
        oracle=lambda indices: pool[1][indices],
        test=TensorDataset(*test),
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
            chosen = torch.randperm(len(pool[1]), generator=generator)[:100]
            mixed = mix_pairs(pool[0].numpy(), pool[1].numpy(), 900, generator)
            dirty = [
                torch.cat([part[chosen], torch.from_numpy(more)]) for part, more in zip(pool, mixed[:2], strict=True)
            ]
            learning = learner(method, seed, labelled, dirty, test)
            acquired = [index for record in learning.run(until=70) for index in record.indices]
            assert len(acquired) == 50
            found.append(np.mean([index >= len(chosen) for index in acquired]))
        shares[method] = np.mean(found)
    # Nine in ten are ambiguous: entropy looks for them, density does not
    assert shares["density"] < 0.75 < 0.9 < shares["entropy"]
