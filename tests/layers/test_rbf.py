"""Kernels of the distance to a centroid, the moving average of the centroids, and the penalty on their gradient."""

import numpy as np
import pytest
import torch

from ddu.errors import InputError
from ddu.layers import RBFHead, gradient_penalty


def make(seed=0, **options):
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return RBFHead(6, 3, embedding_size=4, length_scale=0.5, **options).double()


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_kernels_fall_with_the_mean_squared_distance_to_the_centroid():
    head, z = make(), normal(5, 6)
    weight, centroids = head.weight.detach().numpy(), head.centroids.numpy()
    expected = np.empty((5, 3))
    for n in range(5):
        for c in range(3):
            distance = weight[:, c] @ z[n].numpy() - centroids[:, c]
            expected[n, c] = np.exp(-np.mean(distance**2) / (2 * 0.5**2))
    np.testing.assert_allclose(head(z).exp().detach(), expected, rtol=1e-12)


def test_the_embedding_is_as_wide_as_the_features_unless_told():
    assert RBFHead(7, 3).weight.shape == (7, 3, 7)


def test_a_step_moves_counts_and_sums_by_one_minus_momentum():
    head, z, y = make(momentum=0.9, initial_count=20.0), normal(10, 6), torch.tensor([0] * 7 + [1] * 3)
    before, embedded = head.centroids.clone(), head.embed(z).detach()
    head.update_centroids(z, y)
    np.testing.assert_allclose(head.count, [0.9 * 20 + 0.1 * 7, 0.9 * 20 + 0.1 * 3, 0.9 * 20], rtol=1e-12)
    for c, rows in ((0, slice(0, 7)), (1, slice(7, 10))):
        total = 0.9 * 20 * before[:, c] + 0.1 * embedded[rows, :, c].sum(0)
        np.testing.assert_allclose(head.centroids[:, c], total / head.count[c], rtol=1e-12)
    np.testing.assert_allclose(head.centroids[:, 2], before[:, 2], rtol=1e-12)  # no samples: it stays


def test_centroids_converge_to_the_class_means():
    head, z, y = make(momentum=0.9), normal(30, 6), torch.arange(30) % 3
    for _ in range(300):
        head.update_centroids(z, y)
    means = torch.stack([head.embed(z)[y == c, :, c].mean(0) for c in range(3)], dim=1)
    np.testing.assert_allclose(head.centroids, means.detach(), rtol=1e-9)


def test_centroids_are_state_and_not_trained():
    head = make()
    assert [name for name, _ in head.named_parameters()] == ["weight"]
    head.update_centroids(normal(10, 6), torch.arange(10) % 3)
    assert not head.centroids.requires_grad
    other = make(seed=1)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(normal(5, 6)), head(normal(5, 6)))


def test_far_from_all_centroids_the_logarithms_still_tell_distances_apart():
    head, z = make().float(), 1e3 * normal(1, 6).float()
    near, far = head(z), head(10 * z)
    assert (near.exp() == 0).all()
    assert (far < near).all()
    assert torch.isfinite(far).all()


@pytest.mark.parametrize("shape", [(5, 2), (5, 3, 4, 4)])
def test_the_penalty_is_the_squared_excess_of_the_gradients_length(shape):
    x = normal(*shape).requires_grad_()
    # ∇ Σ |x|² / 2 = x, of every sample on its own
    expected = (x.detach().flatten(1).norm(dim=1) - 1).square().mean()
    torch.testing.assert_close(gradient_penalty(x, x.flatten(1).square() / 2).detach(), expected)


def test_the_penalty_is_two_sided_and_zero_for_distance_itself():
    x = normal(5, 3).requires_grad_()
    assert float(gradient_penalty(x, x[:, :1])) == 0
    assert float(gradient_penalty(x, 0.5 * x[:, :1])) == pytest.approx(0.25)
    assert float(gradient_penalty(x, 1.5 * x[:, :1])) == pytest.approx(0.25)


def test_the_penalty_has_the_gradient_that_finite_differences_find():
    x = normal(5, 3).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda weight: gradient_penalty(x, torch.tanh(x @ weight)), (normal(3, 2, seed=1).requires_grad_(),)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding_size": 0}, "The 'embedding_size' parameter of RBFHead must be positive. Got 0 instead."),
        ({"length_scale": -1.0}, "The 'length_scale' parameter of RBFHead must be positive. Got -1.0 instead."),
        ({"momentum": 1.0}, "The 'momentum' parameter of RBFHead must be in [0, 1). Got 1.0 instead."),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(InputError) as caught:
        RBFHead(6, 3, **options)
    assert str(caught.value) == message
