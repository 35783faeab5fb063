"""A Gaussian process as a last layer: random Fourier features, and the posterior of the linear layer on them.

Rahimi and Recht, "Random features for large-scale kernel machines", 2007; Yu et al., "Orthogonal random features",
2016; Liu et al., "Simple and principled uncertainty estimation with deterministic deep learning", 2020 (SNGP).
"""

import math
import sys

import torch
from torch import Tensor, nn

from ddu.errors import InputError
from ddu.measures import log_mean_softmax


def random_frequencies(count: int, dim: int, *, orthogonal: bool) -> Tensor:
    """Rows w ~ N(0, I), (count, dim); if orthogonal, at right angles to each other within blocks of `dim` rows."""
    if not orthogonal:
        return torch.randn(count, dim)
    blocks = [torch.linalg.qr(torch.randn(dim, dim)).Q for _ in range(math.ceil(count / dim))]
    lengths = torch.randn(count, dim).norm(dim=1, keepdim=True)  # those of Gaussian rows
    return torch.cat(blocks)[:count] * lengths


class RandomFourierFeatures(nn.Module):
    """φ(x) = a √(2/D) cos(Wx / ℓ + b), whose products approximate a kernel: φ(x)ᵀφ(y) ≈ a² exp(-‖x - y‖² / 2ℓ²).

    W ~ N(0, I) and b ~ U(0, 2π) are drawn once, from torch's random state, and are not trained. The error falls with
    1 / √D.

    Args:
        in_features: Width of x.
        num_features: D.
        length_scale: ℓ, the distance over which inputs are alike.
        amplitude: a; by default √(D/2), which leaves the cosines as they are.
        orthogonal: Rows of W at right angles: the same mean, and less variance.

    >>> features = RandomFourierFeatures(2, 4096, amplitude=1.0)
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    >>> kernel = features(x) @ features(x).T
    >>> torch.allclose(kernel, torch.tensor([[1.0, 0.6065], [0.6065, 1.0]]), atol=0.05)  # exp(-1/2) = 0.6065
    True
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        in_features: int,
        num_features: int = 1024,
        *,
        length_scale: float = 1.0,
        amplitude: float | None = None,
        orthogonal: bool = True,
    ) -> None:
        super().__init__()
        for name, value in (("num_features", num_features), ("length_scale", length_scale), ("amplitude", amplitude)):
            if value is not None and not value > 0:
                raise InputError(f"The '{name}' parameter of random features must be positive. Got {value!r} instead.")
        self.in_features, self.num_features, self.length_scale = in_features, num_features, length_scale
        self.amplitude = math.sqrt(num_features / 2) if amplitude is None else amplitude
        self.register_buffer("weight", random_frequencies(num_features, in_features, orthogonal=orthogonal))
        self.register_buffer("bias", 2 * math.pi * torch.rand(num_features))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.amplitude * math.sqrt(2 / self.num_features)
        return scale * torch.cos(nn.functional.linear(x / self.length_scale, self.weight, self.bias))

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, num_features={self.num_features}, length_scale={self.length_scale}, "
            f"amplitude={self.amplitude:.4g}"
        )


class GaussianProcessHead(nn.Module):
    """The head of SNGP: logits βᵀφ(z), linear in random features of the network's features.

    It is trained like any other head; `LaplacePosterior` gives its uncertainty afterwards. The defaults are those
    of SNGP on CIFAR.

    Args:
        in_features: Width of the network's features z.
        num_classes: Number of logits.
        num_features: Number of random features φ.
        length_scale: Distance between features over which they are alike.
        amplitude: As in `RandomFourierFeatures`.
        orthogonal: As in `RandomFourierFeatures`.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        num_features: int = 1024,
        length_scale: float = 20.0,
        amplitude: float | None = None,
        orthogonal: bool = True,
    ) -> None:
        super().__init__()
        self.features = RandomFourierFeatures(
            in_features, num_features, length_scale=length_scale, amplitude=amplitude, orthogonal=orthogonal
        )
        self.output = nn.Linear(num_features, num_classes, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        return self.output(self.features(z))


class LaplacePosterior:
    """The posterior of the weights β of a linear layer on features φ, under a Gaussian likelihood.

    The precision is Σ φφᵀ + ridge · I, summed exactly in float64 over everything that `update` is given: the ridge is
    the precision of the prior β ~ N(0, I / ridge), and the noise has unit variance. One matrix serves all classes.

    Different from the paper's likelihood, a softmax, whose precision weights each sample by p (1 - p); its authors'
    experiments have the Gaussian too.

    Args:
        dim: Width of φ.
        ridge: Precision of the prior.

    >>> posterior = LaplacePosterior(2)
    >>> posterior.update(torch.tensor([[3.0, 0.0]]))
    >>> posterior.variance(torch.eye(2))  # known along the first axis
    tensor([0.1000, 1.0000])
    """

    def __init__(self, dim: int, ridge: float = 1.0) -> None:
        if not isinstance(ridge, float | int) or not 0 < ridge <= sys.float_info.max:
            raise InputError(f"The 'ridge' parameter of LaplacePosterior must be positive. Got {ridge!r} instead.")
        self.ridge = ridge
        self.scatter = torch.zeros(dim, dim, dtype=torch.float64)
        self._whitening: Tensor | None = None

    def update(self, phi: Tensor) -> None:
        """Adds data with the features φ, (sample, feature)."""
        rows = phi.detach().to(self.scatter)
        self.scatter += rows.T @ rows
        self._whitening = None

    def merge(self, other: "LaplacePosterior") -> "LaplacePosterior":
        """Adds the data that another one has seen."""
        self.scatter += other.scatter.to(self.scatter)
        self._whitening = None
        return self

    def prepare(self) -> None:
        """Computes now what `variance` would compute on first use; refuses a matrix that is not a sum of φφᵀ."""
        self._whiten()

    def to(self, device: torch.device | str) -> None:
        """Moves everything known to a device; the precision is kept."""
        self.scatter = self.scatter.to(device)
        self._whitening = None if self._whitening is None else self._whitening.to(device)

    def variance(self, phi: Tensor) -> Tensor:
        """φᵀ (Σ φφᵀ + ridge · I)⁻¹ φ, the variance of a logit, (sample,)."""
        whitening = self._whiten()
        return (phi.to(whitening) @ whitening.T).square().sum(1).to(phi)

    def _whiten(self) -> Tensor:
        whitening = self._whitening
        if whitening is None:
            identity = torch.eye(len(self.scatter), dtype=torch.float64, device=self.scatter.device)
            factor, info = torch.linalg.cholesky_ex(self.scatter + self.ridge * identity)
            if info or not torch.isfinite(factor).all():
                raise InputError(
                    f"The precision of {len(factor)} features, with the ridge {self.ridge!r}, is not positive definite."
                )
            whitening = self._whitening = torch.linalg.solve_triangular(factor, identity, upper=False)
        return whitening


def mean_field_logits(logits: Tensor, variance: Tensor, factor: float = math.pi / 8) -> Tensor:
    """logits / √(1 + factor · variance), whose softmax approximates the mean softmax of N(logits, variance).

    >>> mean_field_logits(torch.tensor([[2.0, 0.0]]), torch.tensor([3.0]), factor=1.0)
    tensor([[1., 0.]])
    """
    return logits / (1 + factor * variance).sqrt()[:, None]


def monte_carlo_logits(logits: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    """The logarithm of the mean softmax of N(logits, variance), by the noise ε ~ N(0, 1), (draw, class).

    Every input sees the same noise, so that a prediction does not depend on its batch.

    >>> noise = torch.randn(1000, 2)
    >>> monte_carlo_logits(torch.tensor([[9.0, 0.0]]), torch.tensor([1e4]), noise).exp()  # nearly nothing is known
    tensor([[0.5..., 0.4...]])
    """
    return log_mean_softmax(logits + variance.sqrt()[:, None] * noise[:, None])
