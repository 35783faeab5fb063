"""Where features are taken, found in one forward pass: a named layer, the head, or the ends of a network's stages."""

import difflib
import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ddu.errors import FeatureError, LayerError
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
        _, heads, _ = _heads(model, {**linears, name: submodule(model, name)}, inputs)
        return Place("input" if name in heads else "output", name)

    ran, heads, logits = _heads(model, linears, inputs)
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


def _heads(model: nn.Module, layers: Mapping[str, nn.Module], inputs: Any) -> tuple[list[str], list[str], Tensor]:
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


# Stages, found by what happens in the forward pass; no list of architectures
#
# A *step* is a largest module across which the resolution falls at most once: a layer, a residual block, all of
# ResNet's `layer2`. The steps in the order in which they run are cut where the resolution falls. The pieces that learn
# are the stages, and a stage ends with what the first step after it is given. Where the resolution never falls, as in
# transformers and MLPs, the cuts are evenly chosen among the most of like blocks that run one after the other. The last
# stage ends with what the head sees.
#
# An end is named as the output of the step before the cut. Where something without a module lies between, such as
# `F.relu`, it is the input of the step after it.


_MOST = 4  # stages, the last ones: what nearly all networks have after their stem


class _Seen(NamedTuple):
    """A value that passed into or out of a module."""

    features: Tensor  # (N, d), averaged over positions
    positions: int  # pixels or tokens; 0 for (N, d)
    tokens: bool  # whether the features are on the last axis, in place of the second
    is_tensor: bool  # in place of the first in a tuple, list or mapping


@dataclass(eq=False)
class _Call:
    """A module that ran, and those that it ran."""

    name: str
    module: nn.Module
    order: int
    given: _Seen | None
    returned: _Seen | None = None
    inner: "list[_Call]" = field(default_factory=list)


class _End(NamedTuple):
    order: int
    place: Place
    seen: _Seen


def find_stages(model: nn.Module, inputs: Any) -> list[Place]:
    """The ends of a network's last stages, in the order of the forward pass; the last is what the head sees.

    Runs the model once. There are at most four stages; a fifth place is the head's where it sees something else than
    the average of the last stage. If nothing but the head is found, it is the only place.
    """
    root, head, failure = _watch(model, inputs)
    steps = list(_steps(root))
    cuts = [i for i in range(1, len(steps)) if _falls(_positions(steps[i - 1]), _positions(steps[i]))]
    ends = [
        _end(steps[:cut], steps[cut])
        for start, cut in zip([0, *cuts], cuts, strict=False)
        if any(_size(step) for step in steps[start:cut])
    ]
    if all(_positions(steps[cut]) <= 1 for cut in cuts):  # it falls at the head only
        ends += _ends_of_blocks(root)
    logits = _returned(root)
    if not _finite(logits.features).any():
        raise FeatureError(
            f"The logits of all {len(logits.features)} inputs are NaN or infinite, and the stages of a network are "
            "found by its values: check its weights and the inputs."
        )
    useful = (end for end in ends if end and not _same(end.seen, logits))  # a head that is not linear ends in them
    found = sorted(useful, key=lambda end: end.order)[-_MOST:]
    last = next((call.given for call in _walk(root) if head and call.name == head.layer), None) or logits
    after = [*(end.seen for end in found[1:]), last]
    places = [end.place for end, seen in zip(found, after, strict=False) if not _same(end.seen, seen)]
    if failure is not None and not places:
        raise failure
    return [*places, head] if head else places


# One forward pass


def _watch(model: nn.Module, inputs: Any) -> tuple[_Call, Place | None, LayerError | None]:
    """The tree of calls of modules that run once, and the head, or why there is none."""
    thread = threading.get_ident()
    top = _Call("", model, 0, None)
    running, counts, rows, aspect = [top], Counter[str](), -1, 1.0

    def before(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        nonlocal aspect
        if threading.get_ident() != thread:
            return
        value = next(chain(args, kwargs.values()), None)
        if module is model and isinstance(value, Tensor) and value.ndim == 4:
            aspect = value.shape[2] / value.shape[3]
        counts[name] += 1
        running.append(_Call(name, module, counts.total(), _seen(value, module, aspect)))

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        nonlocal rows
        if threading.get_ident() != thread:
            return
        if module is model:
            output = logits_in(output)
            rows = len(output)
        call = running.pop()
        call.returned = _seen(output, module, aspect)
        running[-1].inner.append(call)

    head = failure = None
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if "parametrizations" not in name.split("."):  # which run on weights
                hooks.enter_context(module.register_forward_pre_hook(partial(before, name), with_kwargs=True))
                hooks.enter_context(module.register_forward_hook(after))
        try:
            head = locate(model, None, inputs)
        except LayerError as error:
            failure = error

    (root,) = top.inner
    for call in list(_walk(root)):
        call.inner = [one for one in call.inner if counts[one.name] == 1]
        call.given, call.returned = (
            seen if seen and len(seen.features) == rows else None for seen in (call.given, call.returned)
        )
    return root, head, failure


def _seen(value: object, module: nn.Module, aspect: float) -> _Seen | None:
    """What is kept of a value: floats (N, d), (N, d, H, W), or with features last, (N, T, d) and (N, H, W, d)."""
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else [value]
    tensor = next((item for item in items if isinstance(item, Tensor)), None)
    if tensor is None or not tensor.is_floating_point() or tensor.ndim not in (2, 3, 4) or not tensor.numel():
        return None
    tokens = False
    if tensor.ndim == 3:
        # (N, d, T) of a Conv1d looks the same: only modules that work on the last axis say that it holds the features
        tokens = any(isinstance(m, nn.Linear | nn.LayerNorm) for m in module.modules())
        if not tokens or any(isinstance(m, nn.Conv1d) for m in module.modules()):
            return None
    elif tensor.ndim == 4:
        # Height and width are the two axes whose ratio is that of the image
        first, second = (abs(math.log(tensor.shape[i] / tensor.shape[i + 1] / aspect)) for i in (1, 2))
        tokens = first < second
    positions = 0 if tensor.ndim == 2 else (tensor.shape[1:-1] if tokens else tensor.shape[2:]).numel()
    return _Seen(pooled(tensor, tokens, "It"), positions, tokens, tensor is value)


def _walk(call: _Call) -> Iterator[_Call]:
    yield call
    for inner in call.inner:
        yield from _walk(inner)


# Cuts


def _steps(call: _Call) -> Iterator[_Call]:
    """The largest modules inside across which the resolution falls at most once."""
    for inner in call.inner:
        if inner.returned is None or _falls_twice(inner):
            yield from _steps(inner)
        else:
            yield inner


def _falls_twice(call: _Call) -> bool:
    inside = [_positions(one) for one in _walk(call) if one.returned]
    start = call.given.positions if call.given else max(inside)
    return any(_falls(start, middle) and _falls(middle, _positions(call)) for middle in inside)


def _falls(before: int, after: int) -> bool:
    """Whether both sides are about halved; convolutions without padding lower the resolution by less."""
    return after < 0.4 * before


def _ends_of_blocks(root: _Call) -> list[_End | None]:
    """Ends of like blocks, evenly chosen from those children of one module and of one class that learn the most."""
    groups: list[tuple[list[_Call], list[_Call]]] = []
    for parent in _walk(root):
        calls = [call for call in parent.inner if call.returned]
        for kind in {type(call.module): None for call in calls}:
            # an embedding is given token ids, of which nothing is seen
            blocks = [call for call in calls if type(call.module) is kind and call.given]
            if len(blocks) > 1 and any(map(_size, blocks)):
                groups.append((calls, blocks))
    if not groups:
        return []
    calls, blocks = max(groups, key=lambda group: sum(map(_size, group[1])))
    starts = sorted({len(blocks) * i // _MOST for i in range(1, _MOST)} - {0})
    return [_end(calls[: calls.index(blocks[i])], blocks[i]) for i in starts]


def _end(before: Sequence[_Call], after: _Call) -> _End | None:
    """The place between two steps."""
    last = before[-1]
    for earlier in reversed(before[:-1]):  # past modules that change nothing, such as Dropout
        if _size(last) or _positions(earlier) != _positions(last) or not _same(_returned(earlier), _returned(last)):
            break
        last = earlier
    output, given = _returned(last), after.given
    if given and given.is_tensor and not (output.is_tensor and _same(output, given)):
        return _End(after.order, _place("input", after, given), given)
    return _End(after.order, _place("output", last, output), output) if output.is_tensor else None


def _place(kind: str, call: _Call, seen: _Seen) -> Place:
    return Place(f"{kind} tokens" if seen.tokens else kind, call.name)


def _same(one: _Seen, other: _Seen) -> bool:
    """Whether two averages are equal up to rounding, in rows without NaN and infinity."""
    a, b = one.features, other.features
    if a.shape != b.shape or not (rows := _finite(a) & _finite(b)).any():
        return False
    a, b = a[rows], b[rows]
    tolerance = 16 * torch.finfo(a.dtype).eps * a.abs().max()
    return bool((a - b).abs().max() <= tolerance)


def _finite(features: Tensor) -> Tensor:
    return torch.isfinite(features).all(1)


def _returned(call: _Call) -> _Seen:
    assert call.returned is not None
    return call.returned


def _positions(call: _Call) -> int:
    return _returned(call).positions


def _size(call: _Call) -> int:
    return sum(p.numel() for p in call.module.parameters())
