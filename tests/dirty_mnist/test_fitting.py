"""Training with progress."""

import pytest
import torch

from ddu.data import load
from ddu.dirty_mnist.fitting import adam, seeded, train
from ddu.models import create_model


def trained(progress=lambda done, note: None, **changes):
    with seeded(0, "weights"):
        network = create_model("resffn2_16", num_classes=2, in_features=2)
    moons = load("two_moons").subset(range(100))
    train(network, moons, adam(epochs=2, batch_size=40, **changes), progress, 0, "moons", validation=moons)
    return network


def test_progress_is_told_after_every_epoch_and_ends_at_one():
    told = []
    trained(lambda done, note: told.append((done, note)))
    assert told[-1][0] == 1
    assert {note.split(", loss ")[0] for _, note in told} == {"epoch 1 of 2", "epoch 2 of 2"}
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_the_same_seed_gives_the_same_weights_and_the_global_random_state_is_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    one, again = trained(), trained()
    assert torch.equal(torch.rand(3), expected)
    for name, weights in one.state_dict().items():
        assert torch.equal(weights, again.state_dict()[name]), name
    assert not one.training


def test_the_learning_rate_falls_to_a_fifth_at_the_milestones():
    recipe = adam(epochs=3, milestones=(1, 2))
    rates = [recipe.lr * recipe.lr_factor(epoch) for epoch in (0, 1, 2)]
    assert rates == pytest.approx([1e-3, 2e-4, 4e-5])


def test_progress_can_stop_the_training():
    def stop(done, note):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(stop)
