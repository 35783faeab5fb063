"""Tap the features of any classifier: what its head sees, logits = head(features).

The model is only looked at. One forward pass under a hook gives features and logits together; afterwards the
hook is gone and modes, parameters, buffers and random state are as before, also when the forward pass fails.

    _tapped      one forward pass, or words about inputs that the model cannot take
    _locate      which layer to tap: searched once, with one extra forward pass
    _capture     the tap itself: a hook a layer, one forward pass
    FeatureTap   remembers the place; `extract` runs it over a loader
"""

import difflib
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

from ddu.batches import aligned_labels, check_loader, split_batch
from ddu.errors import InputError, LayerError, NotFittedError
from ddu.forward import arguments, example_of, logits_in, misuse, run
from ddu.names import shown
from ddu.progress import track

FeatureSource: TypeAlias = str | nn.Module | Callable[..., Tensor] | Mapping[str, str] | None

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


def _is_function(features: object) -> TypeGuard[Callable[..., Tensor]]:
    return callable(features) and not isinstance(features, nn.Module)


def _pooled(value: object, source: str) -> Tensor:
    """Features (N, d) in memory of their own; maps (N, d, H, W) are averaged over their positions."""
    if isinstance(value, Tensor) and value.ndim == 2:
        return value.clone()  # a later layer may work in place
    if isinstance(value, Tensor) and value.ndim == 4:
        return value.mean(dim=(2, 3))
    raise LayerError(
        f"{source} is a {shown(value)}. Features must be (N, d), or maps (N, d, H, W) to average over positions: "
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
    modules, like = list(model.modules()), example_of(model)
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


def _tapped(model: nn.Module, inputs: Any, work: Callable[[], tuple[Tensor, Tensor]]) -> FeatureBatch:
    """The features and logits that `work` gets out of the model.

    Where that fails, or gives another number of rows than there are inputs, and the model takes the inputs in another
    form, the error says in which. A model that takes its batch as the second dimension takes no other form.
    """
    if isinstance(inputs, FeatureBatch):
        return inputs
    with _undisturbed(model):
        try:
            features, logits = work()
        except Exception as error:
            advice = misuse(model, inputs)
            if advice is None:
                raise
            raise InputError(advice) from error
        one_input = isinstance(inputs, Tensor | np.ndarray) and inputs.ndim
        if one_input and len(inputs) != len(logits) and (advice := misuse(model, inputs)):
            raise InputError(advice)
    return FeatureBatch(features.detach(), logits.detach().clone())


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
        logits = logits_in(run(model, model, inputs))

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
        logits = logits_in(run())
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
        raise InputError(
            "A described feature layer has a 'kind' ('input', 'output' or 'callable') and a 'layer'. "
            f"Got {dict(description)} instead."
        )
    if kind == "callable":
        raise LayerError(
            f"The features came from the callable {layer!r}, which text cannot hold: pass it again as features=."
        )
    return _Site(kind, layer)


def check_model(model: object) -> None:
    """Refuses what is not a network."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model= must be a torch.nn.Module. Got {shown(model)} instead.")


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
        check_model(model)
        if features is not None and not isinstance(features, str | Mapping) and not callable(features):
            raise InputError(
                "features= must be a layer's name, a module of the model, a callable, a description or None. "
                f"Got {shown(features)} instead."
            )
        self.model = model
        self.features = features
        self._site: _Site | None = None
        if isinstance(features, Mapping):
            self._site = _restored(features)
            _submodule(unwrapped(model), self._site.layer)
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
        model = unwrapped(self.model)
        return _tapped(model, inputs, lambda: self._work(model, inputs))

    def _work(self, model: nn.Module, inputs: Any) -> tuple[Tensor, Tensor]:
        if _is_function(self.features):
            features = _pooled(run(self.features, model, inputs), f"What {self.layer} returns")
            logits = logits_in(run(model, model, inputs))
        else:
            site = self._locate(model, inputs)
            (features,), logits = _capture(model, [site], lambda: run(model, model, inputs))
        if len(features) != len(logits):
            raise LayerError(
                f"The features from {self.layer!r} of the {type(model).__name__} have {len(features)} rows, and the "
                f"logits {len(logits)}: pass another layer, or a callable that returns (N, d)."
            )
        return features, logits

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
        check_model(model)
        self.model = model

    def __call__(self, inputs: Any) -> FeatureBatch:
        """Runs the model once, on inputs as `FeatureTap` takes them."""
        if isinstance(inputs, FeatureBatch):
            return inputs
        model = unwrapped(self.model)

        def work() -> tuple[Tensor, Tensor]:
            logits = logits_in(run(model, model, inputs))
            return logits, logits

        logits = _tapped(model, inputs, work).logits
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
        model = unwrapped(self.model)
        return _tapped(model, inputs, lambda: self._capture(model, inputs, lambda: run(model, model, inputs)))

    def descend(self, inputs: Any, score: Callable[[Tensor], Tensor], step: float) -> FeatureBatch:
        """The features of x - step · sign(∇ₓ score(features(x))), with the logits of x itself."""
        model = unwrapped(self.model)

        def moved_inputs() -> tuple[Tensor, Tensor]:
            args, kwargs = arguments(model, inputs)
            if len(args) != 1 or kwargs or not args[0].is_floating_point():
                raise InputError(
                    f"A step along the gradient needs a single input of floats. Got {shown(inputs)} instead."
                )
            with torch.enable_grad():
                x = args[0].requires_grad_()
                features, logits = self._capture(model, x, lambda: model(x.clone()))  # which may work in place
                (gradient,) = torch.autograd.grad(score(features).sum(), x)
            return x.detach() - step * gradient.sign(), logits

        with torch.inference_mode(False):
            x, logits, _ = _tapped(model, inputs, moved_inputs)
        return self(x)._replace(logits=logits)

    def _capture(self, model: nn.Module, inputs: Any, run: Callable[[], Any]) -> tuple[Tensor, Tensor]:
        sites = [tap._locate(model, inputs) for tap in self.taps]
        features, logits = _capture(model, sites, run)
        self.widths = [part.shape[1] for part in features]
        return torch.cat(features, 1), logits

    def __repr__(self) -> str:
        return f"LayersTap({', '.join(map(repr, self.taps))})"


# Over a loader


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
    check_loader(loader)
    return _extracted(tap, track(loader, "features", show=progress))


def _extracted(tap: Callable[[Any], FeatureBatch], items: Iterable[Any]) -> Iterator[FeatureBatch]:
    for item in items:
        inputs, labels = (item, item.labels) if isinstance(item, FeatureBatch) else split_batch(item)
        batch = tap(inputs)
        yield batch._replace(labels=aligned_labels(labels, batch.logits))
