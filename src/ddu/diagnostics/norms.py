"""How far each layer stretches its inputs: the largest singular value of its linear map, as the network uses it."""

from contextlib import ExitStack
from typing import Any, NamedTuple

from torch import nn

from ddu.errors import NotSupportedError
from ddu.features import Tap, unwrapped
from ddu.layers.spectral import Operator, find_spectral_norm, operator_norm

_FORWARDS = {kind.forward for kind in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)}


class LayerNorm(NamedTuple):
    """The norm of one layer.

    Attributes:
        layer: Its dotted name.
        kind: Its type.
        norm: The largest singular value of its linear map at the size of its input.
        bound: The coefficient of its spectral norm; None where it has none.
    """

    layer: str
    kind: str
    norm: float
    bound: float | None


def layer_norms(tap: Tap, inputs: Any) -> list[LayerNorm]:
    """The norms of all linear layers and convolutions that run, in the order in which they do.

    Args:
        tap: Runs the network.
        inputs: One batch, which decides the sizes of the layers' inputs.
    """
    found: dict[str, LayerNorm] = {}

    def measure(name: str, module: nn.Module, operator: Operator, args: tuple[Any, ...], kwargs: Any) -> None:
        if name not in found:  # a layer that runs again has the same weight
            bound = find_spectral_norm(module)
            norm = operator_norm(module, operator.input_shape(args[0] if args else kwargs["input"]))
            kind = type(module).__name__.removeprefix("Parametrized")
            found[name] = LayerNorm(name, kind, norm, None if bound is None else bound.coeff)

    with ExitStack() as hooks:
        for name, module in unwrapped(tap.model).named_modules():
            if type(module).forward not in _FORWARDS:
                continue  # no linear layer, or one that does more, such as padding of its own
            try:
                operator = Operator.of(module)
            except NotSupportedError:
                continue

            def see(module: nn.Module, args: Any, kwargs: Any, name: str = name, operator: Operator = operator) -> None:
                measure(name, module, operator, args, kwargs)

            handle = module.register_forward_pre_hook(see, with_kwargs=True)
            hooks.callback(handle.remove)
        tap(inputs)
    return list(found.values())
