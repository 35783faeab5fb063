"""Where the features are: the layer that people name, or the head, found in one forward pass."""

import difflib
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ddu.errors import LayerError
from ddu.features.forward import check_model, logits_in, run, unwrapped
from ddu.messages import shown


class Place(NamedTuple):
    """Where features are taken: the "input" or "output" of a layer, or from the "callable" of that name.

    Of "input tokens" and "output tokens" the features are on the last axis, (N, T, d) or (N, H, W, d).
    """

    kind: str
    layer: str


def locate(model: nn.Module, features: object, inputs: Any) -> Place:
    """The place that `features` means: a layer's name, a module of the model, or `None` for a search."""
    linears = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    kind = type(model).__name__
    if features is not None:
        names = [name for name, module in model.named_modules() if module is features]
        name = features if isinstance(features, str) else names[0] if names else None
        if name is None:
            raise LayerError(f"The {type(features).__name__} given as features= is not part of the {kind}.")
        if name == "":
            raise LayerError(f"features= is the whole {kind}: pass one of its layers.")
        _, heads, _ = _watch(model, {**linears, name: submodule(model, name)}, inputs)
        return Place("input" if name in heads else "output", name)

    ran, heads, logits = _watch(model, linears, inputs)
    if len(heads) == 1:
        return Place("input", heads[0])
    shape = tuple(logits.shape)
    if heads:
        text = f"{len(heads)} layers of the {kind} could be the head that gives its logits of shape {shape}:"
    else:
        text = f"No linear layer of the {kind} gives its logits of shape {shape}. "
        text += "The last linear layers that ran:" if ran else "No linear layer ran."
    lines = [
        f"  {name}: {type(linears[name]).__name__}({linears[name].in_features} -> {linears[name].out_features})"
        for name in (heads or ran)[-8:]
    ]
    way_out = "Pass features= a layer's name, a module, or a callable that returns (N, d) features."
    raise LayerError("\n".join([text, *lines, way_out]))


def _watch(model: nn.Module, layers: Mapping[str, nn.Module], inputs: Any) -> tuple[list[str], list[str], Tensor]:
    """Runs the model once with a hook on each of `layers`.

    A head gives the logits, value by value. Where none does, since a softmax or a temperature follows, every
    linear layer whose output has the shape of the logits may be the head.

    Returns:
        The names of the layers that ran, in that order; of those that may be the head; and the logits.
    """
    thread = threading.get_ident()
    rows: dict[str, list[Tensor]] = {}

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() != thread:
            return
        kept = rows.setdefault(name, [])
        # only what could be logits: a search must not hold all activations of a large network
        if isinstance(output, Tensor) and output.ndim >= 2 and output.shape[2:].numel() == 1:
            kept.append(output.flatten(1))

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(partial(note, name)))
        logits = logits_in(run(model, model, inputs))

    alike = {name: [r for r in kept if r.shape == logits.shape] for name, kept in rows.items()}
    equal = [n for n, kept in alike.items() if any(r is logits or _equal(r.to(logits), logits) for r in kept)]
    linear = [name for name, kept in alike.items() if kept and isinstance(layers[name], nn.Linear)]
    return list(rows), equal or linear, logits


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether all values are equal, but for rows with NaN, which equals nothing."""
    rows = ~other.isnan().any(1)
    return bool(rows.any()) and torch.equal(one[rows], other[rows])


def submodule(model: nn.Module, name: str) -> nn.Module:
    """A layer by its dotted name, or an error with the closest names."""
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        close = difflib.get_close_matches(name, [known for known, _ in model.named_modules()], n=3)
        hint = f"The closest are {close}" if close else f"It has {[known for known, _ in model.named_children()]}"
        raise LayerError(f"{type(model).__name__} has no layer {name!r}. {hint}.") from error


def find_layer(model: nn.Module, kind: type[nn.Module], way_out: str) -> str:
    """The name of the only layer of a kind."""
    check_model(model)
    names = [name for name, module in unwrapped(model).named_modules() if isinstance(module, kind)]
    if len(names) != 1:
        raise LayerError(
            f"This detector needs a network with one {kind.__name__}, and the {type(model).__name__} has {len(names)}: "
            f"train one that {way_out} makes."
        )
    return names[0]


def pooled(value: object, tokens: bool, source: str) -> Tensor:
    """Features (N, d) in memory of their own; maps (N, d, H, W) and tokens (N, T, d) are averaged over positions."""
    if isinstance(value, Tensor) and value.ndim == 2:
        return value.clone()  # a later layer may work in place
    if isinstance(value, Tensor) and tokens and value.ndim > 2:
        return value.flatten(1, -2).mean(1)
    if isinstance(value, Tensor) and value.ndim == 4:
        return value.mean(dim=(2, 3))
    raise LayerError(
        f"{source} is a {shown(value)}. Features must be (N, d), or maps (N, d, H, W) to average over positions: "
        "pass another layer, or a callable that returns (N, d)."
    )
