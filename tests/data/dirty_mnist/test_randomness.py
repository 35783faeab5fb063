"""Streams of random numbers, one for every purpose."""

import numpy as np
import torch

from ddu.data.dirty_mnist._randomness import initial_weights, numbers, torch_numbers


def test_the_same_purpose_gives_the_same_numbers():
    np.testing.assert_array_equal(numbers(5, "mix", 1).random(8), numbers(5, "mix", 1).random(8))
    assert torch.equal(*(torch.rand(8, generator=torch_numbers(5, "mix", 1)) for _ in range(2)))


def test_seeds_and_purposes_give_other_numbers():
    streams = [(0, "mix", 1), (0, "mix", 2), (1, "mix", 1), (0, "noise", 1), (0, "mix", 11)]
    assert len({numbers(*stream).integers(2**60) for stream in streams}) == len(streams)
    assert len({torch_numbers(*stream).initial_seed() for stream in streams}) == len(streams)


def test_initial_weights_leave_the_global_random_state_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with initial_weights(7, "vae"):
        first = torch.nn.Linear(2, 2).weight
    assert torch.equal(torch.rand(3), expected)
    with initial_weights(7, "vae"):
        assert torch.equal(torch.nn.Linear(2, 2).weight, first)
