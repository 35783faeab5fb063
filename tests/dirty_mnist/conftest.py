"""Small digits of MNIST's shape, and a set made from them in seconds."""

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import interpolate, pad

from ddu.data import ArrayDataset, DataInfo
from ddu.dirty_mnist import Filters, Mixing, Settings, Stratification, make_dirty_mnist
from ddu.dirty_mnist.fitting import adam

TINY = Settings(
    autoencoder=adam(epochs=10, batch_size=16, lr=4e-3, milestones=(8,)),
    labeller=adam(epochs=5, batch_size=32, select="best"),
    mixing=Mixing(pool=200, chunk=400),
    filters=Filters(min_entropy=0.3, max_entropy=2.0, max_mutual_information=0.05, min_second=0.05, min_ink=0.2),
    strata=Stratification(images=150, bins=6),
    members=2,
    labels=4,
)


def enlarged(rows: slice) -> ArrayDataset:
    """scikit-learn's digits, 20 x 20 pixels in a black frame of 28 x 28, in bytes."""
    pixels, labels = load_digits(return_X_y=True)
    small = torch.from_numpy(pixels[rows] / 16).float().reshape(-1, 1, 8, 8)
    images = pad(interpolate(small, size=20, mode="bilinear"), (4, 4, 4, 4))
    info = DataInfo("enlarged digits", (1, 28, 28), tuple("0123456789"), (0.1307,), (0.3081,))
    pixels = (255 * images).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    return ArrayDataset(pixels, labels[rows], info)


@pytest.fixture(scope="session")
def train_digits() -> ArrayDataset:
    return enlarged(slice(0, 600))


@pytest.fixture(scope="session")
def test_digits() -> ArrayDataset:
    return enlarged(slice(600, 1000))


@pytest.fixture(scope="session")
def tiny() -> Settings:
    return TINY


@pytest.fixture(scope="session")
def made(tmp_path_factory, train_digits, test_digits) -> Path:
    """A small set, made without interruption; not to be changed."""
    folder = tmp_path_factory.mktemp("dirty_mnist") / "made"
    make_dirty_mnist(folder, train_digits, test_digits, TINY, seed=3)
    return folder
