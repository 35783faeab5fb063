"""The linear map of a layer, bias left out: the map, its adjoint, and the input that it stretches most."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddu.errors import NotSupportedError


@dataclass(frozen=True)
class Operator:
    """A zero-padded convolution A as a linear map from an input (1, in_channels, *size) to its output.

    A linear layer is a convolution with kernel 1 over one position, so it needs no code of its own.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    in_channels: int
    trailing: tuple[int, ...]  # zeros after the input, beyond `padding`: "same" padding of an even kernel is lopsided
    pointwise: bool  # kernel 1 without padding: every pixel is mapped by the same matrix, whatever the input size

    @classmethod
    def of(cls, module: nn.Module) -> Self:
        """Reads the operator off a layer."""
        if isinstance(module, nn.Linear):
            return cls((1,), (0,), (1,), 1, module.in_features, trailing=(0,), pointwise=True)
        if not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            raise NotSupportedError(
                f"spectral_norm knows Linear, Conv1d, Conv2d and Conv3d. Got {type(module).__name__} instead; "
                "leave this layer as it is."
            )
        if module.padding_mode != "zeros":
            raise NotSupportedError(
                f"spectral_norm knows convolutions padded with zeros. Got padding_mode={module.padding_mode!r}; "
                "use padding_mode='zeros' or leave this layer as it is."
            )
        padding, trailing = module.padding, (0,) * len(module.kernel_size)
        if isinstance(padding, str):
            spans = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
            total = spans if padding == "same" else [0] * len(spans)
            padding, trailing = tuple(t // 2 for t in total), tuple(t % 2 for t in total)
        pointwise = set(module.kernel_size) == {1} and not any(padding)
        options = (module.stride, padding, module.dilation, module.groups, module.in_channels)
        return cls(*options, trailing, pointwise)

    def input_shape(self, x: Tensor) -> tuple[int, ...]:
        """The shape of the single inputs that decide the norm of A when the layer is given `x`."""
        rank = len(self.stride)
        return (1, self.in_channels, *((1,) * rank if self.pointwise else x.shape[-rank:]))

    def apply(self, kernel: Tensor, x: Tensor) -> Tensor:
        """A x."""
        if any(self.trailing):
            x = functional.pad(x, [n for t in reversed(self.trailing) for n in (0, t)])
        flush = (0,) * len(self.stride)
        return torch.convolution(x, kernel, None, self.stride, self.padding, self.dilation, False, flush, self.groups)

    def adjoint(self, kernel: Tensor, y: Tensor, size: tuple[int, ...]) -> Tensor:
        """Aᵀ y, for inputs of spatial size `size`."""
        # Several input sizes share one output size; the pixels that the last stride did not reach tell them apart.
        unreached = [
            (n + t + 2 * p - d * (k - 1) - 1) % s
            for n, t, p, d, k, s in zip(
                size, self.trailing, self.padding, self.dilation, kernel.shape[2:], self.stride, strict=True
            )
        ]
        x = torch.convolution(y, kernel, None, self.stride, self.padding, self.dilation, True, unreached, self.groups)
        if any(self.trailing):
            x = functional.pad(x, [n for t in reversed(self.trailing) for n in (0, -t)])
        return x

    def most_stretched(self, kernel: Tensor, start: Tensor, steps: int) -> Tensor:
        """The unit vector in span{v, AᵀA v, ..., (AᵀA)^steps v}, with v = `start`, that A stretches most.

        This is Lanczos iteration. The last of these vectors alone would be power iteration, which costs as much, stalls
        where singular values lie close together and is slow to notice that another direction has overtaken v.
        A zero or broken kernel has no direction to give, and v comes back.
        """
        shape, size, eps = start.shape, tuple(start.shape[2:]), torch.finfo(start.dtype).eps
        basis = start.new_zeros(steps + 1, start.numel())  # orthonormal rows
        basis[0] = start.flatten() / start.norm()
        y = self.apply(kernel, basis[0].view(shape))
        scale = y.norm()  # in units of |A v| no square under- or overflows
        ritz = start.new_zeros(steps + 1, steps + 1)  # basis AᵀA basisᵀ / |A v|², tridiagonal
        ritz[0, 0] = 1
        for k in range(steps):
            w = self.adjoint(kernel, y / scale, size).flatten() / scale
            for _ in range(2):  # once leaves rounding errors behind, twice is enough
                w = w - (basis[: k + 1] @ w) @ basis[: k + 1]
            residual = w.norm()
            # Below this the basis already holds everything that A can make of v; a row of zeros does no harm.
            residual = torch.where(residual > 10 * eps * ritz.amax(), residual, 0)
            basis[k + 1] = torch.where(residual > 0, w / residual, 0)
            y = self.apply(kernel, basis[k + 1].view(shape))
            ritz[k, k + 1] = ritz[k + 1, k] = residual
            ritz[k + 1, k + 1] = (y.norm() / scale).square()
        v = _top_eigenvector(ritz) @ basis
        return torch.where(v.norm() > 0, v / v.norm(), basis[0]).view(shape)


def _top_eigenvector(matrix: Tensor) -> Tensor:
    """Of a small symmetric matrix without negative eigenvalues, not normalised; unlike for eigh, no GPU has to wait."""
    # M^1000: what is left of the other eigenvectors makes no difference to the norm of A. In three rounds, since the
    # tenth power of a matrix of norm 1 is at least n^-5, whose square float32 still holds.
    for _ in range(3):
        matrix = torch.linalg.matrix_power(matrix / matrix.norm(), 10)
    return matrix.index_select(0, matrix.norm(dim=1).argmax().unsqueeze(0)).squeeze(0)
