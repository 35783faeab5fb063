"""The head of DUQ: one centroid per class, and a kernel of the distance to it.

Van Amersfoort et al., "Uncertainty estimation using a single deep deterministic neural network", 2020.
"""

import torch
from torch import Tensor, nn

from ddu.distributed import summed
from ddu.errors import InputError


class RBFHead(nn.Module):
    """Log-kernels of the distances between projected features and class centroids.

    Each class has a projection W_c and a centroid e_c, both of `embedding_size` dimensions m, and

        log K_c(z) = -‖W_c z - e_c‖² / (2 m σ²),

    so that K_c is 1 at the centroid and falls to 0 far from it. The projections are trained; the centroids are moving
    averages of the projections of their class, which `update_centroids` renews after each step of training.

    Different from the original, which returns K_c: logarithms do not underflow, and their softmax are the kernels
    divided by their sum. The defaults are those of DUQ on CIFAR-10.

    Args:
        in_features: Width of the network's features z.
        num_classes: Number of classes.
        embedding_size: m; by default as wide as the features.
        length_scale: σ.
        momentum: γ, the share of the moving averages that a step keeps.
        initial_count: The number of samples per class that the initial centroids, drawn close to zero, count for.

    >>> head = RBFHead(8, 3)
    >>> head(torch.zeros(5, 8)).shape
    torch.Size([5, 3])
    """

    count: Tensor
    total: Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        embedding_size: int | None = None,
        length_scale: float = 0.1,
        momentum: float = 0.999,
        initial_count: float = 13.0,
    ) -> None:
        super().__init__()
        embedding_size = in_features if embedding_size is None else embedding_size
        for name, value in (("embedding_size", embedding_size), ("length_scale", length_scale)):
            if not value > 0:
                raise InputError(f"The '{name}' parameter of RBFHead must be positive. Got {value!r} instead.")
        if not 0 <= momentum < 1:
            raise InputError(f"The 'momentum' parameter of RBFHead must be in [0, 1). Got {momentum!r} instead.")
        self.length_scale, self.momentum = length_scale, momentum
        self.weight = nn.Parameter(torch.randn(embedding_size, num_classes, in_features))
        nn.init.kaiming_normal_(self.weight)
        self.register_buffer("count", torch.full((num_classes,), initial_count))
        self.register_buffer("total", 0.05 * torch.randn(embedding_size, num_classes) * self.count)

    @property
    def centroids(self) -> Tensor:
        """e_c, (embedding, class)."""
        return self.total / self.count

    def embed(self, z: Tensor) -> Tensor:
        """W_c z of every class, (batch, embedding, class)."""
        return torch.einsum("nd,mcd->nmc", z, self.weight)

    def forward(self, z: Tensor) -> Tensor:
        return -(self.embed(z) - self.centroids).square().mean(1) / (2 * self.length_scale**2)

    @torch.no_grad()
    def update_centroids(self, z: Tensor, y: Tensor) -> None:
        """Moves each centroid towards the mean of its class in a batch; one without samples stays where it is.

        With n_c samples of class c, N_c ← γ N_c + (1 - γ) n_c and M_c ← γ M_c + (1 - γ) Σ W_c z; then e_c = M_c / N_c.
        Processes that train together each give their share of the batch, and both sums are over all of it.
        """
        member = nn.functional.one_hot(y, len(self.count)).to(self.total)
        self.count.lerp_(summed(member.sum(0)), 1 - self.momentum)
        total = torch.einsum("nmc,nc->mc", self.embed(z).to(self.total), member)
        self.total.lerp_(summed(total), 1 - self.momentum)

    def extra_repr(self) -> str:
        embedding, classes, features = self.weight.shape
        return (
            f"in_features={features}, num_classes={classes}, embedding_size={embedding}, "
            f"length_scale={self.length_scale}, momentum={self.momentum}"
        )


def gradient_penalty(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Mean over the batch of (‖∇ₓ Σ outputs‖₂ - 1)², differentiable: keeps the gradient norm near 1.

    >>> x = torch.randn(5, 2, requires_grad=True)
    >>> gradient_penalty(x, 3 * x[:, :1])  # (3 - 1)²
    tensor(4.)
    """
    (gradient,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
    return (gradient.flatten(1).norm(dim=1) - 1).square().mean()
