"""A loader that augments is warned of, and reading its samples leaves no trace."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import ddu
from ddu.detectors.inputs import warn_of_augmentation
from ddu.errors import AugmentationWarning


class Samples(Dataset):
    """Vectors by class, each changed by a transform as it is read."""

    def __init__(self, transform=None, samples=90):
        self.y = torch.arange(samples) % 3
        self.x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(0)) + 2 * torch.eye(3, 4)[self.y]
        self.transform = transform

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        return (self.transform(x) if self.transform else x), int(self.y[index])


class RandomFlip:
    """Reversed or not, by the toss of a coin."""

    def __call__(self, x):
        return x.flip(0) if torch.rand(()) < 0.5 else x


class Compose:
    def __init__(self, *transforms):
        self.transforms = list(transforms)

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


@pytest.fixture
def model():
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.copy_(3 * torch.eye(3, 4))
    return model


def test_a_training_loader_that_augments_is_warned_of(model):
    loader = DataLoader(Samples(Compose(lambda x: x + 1, RandomFlip())), 30, shuffle=True)
    with pytest.warns(AugmentationWarning) as caught:
        ddu.DDU(model, features=None).fit(loader)
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith("The loader augments (its transforms have RandomFlip): sample ")
    assert ", read twice, differs by up to " in text
    assert text.endswith("Fit on inputs as they will be predicted: give the data set the transforms of the test data.")
    assert warning.filename == __file__


def test_so_is_a_calibration_loader(model):
    detector = ddu.DDU(model, features=None).fit(DataLoader(Samples(), 30))
    noisy = DataLoader(Samples(lambda x: x + 0.1 * torch.randn(4)), 30)
    with pytest.warns(AugmentationWarning, match=r"^The loader augments: sample 0, .* Calibrate on inputs"):
        detector.calibrate(noisy, 0.1)


@pytest.mark.parametrize(
    "draw",
    [lambda: random.random(), lambda: np.random.rand(), lambda: float(torch.rand(()))],  # noqa: NPY002
)
def test_every_source_of_randomness_is_noticed_and_restored(draw):
    loader = DataLoader(Subset(Samples(lambda x: x + draw()), range(5, 40)), 8)
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    with pytest.warns(AugmentationWarning):
        warn_of_augmentation(loader, "Fit")
    assert random.getstate() == state[0]
    assert np.random.get_state()[1].tolist() == state[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), state[2])


def test_own_samplers_are_asked_as_well():
    noisy = Samples(lambda x: x + torch.rand(()))
    with pytest.warns(AugmentationWarning):
        warn_of_augmentation(DataLoader(noisy, batch_sampler=BatchSampler(range(90), 9, False)), "Fit")


class Stream(IterableDataset):
    def __iter__(self):
        raise AssertionError("It was read.")


class Broken(Samples):
    def __getitem__(self, index):
        raise ConnectionError("the disk went away")


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Samples(), 8, shuffle=True),
        DataLoader(Samples(lambda x: 2 * x), 8),
        DataLoader(TensorDataset(torch.full((9, 4), torch.nan), torch.arange(9)), 3),
        DataLoader(Samples(samples=1), 1),
        DataLoader(TensorDataset(torch.zeros(0, 4), torch.zeros(0).long()), 3),
        DataLoader(Samples(), batch_size=None),
        DataLoader(Stream(), 3),
        DataLoader(Broken(), 3),
        [(torch.zeros(3, 4), torch.arange(3))],
    ],
    ids=["plain", "scaled", "NaN", "one", "none", "unbatched", "stream", "broken", "list"],
)
def test_others_are_left_alone(loader):
    warn_of_augmentation(loader, "Fit")


def test_the_order_of_a_shuffled_loader_does_not_change():
    def order(asked):
        torch.manual_seed(3)
        loader = DataLoader(Samples(), 90, shuffle=True)
        if asked:
            warn_of_augmentation(loader, "Fit")
        return next(iter(loader))[0]

    assert torch.equal(order(False), order(True))
