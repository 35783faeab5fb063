"""What the objectives minimise, and what they do besides."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy, one_hot

from ddu.errors import InputError
from ddu.layers import gradient_penalty
from ddu.models import create_model
from ddu.training.objectives import CrossEntropy, DUQObjective, kernel_cross_entropy, objective_for

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(30) % 3


@pytest.fixture
def model():
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        options = {"embedding_size": 5, "length_scale": 0.5, "momentum": 0.9}
        return create_model("resffn2_8", in_features=4, num_classes=3, dropout=0.5, head="duq", head_options=options)


def test_the_loss_of_kernels_is_the_binary_cross_entropy():
    log_kernels = -torch.rand(30, 3, generator=torch.Generator().manual_seed(0)) * 5 - 0.01
    expected = binary_cross_entropy(log_kernels.exp(), one_hot(Y, 3).float())
    torch.testing.assert_close(kernel_cross_entropy(log_kernels, Y), expected)


def test_a_sample_far_from_its_centroid_still_has_a_gradient():
    log_kernels = torch.full((1, 3), -200.0, requires_grad=True)
    kernel_cross_entropy(log_kernels, torch.tensor([0])).backward()
    torch.testing.assert_close(log_kernels.grad, torch.tensor([[-1 / 3, 0.0, 0.0]]))
    kernels = torch.full((1, 3), -200.0, requires_grad=True)
    binary_cross_entropy(kernels.exp(), one_hot(torch.tensor([0]), 3).float()).backward()
    torch.testing.assert_close(kernels.grad, torch.zeros(1, 3))


def test_a_sample_at_another_centroid_has_a_finite_loss():
    log_kernels = torch.zeros(1, 3, requires_grad=True)
    loss = kernel_cross_entropy(log_kernels, torch.tensor([0]))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(log_kernels.grad).all()


def test_the_penalty_is_part_of_the_loss_while_there_are_gradients(model):
    model.eval()  # without dropout
    objective, x = DUQObjective(penalty=0.7), X.clone()
    loss, scores = objective.loss(model, x, Y)
    assert not x.requires_grad  # the caller's batch is left alone
    inputs = X.clone().requires_grad_()
    expected = kernel_cross_entropy(scores, Y) + 0.7 * gradient_penalty(inputs, model(inputs).exp())
    torch.testing.assert_close(loss, expected)
    for switched_off in (torch.no_grad, torch.inference_mode):
        with switched_off():
            torch.testing.assert_close(objective.loss(model, X, Y)[0], kernel_cross_entropy(scores, Y).detach())


def test_after_a_step_the_centroids_follow_the_batch_in_evaluation_mode(model):
    expected = copy.deepcopy(model).eval()
    expected.head.update_centroids(expected.forward_features(X), Y)
    model.train()
    model.blocks[0].eval()  # frozen by its owner
    modes = [module.training for module in model.modules()]
    DUQObjective().after_step(model, X, Y)
    torch.testing.assert_close(model.head.centroids, expected.head.centroids)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_training_lowers_the_loss(model):
    torch.manual_seed(0)  # of the dropout
    objective, optimizer = DUQObjective(penalty=0.1), torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        loss, _ = objective.loss(model, X, Y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        objective.after_step(model, X, Y)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]  # from 0.40 to 0.51 with twenty seeds


def test_duq_needs_its_head():
    with pytest.raises(InputError) as caught:
        DUQObjective().after_step(nn.Linear(4, 3), X, Y)
    assert str(caught.value) == "DUQ trains a ddu.models.Classifier with an RBFHead. Got Linear instead."


@pytest.mark.parametrize(("head", "kind"), [("linear", CrossEntropy), ("sngp", CrossEntropy), ("duq", DUQObjective)])
def test_the_objective_follows_the_head(head, kind):
    assert type(objective_for(create_model("resffn2_8", head=head))) is kind
    smoothed = objective_for(create_model("resffn2_8"), label_smoothing=0.1)
    assert isinstance(smoothed, CrossEntropy)
    assert smoothed.label_smoothing == 0.1
