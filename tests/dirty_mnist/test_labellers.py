"""Soft labels and the ensemble that gives them."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy as scipy_entropy

from ddu.data import ArrayDataset
from ddu.dirty_mnist.autoencoder import pixel_rows
from ddu.dirty_mnist.fitting import adam
from ddu.dirty_mnist.labellers import ensemble_logits, labelled, train_labeller


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("members", [1, 2, 5])
def test_mean_entropy_and_information_are_those_of_scipy(scale, members):
    logits = scale * torch.randn(members, 7, 10, generator=torch.Generator().manual_seed(members))
    probs = torch.softmax(logits.double(), -1).numpy()
    found = labelled(logits)
    np.testing.assert_allclose(found.probs, probs.mean(0), rtol=1e-7, atol=1e-300)
    np.testing.assert_allclose(found.entropy, scipy_entropy(probs.mean(0), axis=-1), rtol=1e-7, atol=1e-12)
    # I = mean KL(p_m ‖ p̄), another way to the same number
    information = scipy_entropy(probs, probs.mean(0)[None].repeat(members, 0), axis=-1).mean(0)
    np.testing.assert_allclose(found.mutual_information, information, rtol=1e-7, atol=1e-12)


def test_members_that_agree_share_no_information():
    logits = torch.randn(1, 6, 10).repeat(4, 1, 1)
    torch.testing.assert_close(labelled(logits).mutual_information, torch.zeros(6).double(), rtol=0, atol=1e-12)


def test_members_that_are_sure_of_different_labels_disagree_as_much_as_can_be():
    logits = 1000 * torch.eye(3)[:, None]
    assert labelled(logits).mutual_information.item() == pytest.approx(math.log(3))
    assert labelled(logits).entropy.item() == pytest.approx(math.log(3))


def test_the_order_of_members_does_not_matter():
    logits = torch.randn(4, 6, 10)
    for one, other in zip(labelled(logits), labelled(logits.flip(0)), strict=True):
        torch.testing.assert_close(one, other)


def trained(train_digits, validation, epochs):
    recipe = adam(epochs=epochs, batch_size=32, lr=3e-3, select="best")
    return train_labeller(
        train_digits.subset(range(320)), validation, recipe, seed=0, member=0, progress=lambda done, note: None
    )


def test_a_labeller_is_kept_as_it_was_after_its_best_epoch(train_digits):
    held_out = train_digits.subset(range(320, 400))
    # The better it learns the digits, the worse it does here
    always_wrong = ArrayDataset(held_out.inputs, (held_out.labels + 1) % 10, held_out.info)
    first = trained(train_digits, always_wrong, epochs=1)
    last_of_three = trained(train_digits, always_wrong, epochs=3)
    for name, weights in first.state_dict().items():
        assert torch.equal(weights, last_of_three.state_dict()[name]), name
    best_of_three = trained(train_digits, held_out, epochs=3)
    assert not torch.equal(best_of_three.head.weight, first.head.weight)
    predicted = ensemble_logits([best_of_three], pixel_rows(held_out.inputs))[0].argmax(1)
    assert (predicted.numpy() == held_out.labels).mean() > 0.6


def test_members_have_weights_of_their_own_and_the_global_random_state_is_left_alone(train_digits):
    few, none = train_digits.subset(range(64)), lambda done, note: None
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    one, again, other = (train_labeller(few, few, adam(epochs=1), 0, member, none) for member in (0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one.head.weight, again.head.weight)
    assert not torch.equal(one.head.weight, other.head.weight)
