"""Batch normalisation with a bounded Lipschitz constant."""

from typing import cast

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from ddu.errors import InputError


def bounded_scale(scale: Tensor, variance: Tensor, eps: float, coeff: float) -> Tensor:
    """γ / max(1, L / coeff), where L = max |γ / √(variance + eps)| is the Lipschitz constant of batch normalisation."""
    lipschitz = (scale / (variance + eps).sqrt()).abs().amax()
    return scale / (lipschitz / coeff).clamp(min=1)


class _SpectralBatchNorm(_BatchNorm):
    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.01, *, coeff: float = 3.0) -> None:
        if not coeff > 0:
            name = type(self).__name__
            raise InputError(f"The 'coeff' parameter of {name} must be a positive number. Got {coeff} instead.")
        super().__init__(num_features, eps, momentum)
        self.coeff = coeff

    def bounded_weight(self) -> Tensor:
        """γ as it is used, from the running variance as it stands."""
        return bounded_scale(self.weight, self.get_buffer("running_var"), self.eps, self.coeff)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        weight = self.bounded_weight()
        if self.training:
            self.get_buffer("num_batches_tracked").add_(1)
        momentum = cast(float, self.momentum)  # None is not offered
        return functional.batch_norm(
            input, self.running_mean, self.running_var, weight, self.bias, self.training, momentum, self.eps
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, coeff={self.coeff}"


class SpectralBatchNorm2d(_SpectralBatchNorm, nn.BatchNorm2d):
    """Batch normalisation that stretches no direction by more than `coeff`.

    All scales γ are divided by max(1, L / coeff), where L = max |γ / √(running_var + eps)| is the Lipschitz constant
    of the layer in eval mode, which is then at most `coeff`. In training mode the batch is normalised by its own
    variance as usual, and its γ are bounded by the running variance before this batch: training and evaluation agree
    once the running variance has settled, but a single batch of smaller variance may be stretched further.

    The running variance moves slowly (momentum 0.01), so that the bound does not follow the noise of single batches.
    The state dict is that of `nn.BatchNorm2d`.

    >>> import torch
    >>> norm = SpectralBatchNorm2d(1, coeff=3.0).eval()
    >>> norm.running_var.fill_(0.01)  # γ = 1: without the bound a stretch by 10
    tensor([0.0100])
    >>> round(norm(torch.ones(1, 1, 1, 1)).item(), 4)
    3.0
    """


class SpectralBatchNorm1d(_SpectralBatchNorm, nn.BatchNorm1d):
    """`SpectralBatchNorm2d` for vectors and sequences."""
