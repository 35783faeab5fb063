"""Makes an existing network sensitive and smooth: spectral norm, leaky ReLU, pooled shortcuts.

The networks of `ddu.models` are built that way; this is for those of torchvision, timm and others. Layers are found
by their type, and shortcuts by the names that residual blocks give them. Functional calls (`F.relu`) cannot be replaced
and stay.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from ddu.errors import InputError
from ddu.layers import POWER_STEPS, AvgPoolShortcut, spectral_norm

_SHORTCUT_NAMES = ("downsample", "shortcut", "proj")  # torchvision's and timm's ResNets; ours; torchvision's RegNets
_NORMS = nn.BatchNorm2d | nn.GroupNorm | nn.Identity
_ORDINARY = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)
_SLOPE = 0.01


@dataclass(frozen=True)
class Change:
    """One layer, before and after."""

    layer: str
    was: str
    now: str


@dataclass(frozen=True)
class SurgeryReport:
    """What `regularise` changed, and what it left as it was and why; prints as a table."""

    spectral_norms: tuple[Change, ...]
    activations: tuple[Change, ...]
    shortcuts: tuple[Change, ...]
    left: tuple[Change, ...]

    def __str__(self) -> str:
        summary = (
            f"spectral norms: {len(self.spectral_norms)}, activations: {len(self.activations)}, "
            f"shortcuts: {len(self.shortcuts)}, left as they were: {len(self.left)}"
        )
        rows = [("layer", "was", "now")]
        rows += [(c.layer, c.was, c.now) for c in self.spectral_norms + self.activations + self.shortcuts + self.left]
        first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
        return "\n".join([summary, "", *(f"{a:{first}}  {b:{second}}  {c}" for a, b, c in rows)])


def regularise(
    model: nn.Module, coeff: float = 3.0, *, power_steps: int = POWER_STEPS, head: str | None = None
) -> SurgeryReport:
    """Gives a network spectral norm, leaky ReLU and pooled shortcuts, in place.

    - Convolutions and hidden linear layers keep their weights and go through `spectral_norm`.
    - `nn.ReLU` becomes `nn.LeakyReLU(0.01)`.
    - A shortcut that is a strided 1x1 convolution, with or without a norm, becomes `AvgPoolShortcut`. Its weights have
      no counterpart and are dropped, so a trained network needs some more training afterwards. A 1x1 convolution
      without a stride sees every pixel and stays.

    Args:
        model: Any network, trained or not. A second call changes nothing more.
        coeff: The largest spectral norm allowed.
        power_steps: As in `ddu.layers.spectral_norm`.
        head: The name of the layer that gives the logits, which is left alone; by default the last `nn.Linear`, or
            the last 1x1 convolution of a network that has none.

    Returns:
        The report of what was changed and what was not.

    Raises:
        InputError: The head cannot be found. Nothing has been changed then.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    >>> print(regularise(model))
    spectral norms: 1, activations: 1, shortcuts: 0, left as they were: 1
    <BLANKLINE>
    layer  was                now
    0      Conv2d(3, 8, 3x3)  spectral norm at most 3
    1      ReLU               LeakyReLU(0.01)
    4      Linear(8, 2)       unchanged: the head
    """
    head = _find_head(model, head)
    projections = _find_projections(model)
    spectral_norms, left = _normalise(model, coeff, power_steps, apart=(head, *projections))
    activations = _leak(model)
    shortcuts = _pool(model, projections)
    left.append(Change(head, _describe(model.get_submodule(head)), "unchanged: the head"))
    return SurgeryReport(tuple(spectral_norms), tuple(activations), tuple(shortcuts), tuple(left))


def _find_head(model: nn.Module, head: str | None) -> str:
    """The name of the layer that gives the logits."""
    names = [name for name, _ in model.named_modules() if name]
    if head is not None and head not in names:
        raise InputError(f"The network has no layer {head!r} to be its head; its last layer is {names[-1]!r}.")
    if head is not None:
        return head
    modules = [(name, model.get_submodule(name)) for name in names]
    linears = [name for name, module in modules if isinstance(module, nn.Linear)]
    pointwise = [name for name, module in modules if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1)]
    if not linears and not pointwise:
        raise InputError(
            "The network has no nn.Linear and no 1x1 convolution to be its head: name the layer that gives the "
            "logits, head=..."
        )
    return (linears or pointwise)[-1]


def _find_projections(model: nn.Module) -> dict[str, nn.Conv2d]:
    """The shortcuts that `AvgPoolShortcut` can stand in for, by name: one strided 1x1 convolution, perhaps a norm."""
    found = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in _SHORTCUT_NAMES:
            parts = list(_parts(module))
            convs = [part for part in parts if isinstance(part, nn.Conv2d)]
            if len(convs) == 1 and all(isinstance(part, nn.Conv2d | _NORMS) for part in parts) and _poolable(convs[0]):
                found[name] = convs[0]
    return found


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The layers inside a module; a convolution is one layer, parametrised or not."""
    children = list(module.children())
    if isinstance(module, nn.Conv2d) or not children:
        yield module
    else:
        for child in children:
            yield from _parts(child)


def _poolable(conv: nn.Conv2d) -> bool:
    """Whether pooling gives the same shape: ceil(size / stride) pixels, and no fewer channels than before."""
    square = conv.stride[0] == conv.stride[1] > 1
    return conv.kernel_size == (1, 1) and square and not any(conv.padding) and conv.out_channels >= conv.in_channels


def _normalise(
    model: nn.Module, coeff: float, power_steps: int, apart: tuple[str, ...]
) -> tuple[list[Change], list[Change]]:
    """Spectral norm on every layer with a matrix, those inside `apart` left out: what was changed, what was left."""
    changed, left = [], []
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear | _ConvNd) or any(f"{name}.".startswith(f"{other}.") for other in apart):
            continue
        was = _describe(module)
        obstacle = _obstacle(model, name, module)
        if obstacle is None:
            spectral_norm(module, coeff, power_steps).train(module.training)  # in the mode of the layer, all of it
            changed.append(Change(name, was, f"spectral norm at most {coeff:g}"))
        else:
            left.append(Change(name, was, f"unchanged: {obstacle}"))
    return changed, left


def _obstacle(model: nn.Module, name: str, module: nn.Linear | _ConvNd) -> str | None:
    """The reason why a layer cannot have a spectral norm, or None."""
    if parametrize.is_parametrized(module, "weight"):
        return "its weight is parametrised already"
    if isinstance(model.get_submodule(name.rpartition(".")[0]), nn.MultiheadAttention):
        return "the attention around it reads its weight past it"
    if type(module).forward not in _ORDINARY:
        return "it computes with its weight in a way of its own"
    if isinstance(module, _ConvNd) and module.padding_mode != "zeros":
        return f"its padding is {module.padding_mode!r}, not zeros"
    return None


def _leak(model: nn.Module) -> list[Change]:
    """Leaky ReLU for ReLU; one that is used in several places stays one."""
    leaky: dict[nn.Module, nn.Module] = {}
    changes = []
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, nn.ReLU) and name:
            if module not in leaky:
                leaky[module] = nn.LeakyReLU(_SLOPE, inplace=module.inplace).train(module.training)
            model.set_submodule(name, leaky[module])
            changes.append(Change(name, "ReLU", f"LeakyReLU({_SLOPE})"))
    return changes


def _pool(model: nn.Module, projections: dict[str, nn.Conv2d]) -> list[Change]:
    """Average-pooled shortcuts for projections."""
    changes = []
    for name, conv in projections.items():
        projection = model.get_submodule(name)
        was = " + ".join(_describe(part) for part in _parts(projection) if not isinstance(part, nn.Identity))
        pooled = AvgPoolShortcut(conv.in_channels, conv.out_channels, conv.stride[0])
        model.set_submodule(name, pooled.train(projection.training))
        changes.append(Change(name, was, str(pooled)))
    return changes


def _describe(module: nn.Module) -> str:
    if isinstance(module, nn.Linear):
        return f"Linear({module.in_features}, {module.out_features})"
    if isinstance(module, _ConvNd):
        kernel = "x".join(map(str, module.kernel_size))
        stride = f", stride {max(module.stride)}" if max(module.stride) > 1 else ""
        kind = type(module).__name__.removeprefix("Parametrized")
        return f"{kind}({module.in_channels}, {module.out_channels}, {kernel}{stride})"
    return type(module).__name__
