"""Spectral normalisation by the true norm of a layer's linear map, as a parametrization of its weight.

Different from the paper, whose norm is found by one power step a training step: the singular vector is warmed up before
it is used, follows the input size, and takes four steps of Lanczos iteration. In the first sixty steps of a narrow
ResNet-18 on CIFAR-10 at a learning rate of 0.1, one such step falls more than 2 % short of the norm in 17.5 % of the
layers and steps, by up to 56 %, four in 2.4 %, by up to 18 %, and eight in 0.6 %, by up to 6 %. After a hundred steps
one is enough. To a training step of ResNet-18 four add 5 %, one 2 %, eight 8 % (`benchmarks/spectral_norm.py`).
"""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from ddu.errors import InputError, NotFittedError
from ddu.layers._operator import Operator

M = TypeVar("M", bound=nn.Module)

POWER_STEPS = 4  # in a forward pass in training mode, wherever no other number is given
_WARM_UP_STEPS = 24
_RAW, _VECTOR = "parametrizations.weight.original", "parametrizations.weight.0.v"
_UNSEEN = "The norm of a layer is unknown before its first batch: run one forward pass through the network first."


class SpectralNorm(nn.Module):
    """The parametrization W -> W / max(1, σ(W) / coeff); `spectral_norm` puts it on a layer.

    Its state is `v`, the input that the layer stretches most, and σ = |A v|, differentiable in W with v held constant.
    Until the layer has seen a batch `v` is empty and the weight is left as it is.
    """

    v: Tensor

    def __init__(self, operator: Operator, weight: Tensor, coeff: float, power_steps: int) -> None:
        super().__init__()
        self.operator, self.coeff, self.power_steps = operator, coeff, power_steps
        self.handles: tuple[RemovableHandle, ...] = ()
        self.register_buffer("v", weight.new_empty(0))

    @property
    def unseen(self) -> bool:
        return self.v.numel() == 0

    def forward(self, weight: Tensor) -> Tensor:
        if self.unseen:
            return weight
        sigma = self.sigma(weight, power_steps=self.power_steps if self.training else 0)
        return (weight.to(sigma.dtype) / (sigma / self.coeff).clamp(min=1)).to(weight.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Makes `layer.weight = tensor` work: the tensor becomes the raw weight, its norm to be found anew."""
        self.v = self.v.new_empty(0)
        return weight

    def sigma(self, weight: Tensor, power_steps: int = 0) -> Tensor:
        """|A v| of the raw weight in float32 or better, after v has been refined by `power_steps` products with AᵀA."""
        with torch.autocast(weight.device.type, enabled=False):
            kernel = _kernel(weight)
            v = self.v.to(kernel.dtype)
            v = v / v.norm()  # unit again after a change of dtype; a copy, since autograd keeps it and `v` moves on
            if power_steps:
                with torch.no_grad():
                    v = self.operator.most_stretched(kernel, v, power_steps)
                    self.v.copy_(v)
            return self.operator.apply(kernel, v).norm()

    def find(self, weight: Tensor, shape: tuple[int, ...]) -> None:
        """Finds v for inputs of `shape` from a start of its own: no random state moves, all processes agree."""
        # A buffer born in inference mode could never be trained with.
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
            kernel = _kernel(weight)
            start = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(kernel)
            self.v = self.operator.most_stretched(kernel, start, _WARM_UP_STEPS).to(self.v.dtype)

    def extra_repr(self) -> str:
        return f"coeff={self.coeff}, power_steps={self.power_steps}"


def _kernel(weight: Tensor) -> Tensor:
    weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
    return weight if weight.dim() > 2 else weight.unsqueeze(-1)


def spectral_norm(module: M, coeff: float = 3.0, power_steps: int = POWER_STEPS) -> M:
    """Keeps the Lipschitz constant of a layer below `coeff`, in place.

    The layer computes with W / max(1, σ / coeff), where σ is the largest singular value of the layer's linear map (bias
    left out) at the size of its input: for a linear layer or a 1x1 convolution that of the matrix, for any other
    convolution that of the convolution itself, with its stride, padding, dilation and groups. A weight is never scaled
    up. σ is differentiable in W.

    σ is found at the first batch, to well under 2 %, and never over-estimated. From then on each forward pass in
    training mode refines the singular vector behind it, which follows the weight through its updates, and starts anew
    when the input size changes; a forward pass in eval mode changes nothing. While weights change violently, as at the
    start of training with a high learning rate, σ may lag behind by several per cent for a few steps.

    A layer is initialised as usual before its first batch (`nn.init.kaiming_normal_(layer.weight)`); later, assign
    `layer.weight = tensor`, and σ is found anew at the next batch. The state dict of a network without spectral norm
    can be loaded as it is, with the same effect; for the way back see `bake`.

    Batch normalisation undoes the scale of the convolution before it, so together with plain batch-norm this bound is
    not one on the network: see `SpectralBatchNorm2d`.

    Args:
        module: `nn.Linear`, `nn.Conv1d`, `nn.Conv2d` or `nn.Conv3d`, padded with zeros.
        coeff: The largest norm allowed.
        power_steps: Products with AᵀA that refine the singular vector in a forward pass in training mode: each costs
            about two convolutions of a single input. Fewer suffice once the weights change slowly.

    Returns:
        The same module.

    >>> layer = spectral_norm(nn.Linear(2, 2, bias=False), coeff=3.0)
    >>> layer.weight = torch.tensor([[6.0, 0.0], [0.0, 2.0]])
    >>> layer(torch.eye(2))
    tensor([[3., 0.],
            [0., 1.]], grad_fn=<MmBackward0>)
    >>> spectral_sigma(layer)
    tensor(6.)
    """
    if not coeff > 0:
        raise InputError(f"The 'coeff' parameter of spectral_norm must be a positive number. Got {coeff} instead.")
    if power_steps < 1:
        raise InputError(f"The 'power_steps' parameter of spectral_norm must be 1 or more. Got {power_steps} instead.")
    if parametrize.is_parametrized(module, "weight"):
        raise InputError(
            "spectral_norm needs a layer with a plain weight. The weight of this layer is already parametrised; "
            "remove that with `bake` or `torch.nn.utils.parametrize.remove_parametrizations` first."
        )
    operator = Operator.of(module)
    norm = SpectralNorm(operator, module.get_parameter("weight"), coeff, power_steps)
    parametrize.register_parametrization(module, "weight", norm)
    norm.train(module.training)
    norm.handles = (
        module.register_forward_pre_hook(_see_input, with_kwargs=True),
        module.register_load_state_dict_pre_hook(_prepare_load),
    )
    return module


def spectral_sigma(module: nn.Module) -> Tensor:
    """The estimate of σ, the norm of a layer before it is normalised; its norm afterwards is min(σ, coeff)."""
    norm = find_spectral_norm(module)
    if norm is None:
        raise InputError(f"spectral_sigma needs a layer that went through spectral_norm. Got {module} instead.")
    if norm.unseen:
        raise NotFittedError(_UNSEEN)
    with torch.no_grad():
        return norm.sigma(module.get_parameter(_RAW))


def find_spectral_norm(module: nn.Module) -> SpectralNorm | None:
    """The spectral norm that sits on this very module."""
    if not parametrize.is_parametrized(module, "weight"):
        return None
    parametrizations: Any = module.parametrizations  # by attribute: torch.export of 2.6 cannot trace get_submodule
    first = parametrizations.weight[0]
    return first if isinstance(first, SpectralNorm) else None


def _see_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Forward pre-hook: a parametrization sees the weight alone, and the norm depends on the size of the input."""
    norm = find_spectral_norm(module)
    if norm is None or not (norm.unseen or norm.training):
        return
    shape = norm.operator.input_shape(args[0] if args else kwargs["input"])
    if norm.v.shape == shape:
        return
    if torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling():  # torch.export
        raise NotFittedError(_UNSEEN)
    # A search of many steps is no part of a compiled graph. As a decorator, `disable` would import the compiler.
    find: Any = torch.compiler.disable(norm.find) if torch.compiler.is_compiling() else norm.find
    find(module.get_parameter(_RAW), shape)


def _prepare_load(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Hook before load_state_dict: takes a plain weight for the raw one, and v of whatever input size was saved."""
    norm = find_spectral_norm(module)
    if norm is None:
        return
    if prefix + "weight" in state_dict:
        state_dict[prefix + _RAW] = state_dict.pop(prefix + "weight")
        state_dict[prefix + _VECTOR] = norm.v.new_empty(0)  # to be found at the next batch
    if prefix + _VECTOR in state_dict:
        norm.v = norm.v.new_empty(state_dict[prefix + _VECTOR].shape)


class SpectralConv2d(nn.Conv2d):
    """`nn.Conv2d` under `spectral_norm`; the same arguments, and those of `spectral_norm` by keyword."""

    def __init__(self, *args: Any, coeff: float = 3.0, power_steps: int = POWER_STEPS, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        spectral_norm(self, coeff, power_steps)


class SpectralLinear(nn.Linear):
    """`nn.Linear` under `spectral_norm`; the same arguments, and those of `spectral_norm` by keyword."""

    def __init__(self, *args: Any, coeff: float = 3.0, power_steps: int = POWER_STEPS, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        spectral_norm(self, coeff, power_steps)
