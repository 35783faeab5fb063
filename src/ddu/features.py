"""Tap the features of any classifier: what its head sees, logits = head(features).

The model is only looked at. One forward pass under a hook gives features and logits together; afterwards the
hook is gone and modes, parameters, buffers and random state are as before, also when the forward pass fails.

    _arguments   inputs as the model takes them: its device, its precision, its argument names
    _logits      the logits in whatever the model returned
    _locate      which layer to tap: searched once, with one extra forward pass
    _capture     the tap itself: a hook a layer, one forward pass
    FeatureTap   remembers the place; `extract` runs it over a loader
"""

import difflib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.random import fork_rng

from ddu.errors import InputError, LabelError, LayerError, NotFittedError
from ddu.progress import track

FeatureSource: TypeAlias = str | nn.Module | Callable[..., Tensor] | Mapping[str, str] | None

_LABEL_KEYS = ("labels", "label", "targets", "target", "y")
_COMPILER = threading.RLock()


class FeatureBatch(NamedTuple):
    """One batch as the network saw it."""

    features: Tensor  # (N, d)
    logits: Tensor  # (N, C)
    labels: Tensor | None = None  # (N,)


class Tap(Protocol):
    """What runs a model on inputs; a batch that was extracted before is returned as it is."""

    model: nn.Module

    def __call__(self, inputs: Any) -> FeatureBatch: ...


class _Site(NamedTuple):
    """Where features are taken: the "input" or "output" of a layer, or from the "callable" of that name."""

    kind: str
    layer: str


def _shown(value: object) -> str:
    """What a value is, for a message."""
    name = type(value).__name__
    if isinstance(value, Tensor | np.ndarray):
        return f"{name} of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"{name} with keys {list(value)}"
    if isinstance(value, tuple | list):
        return f"{name} of [{', '.join(type(item).__name__ for item in value[:4])}{', ...' * (len(value) > 4)}]"
    return "None" if value is None else name


def _is_function(features: object) -> TypeGuard[Callable[..., Tensor]]:
    return callable(features) and not isinstance(features, nn.Module)


# Into the model and out of it


def _example(model: nn.Module) -> Tensor | None:
    """The first floating tensor of a model: its device and precision are those of the inputs."""
    return next((p for p in chain(model.parameters(), model.buffers()) if p.dtype.is_floating_point), None)


def _placed(value: Any, like: Tensor | None) -> Any:
    """A copy of a tensor or array on the model's device and, of floats, in its precision; others as they are."""
    if isinstance(value, np.ndarray):
        try:
            value = torch.from_numpy(np.array(value))  # a copy: arrays may be read-only or run backwards
        except TypeError as error:
            raise InputError(f"The inputs must be numbers. Got an array of {value.dtype} instead.") from error
    if not isinstance(value, Tensor):
        return value
    if value.dtype == torch.uint8:
        raise InputError(
            f"The inputs are uint8, of shape {tuple(value.shape)}: scale them to floats as in training, for "
            "instance images.float() / 255. If the model takes bytes and scales them itself, pass images.int()."
        )
    device = value.device if like is None else like.device
    dtype = like.dtype if like is not None and value.is_floating_point() else value.dtype
    return value.detach().to(device, dtype, copy=True)  # a model that works in place must not change its input


def _arguments(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments of one forward pass."""
    like = _example(model)
    items = inputs if isinstance(inputs, Mapping | tuple | list) else (inputs,)
    values = [_placed(value, like) for value in (items.values() if isinstance(items, Mapping) else items)]
    if not any(isinstance(value, Tensor) for value in values):
        raise InputError(
            "The inputs must be a tensor or an array, or a tuple, list or mapping of them. "
            f"Got {_shown(inputs)} instead."
        )
    if not isinstance(items, Mapping):
        return tuple(values), {}
    named = dict(zip(items, values, strict=True))
    signature = inspect.signature(model.forward)
    try:
        signature.bind(**named)
    except TypeError as error:
        if len(values) == 1:
            return tuple(values), {}
        raise InputError(
            f"{type(model).__name__} takes ({', '.join(signature.parameters)}). "
            f"Got inputs with keys {list(named)} instead."
        ) from error
    return (), named


def _run(function: Callable[..., Any], model: nn.Module, inputs: Any) -> Any:
    """Calls the model, or a function in its place, with copies of the inputs."""
    args, kwargs = _arguments(model, inputs)
    return function(*args, **kwargs)


def _logits(output: Any) -> Tensor:
    """The logits (N, C) in what a model returned."""
    if isinstance(output, Mapping):
        logits = output.get("logits")
    elif hasattr(output, "logits"):
        logits = output.logits
    elif isinstance(output, tuple | list):
        logits = next((item for item in output if isinstance(item, Tensor)), None)
    else:
        logits = output
    if not isinstance(logits, Tensor):
        raise InputError(
            "The model must return its logits: a tensor, a mapping or an object with 'logits', or a tuple that "
            f"starts with them. Got {_shown(output)} instead."
        )
    if logits.ndim != 2:
        raise InputError(
            f"The model's logits must have the shape (N, C). Got {tuple(logits.shape)} instead; "
            "a single input needs a batch dimension, x[None]."
        )
    return logits


def _pooled(value: object, source: str) -> Tensor:
    """Features (N, d) in memory of their own; maps (N, d, H, W) are averaged over their positions."""
    if isinstance(value, Tensor) and value.ndim == 2:
        return value.clone()  # a later layer may work in place
    if isinstance(value, Tensor) and value.ndim == 4:
        return value.mean(dim=(2, 3))
    raise LayerError(
        f"{source} is a {_shown(value)}. Features must be (N, d), or maps (N, d, H, W) to average over positions: "
        "pass another layer, or a callable that returns (N, d)."
    )


# Leaving the model as it was


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside the wrappers of parallel training and torch.compile, which rename its layers."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model.get_submodule("_orig_mod")
        else:
            return model


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; each module's mode and the random state come back, whatever happens."""
    modules, like = list(model.modules()), _example(model)
    device = None if like is None or like.device.type in ("cpu", "meta") else like.device
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(fork_rng([device], device_type=device.type) if device else fork_rng([]))
        if any(m._compiled_call_impl is not None or "_orig_mod" in m._modules for m in modules):
            # compiled code does not see later hooks; the stance is of the whole process: one thread at a time
            stack.enter_context(_COMPILER)
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module in modules:
            if module.training:
                stack.callback(setattr, module, "training", True)
                module.training = False
        yield


# Finding the layer


def _submodule(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        close = difflib.get_close_matches(name, [known for known, _ in model.named_modules()], n=3)
        hint = f"The closest are {close}" if close else f"It has {[known for known, _ in model.named_children()]}"
        raise LayerError(f"{type(model).__name__} has no layer {name!r}. {hint}.") from error


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
        logits = _logits(_run(model, model, inputs))

    alike = {name: [r for r in kept if r.shape == logits.shape] for name, kept in rows.items()}
    equal = [n for n, kept in alike.items() if any(r is logits or torch.equal(r.to(logits), logits) for r in kept)]
    linear = [name for name, kept in alike.items() if kept and isinstance(layers[name], nn.Linear)]
    return list(rows), equal or linear, logits


def _locate(model: nn.Module, features: object, inputs: Any) -> _Site:
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
        _, heads, _ = _watch(model, {**linears, name: _submodule(model, name)}, inputs)
        return _Site("input" if name in heads else "output", name)

    ran, heads, logits = _watch(model, linears, inputs)
    if len(heads) == 1:
        return _Site("input", heads[0])
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


# Tapping it


def _capture(model: nn.Module, sites: Sequence[_Site], run: Callable[[], Any]) -> tuple[list[Tensor], Tensor]:
    """Features at each of some layers, and logits, while `run` runs the model once."""
    with ExitStack() as hooks:
        kept = [hooks.enter_context(_features_at(model, site)) for site in sites]
        logits = _logits(run())
    for site, seen in zip(sites, kept, strict=True):
        if len(seen) != 1:
            times = f"runs {len(seen)} times" if seen else "does not run"
            raise LayerError(
                f"The {_described(model, site)} {times} in a forward pass of the {type(model).__name__}, and features "
                "need a layer that runs once: pass another layer, or a callable that returns (N, d)."
            )
    return [seen[0] for seen in kept], logits


def _described(model: nn.Module, site: _Site) -> str:
    return f"layer {site.layer!r} ({type(_submodule(model, site.layer)).__name__})"


@contextmanager
def _features_at(model: nn.Module, site: _Site) -> Iterator[list[Tensor]]:
    """The features that pass a layer while the model runs."""
    layer = _submodule(model, site.layer)
    thread = threading.get_ident()  # others may run the same model at the same time
    seen: list[Tensor] = []

    def keep(value: object) -> None:
        if threading.get_ident() == thread:
            seen.append(_pooled(value, f"The {site.kind} of the {_described(model, site)}"))

    # Another thread may meet the hook before torch has noted that it takes keyword arguments
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] = MappingProxyType({})) -> None:
        keep(next(chain(args, kwargs.values()), None))

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        keep(output)

    if site.kind == "input":
        hook = layer.register_forward_pre_hook(before, with_kwargs=True)
    else:
        hook = layer.register_forward_hook(after)
    with hook:
        yield seen


def _restored(description: Mapping[str, str]) -> _Site:
    """The inverse of `FeatureTap.describe`."""
    kind, layer = description.get("kind"), description.get("layer")
    if kind not in ("input", "output", "callable") or not isinstance(layer, str):
        raise LayerError(
            "A described feature layer has a 'kind' ('input', 'output' or 'callable') and a 'layer'. "
            f"Got {dict(description)} instead."
        )
    if kind == "callable":
        raise LayerError(
            f"The features came from the callable {layer!r}, which text cannot hold: pass it again as features=."
        )
    return _Site(kind, layer)


class FeatureTap:
    """Runs a model and returns its logits together with the features that its head saw.

    Args:
        model: Any classifier. Of a parallel or compiled one, the plain network inside is run.
        features: Where the features are.

            - `None`: the input of the linear layer that gives the logits. It is searched on the first call, which
              costs one more forward pass.
            - A layer, by dotted name or as a module: its output. If the layer gives the logits it is the head, and
              naming it means what it sees: its input.
            - A callable, called like the model, in evaluation mode.
            - What `describe` returned: exactly that place, without a search.

    Features are (N, d); maps (N, d, H, W) are averaged over their positions. Features and logits are in the
    model's precision and on its device, detached, in memory of their own. Several threads may tap a model that is
    in evaluation mode.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> tap = FeatureTap(model)
    >>> features, logits, _ = tap(torch.zeros(5, 4))
    >>> features.shape, logits.shape
    (torch.Size([5, 8]), torch.Size([5, 3]))
    >>> tap.describe()
    {'kind': 'input', 'layer': '2'}
    >>> FeatureTap(model, tap.describe())
    FeatureTap(Sequential, input of '2')
    """

    def __init__(self, model: nn.Module, features: FeatureSource = None):
        if not isinstance(model, nn.Module):
            raise InputError(
                f"The 'model' parameter of FeatureTap must be a torch.nn.Module. Got {_shown(model)} instead."
            )
        if features is not None and not isinstance(features, str | Mapping) and not callable(features):
            raise InputError(
                "The 'features' parameter of FeatureTap must be a layer's name, a module, a callable, a "
                f"description or None. Got {_shown(features)} instead."
            )
        self.model = model
        self.features = features
        self._site: _Site | None = None
        if isinstance(features, Mapping):
            self._site = _restored(features)
        elif _is_function(features):
            self._site = _Site("callable", getattr(features, "__qualname__", type(features).__name__))

    def __call__(self, inputs: Any) -> FeatureBatch:
        """Runs the model once.

        Args:
            inputs: A tensor or an array; a tuple or list of them for `model(*inputs)`; a mapping for
                `model(**inputs)`, whose only entry goes in by position if the model has no such argument.
                All are moved to the model's device, and floats to its precision; integers stay integers. A
                `FeatureBatch` that was extracted before is returned as it is.
        """
        if isinstance(inputs, FeatureBatch):
            return inputs
        model = unwrapped(self.model)
        with _undisturbed(model):
            if _is_function(self.features):
                features = _pooled(_run(self.features, model, inputs), f"What {self.layer} returns")
                logits = _logits(_run(model, model, inputs))
            else:
                site = self._locate(model, inputs)
                (features,), logits = _capture(model, [site], lambda: _run(model, model, inputs))
        if len(features) != len(logits):
            raise LayerError(
                f"{self} gives {len(features)} rows of features and {len(logits)} rows of logits: pass another "
                "layer, or a callable that returns (N, d)."
            )
        return FeatureBatch(features.detach(), logits.detach().clone())

    def _locate(self, model: nn.Module, inputs: Any) -> _Site:
        if self._site is None:
            self._site = _locate(model, self.features, inputs)
        return self._site

    @property
    def layer(self) -> str | None:
        """The tapped layer's dotted name, or the callable's name; `None` until it is found."""
        if self._site is not None:
            return self._site.layer
        return self.features if isinstance(self.features, str) else None

    @property
    def is_located(self) -> bool:
        """Whether the place of the features is known."""
        return self._site is not None

    def describe(self) -> dict[str, str]:
        """The tapped place as JSON-ready text: `FeatureTap(model, description)` taps it again."""
        if self._site is None:
            raise NotFittedError("The feature layer is found on the first call: run a batch through the tap first.")
        return self._site._asdict()

    def place(self) -> dict[str, str] | str | None:
        """Where the features are, as JSON: as found by a forward pass or, where none has run, as asked for."""
        if self.is_located:
            return self.describe()
        if isinstance(self.features, nn.Module):
            names = [name for name, module in unwrapped(self.model).named_modules() if module is self.features]
            return names[0] if names else None
        return self.layer

    def __repr__(self) -> str:
        place = f"{self._site.kind} of {self._site.layer!r}" if self._site else f"features={self.layer!r}"
        return f"FeatureTap({type(unwrapped(self.model)).__name__}, {place})"


class LogitsTap:
    """Runs a model for its logits alone, wherever its features are; in the batch, the logits stand for the features."""

    def __init__(self, model: nn.Module):
        if not isinstance(model, nn.Module):
            raise InputError(f"The model must be a torch.nn.Module. Got {_shown(model)} instead.")
        self.model = model

    def __call__(self, inputs: Any) -> FeatureBatch:
        """Runs the model once, on inputs as `FeatureTap` takes them."""
        if isinstance(inputs, FeatureBatch):
            return inputs
        model = unwrapped(self.model)
        with _undisturbed(model):
            logits = _logits(_run(model, model, inputs)).detach().clone()
        return FeatureBatch(logits, logits)

    def __repr__(self) -> str:
        return f"LogitsTap({type(unwrapped(self.model)).__name__})"


class LayersTap:
    """Taps several layers in one forward pass; in the batch, their features stand side by side.

    Args:
        model: Any classifier.
        layers: Layers as `FeatureTap` takes them, without callables.

    Attributes:
        widths: How many features each layer has; known after the first call.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> tap = LayersTap(model, ["0", "2"])
    >>> tap(torch.zeros(5, 4)).features.shape, tap.widths
    (torch.Size([5, 16]), [8, 8])
    """

    def __init__(self, model: nn.Module, layers: Sequence[FeatureSource]):
        if any(_is_function(layer) for layer in layers):
            raise InputError("Layers must be names or modules of the model, which a callable is not.")
        self.model = model
        self.taps = [FeatureTap(model, layer) for layer in layers]
        self.widths: list[int] | None = None

    def __call__(self, inputs: Any) -> FeatureBatch:
        """Runs the model once, on inputs as `FeatureTap` takes them."""
        if isinstance(inputs, FeatureBatch):
            return inputs
        model = unwrapped(self.model)
        with _undisturbed(model):
            features, logits = self._capture(model, inputs, lambda: _run(model, model, inputs))
        return FeatureBatch(features.detach(), logits.detach().clone())

    def descend(self, inputs: Any, score: Callable[[Tensor], Tensor], step: float) -> FeatureBatch:
        """The features of x - step · sign(∇ₓ score(features(x))), with the logits of x itself."""
        model = unwrapped(self.model)
        with torch.inference_mode(False), _undisturbed(model):
            args, kwargs = _arguments(model, inputs)
            if len(args) != 1 or kwargs or not args[0].is_floating_point():
                raise InputError(
                    f"A step along the gradient needs a single input of floats. Got {_shown(inputs)} instead."
                )
            with torch.enable_grad():
                x = args[0].requires_grad_()
                features, logits = self._capture(model, x, lambda: model(x.clone()))  # which may work in place
                (gradient,) = torch.autograd.grad(score(features).sum(), x)
        return self(x.detach() - step * gradient.sign())._replace(logits=logits.detach().clone())

    def _capture(self, model: nn.Module, inputs: Any, run: Callable[[], Any]) -> tuple[Tensor, Tensor]:
        sites = [tap._locate(model, inputs) for tap in self.taps]
        features, logits = _capture(model, sites, run)
        self.widths = [part.shape[1] for part in features]
        return torch.cat(features, 1), logits

    def __repr__(self) -> str:
        return f"LayersTap({', '.join(map(repr, self.taps))})"


# Over a loader


def _split(batch: Any) -> tuple[Any, Any]:
    """The inputs and the labels of what a loader gave."""
    if isinstance(batch, FeatureBatch):
        return batch, batch.labels
    if isinstance(batch, Mapping):
        key = next((key for key in _LABEL_KEYS if key in batch), None)
        if key is not None and len(batch) > 1:
            return {name: value for name, value in batch.items() if name != key}, batch[key]
    elif isinstance(batch, tuple | list) and len(batch) > 1:
        *inputs, labels = batch
        return inputs[0] if len(inputs) == 1 else tuple(inputs), labels
    raise InputError(
        "The loader must give (inputs, labels), or a mapping of inputs with the labels under "
        f"{', '.join(map(repr, _LABEL_KEYS[:-1]))} or {_LABEL_KEYS[-1]!r}. Got {_shown(batch)} instead."
    )


def _aligned(labels: Any, logits: Tensor) -> Tensor:
    """Labels (N,) as a tensor beside their logits."""
    try:
        values = np.array(labels) if isinstance(labels, np.ndarray) else labels  # arrays may be read-only
        tensor = torch.as_tensor(values, device=logits.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LabelError(f"The loader's labels must be integers. Got {_shown(labels)} instead.") from error
    if tensor.shape != logits.shape[:1]:
        raise LabelError(
            f"The loader's labels must have the shape ({len(logits)},), one for each input. "
            f"Got {tuple(tensor.shape)} instead."
        )
    return tensor


def extract(
    tap: Callable[[Any], FeatureBatch], loader: Iterable[Any], *, progress: bool | None = None
) -> Iterator[FeatureBatch]:
    """Streams the features, logits and labels of a loader, one batch in memory at a time.

    Args:
        tap: What runs the model: a `FeatureTap` or another `Tap`.
        loader: Gives (inputs, labels), or (input, ..., input, labels), or a mapping with the labels under
            "labels", "label", "targets", "target" or "y" and the model's inputs in the rest; or batches with labels
            that were extracted before.
        progress: `True` shows a bar, `False` none; by default one appears if it takes long, on a terminal.

    >>> tap = FeatureTap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> loader = [(torch.zeros(5, 4), torch.arange(5) % 3), (torch.zeros(2, 4), [0, 1])]
    >>> [(tuple(features.shape), labels.tolist()) for features, logits, labels in extract(tap, loader)]
    [((5, 8), [0, 1, 2, 0, 1]), ((2, 8), [0, 1])]
    """
    for item in track(loader, "features", show=progress):
        inputs, labels = _split(item)
        batch = tap(inputs)
        yield batch._replace(labels=_aligned(labels, batch.logits))
