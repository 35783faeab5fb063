"""One mixture, three objectives: the best classifier, the best model of both, and the best density differ.

A mixture q(y, z) = π_y N(z; μ_y, Σ_y) with one Gaussian per class can be fitted by three cross-entropies over the data,

    H(Y, Z) = −mean log q(y, z)   the joint one, whose minimum is Gaussian discriminant analysis,
    H(Z)    = −mean log q(z)      the marginal one, minimised by EM: the best density,
    H(Y|Z)  = −mean log q(y|z)    the conditional one, minimised by gradient descent: the best classifier,

and H(Y, Z) = H(Y|Z) + H(Z).
"""

from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from ddu.errors import InputError
from ddu.messages import require

# Less than this share of a variance is the rounding of a covariance that is singular
_UNEXPLAINED = 1e-12


class CrossEntropies(NamedTuple):
    """The three objectives of a mixture on labelled data in nats; smaller is better. joint = conditional + marginal."""

    conditional: float
    joint: float
    marginal: float


class Mixture(NamedTuple):
    """A mixture of one Gaussian per class, in double precision.

    Attributes:
        log_weights: log π, (class,).
        means: μ, (class, feature).
        factors: Lower triangular L with Σ = L Lᵀ, (class, feature, feature).
    """

    log_weights: Tensor
    means: Tensor
    factors: Tensor

    def log_joint(self, z: Tensor) -> Tensor:
        """log q(y, z) of each point and class, (sample, class)."""
        gaussians = MultivariateNormal(self.means, scale_tril=self.factors)
        return self.log_weights + gaussians.log_prob(z.double()[..., None, :])

    def log_density(self, z: Tensor) -> Tensor:
        """log q(z), (sample,)."""
        return self.log_joint(z).logsumexp(-1)

    @classmethod
    def from_covariances(cls, weights: Tensor, means: Tensor, covariances: Tensor) -> Self:
        """The mixture with these covariances, (class, feature, feature)."""
        factors, failed = torch.linalg.cholesky_ex(covariances)
        # The share of each feature's variance that those before it leave unexplained
        left = factors.diagonal(dim1=1, dim2=2) ** 2 / covariances.diagonal(dim1=1, dim2=2)
        singular = (failed > 0) | ~(left > _UNEXPLAINED).all(1)
        if singular.any():
            raise InputError(
                f"The covariance of class {int(singular.nonzero()[0])} is not positive definite: its points lie in "
                f"fewer than {means.shape[1]} dimensions. Leave out features that follow from others."
            )
        return cls(weights.log(), means, factors)


def cross_entropies(mixture: Mixture, z: Tensor, labels: Tensor) -> CrossEntropies:
    """The three objectives of a mixture on labelled points.

    Args:
        mixture: The mixture.
        z: Points, (sample, feature).
        labels: Their classes, (sample,).
    """
    _check_labelled(z, labels, mixture)
    log_joint = mixture.log_joint(z)
    joint = -log_joint.gather(1, labels[:, None]).mean()
    marginal = -log_joint.logsumexp(1).mean()
    return CrossEntropies(float(joint - marginal), float(joint), float(marginal))


def fit_joint(z: Tensor, labels: Tensor, *, shared: bool = False) -> Mixture:
    """Minimises H(Y, Z): class shares, class means and covariances, divided by n and not by n − 1.

    Args:
        z: Points, (sample, feature).
        labels: Classes 0, 1, ..., each with samples, (sample,).
        shared: One covariance for all classes (LDA) instead of one each (GDA, the paper's density).
    """
    _check_labelled(z, labels)
    z = z.double()
    counts = torch.bincount(labels)
    if (counts <= (0 if shared else z.shape[1])).any():
        few = int(counts.argmin())
        raise InputError(
            f"Class {few} has {int(counts[few])} samples, and a Gaussian in {z.shape[1]} dimensions needs at least "
            f"{1 if shared else z.shape[1] + 1}: add samples, or take shared=True."
        )
    membership = torch.nn.functional.one_hot(labels).double()
    means = membership.T @ z / counts[:, None]
    centred = z - means[labels]
    if shared:
        covariances = (centred.T @ centred / len(z)).expand(len(counts), -1, -1)
    else:
        covariances = torch.einsum("nc,ni,nj->cij", membership, centred, centred) / counts[:, None, None]
    return Mixture.from_covariances(counts / len(z), means, covariances)


def fit_marginal(z: Tensor, start: Mixture, *, tolerance: float = 1e-9) -> Mixture:
    """Minimises H(Z) by expectation maximisation from a mixture, with scikit-learn's GaussianMixture.

    Each step lowers H(Z), so the result is at least as good a density as the start. The components are those of the
    start, but nothing ties them to its classes any more.

    Args:
        z: Points, (sample, feature).
        start: Where EM begins, such as the result of `fit_joint`.
        tolerance: EM ends when a step gains less than this, in nats.
    """
    mixture = require("sklearn.mixture", extra="sklearn", purpose="ddu.theory.fit_marginal")
    em = mixture.GaussianMixture(
        len(start.means),
        tol=tolerance,
        max_iter=10_000,
        reg_covar=0.0,
        weights_init=start.log_weights.exp().numpy(),
        means_init=start.means.numpy(),
        precisions_init=torch.cholesky_inverse(start.factors).numpy(),
        random_state=0,
    ).fit(z.double().numpy())
    found = (np.asarray(part) for part in (em.weights_, em.means_, em.covariances_))
    return Mixture.from_covariances(*map(torch.from_numpy, found))


def fit_conditional(z: Tensor, labels: Tensor, start: Mixture, *, shared: bool = False, steps: int = 500) -> Mixture:
    """Minimises H(Y|Z) by L-BFGS over all parameters of a mixture.

    The density is not in the objective, so it is left where the descent happens to take it: many mixtures have the same
    q(y|z), and this is one near the start. With a shared covariance q(y|z) is a softmax layer, the problem is convex in
    its weights, and all starts give the same q(y|z).

    Args:
        z: Points, (sample, feature).
        labels: Their classes, (sample,).
        start: Where the descent begins, such as the result of `fit_joint`.
        shared: Keep one covariance for all classes, that of the first one of the start at first.
        steps: At most so many steps.
    """
    _check_labelled(z, labels, start)
    z = z.double()
    weights, means = start.log_weights.clone(), start.means.clone()
    factors = (start.factors[:1] if shared else start.factors).clone(memory_format=torch.contiguous_format)
    parameters = [one.requires_grad_() for one in (weights, means, factors)]
    optimiser = torch.optim.LBFGS(
        parameters, max_iter=steps, tolerance_grad=1e-10, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def mixture() -> Mixture:
        lower = factors.tril(-1) + torch.diag_embed(factors.diagonal(dim1=-2, dim2=-1).abs())
        return Mixture(weights.log_softmax(0), means, lower.expand(len(means), -1, -1))

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(mixture().log_joint(z), labels)
        value.backward()
        return value

    optimiser.step(loss)
    return Mixture(*(part.detach().contiguous() for part in mixture()))


def _check_labelled(z: Tensor, labels: Tensor, mixture: Mixture | None = None) -> None:
    """Refuses what is not points with a label each, of the classes and the features of the mixture."""
    if z.ndim != 2 or labels.ndim != 1 or len(z) != len(labels) or not len(z):
        raise InputError(
            f"Points (sample, feature) need a label each, (sample,). Got the shapes {tuple(z.shape)} and "
            f"{tuple(labels.shape)}."
        )
    classes = None if mixture is None else len(mixture.means)
    if labels.is_floating_point() or labels.min() < 0 or (classes is not None and labels.max() >= classes):
        known = "0, 1, ..." if classes is None else f"0 to {classes - 1}"
        raise InputError(f"Labels must be integers, {known}. Got {labels.dtype} from {labels.min()} to {labels.max()}.")
    if mixture is not None and z.shape[1] != mixture.means.shape[1]:
        raise InputError(f"The mixture has {mixture.means.shape[1]} features. Got points with {z.shape[1]}.")
