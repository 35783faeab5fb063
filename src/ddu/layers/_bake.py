"""Turns a normalised network into a plain one that computes the same."""

from typing import TypeVar, cast

import torch
from torch import nn
from torch.nn.utils import parametrize

from ddu.errors import NotFittedError
from ddu.layers.spectral import SpectralConv2d, SpectralLinear, find_spectral_norm
from ddu.layers.spectral_batch_norm import SpectralBatchNorm1d, SpectralBatchNorm2d

M = TypeVar("M", bound=nn.Module)

_PLAIN = {
    SpectralBatchNorm1d: nn.BatchNorm1d,
    SpectralBatchNorm2d: nn.BatchNorm2d,
    SpectralConv2d: nn.Conv2d,
    SpectralLinear: nn.Linear,
}


@torch.no_grad()
def bake(model: M) -> M:
    """Folds spectral norms into plain weights, in place; the outputs in eval mode stay the same.

    For deployment, and to move weights into a network without spectral norm:
    `plain.load_state_dict(bake(copy.deepcopy(model)).state_dict())`.

    Returns:
        The same model, made of plain layers.

    >>> layer = SpectralLinear(2, 2, bias=False, coeff=1.0)
    >>> layer.weight = torch.tensor([[4.0, 0.0], [0.0, 2.0]])
    >>> y = layer(torch.ones(1, 2))
    >>> bake(layer)
    Linear(in_features=2, out_features=2, bias=False)
    >>> layer.weight
    Parameter containing:
    tensor([[1.0000, 0.0000],
            [0.0000, 0.5000]], requires_grad=True)
    """
    unseen = [name for name, m in model.named_modules() if (n := find_spectral_norm(m)) is not None and n.unseen]
    if unseen:
        raise NotFittedError(
            f"The norm of {', '.join(repr(name) for name in unseen)} is unknown before the first batch: "
            "run one forward pass through the network, then bake."
        )
    for module in list(model.modules()):
        norm = find_spectral_norm(module)
        if norm is not None:
            norm.eval()  # fold the weight as it is, without another power step
            for handle in norm.handles:
                handle.remove()
            # Removal edits the class of the module, which deep copies share: give this module its own class.
            shared = type(module)
            own = type(shared.__name__, shared.__bases__, dict(vars(shared)))
            module.__class__ = cast(type[nn.Module], own)
            parametrize.remove_parametrizations(module, "weight")
        if isinstance(module, SpectralBatchNorm1d | SpectralBatchNorm2d):
            module.weight.copy_(module.bounded_weight())
        module.__class__ = _PLAIN.get(type(module), type(module))
    return model
