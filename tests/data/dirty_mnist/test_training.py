"""The training loop."""

from itertools import pairwise

import pytest
import torch
from torch import Generator, nn

from ddu.data.dirty_mnist._training import Training, train


def test_it_finds_the_least_squares_solution():
    generator = Generator().manual_seed(0)
    x = torch.randn(64, 3, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(64, generator=generator)
    model = nn.Linear(3, 1, bias=False)
    training = Training(epochs=150, batch=16, learning_rate=0.05, drops=(50, 100))
    for _ in train(model, lambda rows: (model(x[rows])[:, 0] - y[rows]).square().mean(), 64, training, generator):
        pass
    expected = torch.linalg.lstsq(x, y[:, None]).solution.T
    # Mini-batches leave the last steps wandering around the solution
    torch.testing.assert_close(model.weight.detach(), expected, rtol=0, atol=0.01)


def test_every_sample_is_seen_once_an_epoch_and_progress_ends_at_one():
    model, seen = nn.Linear(1, 1), []

    def loss(rows):
        seen.extend(rows.tolist())
        return model.weight.square().sum()

    steps = list(train(model, loss, 10, Training(epochs=2, batch=4), Generator().manual_seed(0)))
    assert [sorted(seen[:10]), sorted(seen[10:])] == [list(range(10))] * 2
    assert seen[:10] != seen[10:]
    assert [step.ends_epoch for step in steps] == [False, False, True] * 2
    assert [step.epoch for step in steps] == [1, 1, 1, 2, 2, 2]
    assert [step.done for step in steps] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1])


def test_the_model_is_in_evaluation_mode_when_an_epoch_ends():
    model = nn.Linear(1, 1)
    steps = train(model, lambda rows: model.weight.sum(), 4, Training(epochs=2, batch=2), Generator().manual_seed(0))
    assert [(step.ends_epoch, model.training) for step in steps] == [(False, True), (True, False)] * 2


def test_the_learning_rate_falls_to_a_fifth_after_the_epochs_named():
    model = nn.Linear(1, 1, bias=False)
    training = Training(epochs=3, batch=1, learning_rate=0.1, drops=(1, 2))
    steps = train(model, lambda rows: model.weight.sum(), 1, training, Generator().manual_seed(0))
    weights = [model.weight.item(), *(model.weight.item() for _ in steps)]
    # Adam moves by the learning rate where the gradient is constant
    assert [a - b for a, b in pairwise(weights)] == pytest.approx([0.1, 0.02, 0.004], rel=1e-4)
