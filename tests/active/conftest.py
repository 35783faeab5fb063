"""A small problem that is learned in milliseconds: four blobs in six dimensions."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from ddu.active import ActiveLearner
from ddu.detectors import DDU, BaseDetector

CLASSES, DIM = 4, 6


class Blobs:
    """Samples to begin with, a pool with its labels, and a test set; the same every time."""

    def __init__(self, pool: int = 120):
        generator = torch.Generator().manual_seed(0)
        self.centres = 2 * torch.randn(CLASSES, DIM, generator=generator)
        self.labelled = TensorDataset(*self.draw(4 * CLASSES, generator))
        self.pool, self.labels = self.draw(pool, generator)
        self.test = TensorDataset(*self.draw(200, generator))

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % CLASSES
        return self.centres[labels] + torch.randn(count, DIM, generator=generator), labels

    def oracle(self, indices: np.ndarray) -> Tensor:
        return self.labels[indices]

    def learner(self, **changes: Any) -> ActiveLearner:
        options: dict[str, Any] = {
            "model_factory": make_network,
            "detector": DDU,
            "pool": self.pool,
            "labelled": self.labelled,
            "oracle": self.oracle,
            "test": self.test,
            "trainer": train_briefly,
        }
        return ActiveLearner(**(options | changes))


def make_network() -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 12), nn.Linear(12, CLASSES))


def train_briefly(model: nn.Module, samples: Any, validation: Any, *, seed: int) -> None:
    """Twenty steps of Adam on all samples."""
    inputs, labels = samples.__getitems__(range(len(samples)))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    model.train()
    for _ in range(20):
        optimiser.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimiser.step()


@pytest.fixture(scope="session")
def blobs() -> Blobs:
    return Blobs()


@pytest.fixture(scope="session")
def fitted(blobs) -> BaseDetector:
    """A fitted DDU around a trained network."""
    detector = blobs.learner().detector
    assert isinstance(detector, BaseDetector)
    return detector
