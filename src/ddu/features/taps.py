"""Taps run a model and give its logits together with the features at one or several of its layers.

The model is only looked at. One forward pass under hooks gives features and logits together; afterwards the hooks are
gone and modes, parameters, buffers and random state are as before, also when the forward pass fails.

    FeatureTap   one layer: what the head sees, logits = head(features), unless another is named
    LayersTap    several layers side by side
    LogitsTap    the logits alone
    SharedTap    all layers of several taps in one pass; each gets its own batch from it
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn

from ddu.errors import InputError, LayerError, NotFittedError
from ddu.features.forward import arguments, check_model, logits_in, observed, run, unwrapped
from ddu.features.locate import Place, locate, submodule
from ddu.messages import shown

FeatureSource: TypeAlias = str | nn.Module | Callable[..., Tensor] | Mapping[str, str] | None


class FeatureBatch(NamedTuple):
    """One batch as the network saw it."""

    features: Tensor  # (N, d)
    logits: Tensor  # (N, C)
    labels: Tensor | None = None  # (N,)


class SharedBatch(NamedTuple):
    """One batch as several taps see it: `SharedTap.batch_for` gives each its own."""

    features: dict[Place, Tensor]  # (N, d) each
    logits: Tensor  # (N, C)
    labels: Tensor | None = None  # (N,)


class Tap(Protocol):
    """Runs a model on inputs; a batch that was extracted before is returned as it is."""

    model: nn.Module

    def __call__(self, inputs: Any) -> FeatureBatch: ...


class ModelTap(ABC):
    """A tap of one model, which reads none, one or several of its layers."""

    def __init__(self, model: nn.Module):
        check_model(model)
        self.model = model

    def __call__(self, inputs: Any) -> FeatureBatch:
        """Runs the model once.

        Args:
            inputs: A tensor or an array; a tuple or list of them for `model(*inputs)`; a mapping for
                `model(**inputs)`, whose only entry goes in by position if the model has no such argument.
                All are moved to the model's device, and floats to its precision; integers stay integers. A
                `FeatureBatch` that was extracted before is returned as it is.
        """
        return inputs if isinstance(inputs, FeatureBatch) else self.batch_of(_read(self.model, self.taps, inputs))

    @property
    @abstractmethod
    def taps(self) -> "Sequence[FeatureTap]":
        """A tap for each single layer that it reads, in order."""

    @property
    def places(self) -> tuple[Place, ...]:
        """The places that it reads, in order; known after the first call."""
        return tuple(tap.found for tap in self.taps)

    @abstractmethod
    def batch_of(self, batch: SharedBatch) -> FeatureBatch:
        """Its own batch from one that has all its places."""


class FeatureTap(ModelTap):
    """Runs a model and returns its logits together with the features that its head saw.

    Args:
        model: Any classifier. Of a parallel or compiled one, the plain network inside is run.
        features: Where the features are.

            - `None`: the input of the linear layer that gives the logits. It is searched on the first call, which
              costs one more forward pass.
            - A layer, by dotted name or as a module: its output. If the layer gives the logits it is the head, and
              naming it means its input.
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
        super().__init__(model)
        if features is not None and not isinstance(features, str | Mapping) and not callable(features):
            raise InputError(
                "features= must be a layer's name, a module of the model, a callable, a description or None. "
                f"Got {shown(features)} instead."
            )
        self.features = features
        self._place: Place | None = None
        if isinstance(features, Mapping):
            self._place = _restored(features)
            submodule(unwrapped(model), self._place.layer)
        elif _is_function(features):
            self._place = Place("callable", getattr(features, "__qualname__", type(features).__name__))

    @property
    def taps(self) -> "tuple[FeatureTap]":
        """Itself."""
        return (self,)

    def batch_of(self, batch: SharedBatch) -> FeatureBatch:
        """Its own batch from one that has its place."""
        return FeatureBatch(batch.features[self.found], batch.logits, batch.labels)

    def locate(self, model: nn.Module, inputs: Any) -> Place:
        """Its place in the model, searched on the first call."""
        if self._place is None:
            self._place = locate(model, self.features, inputs)
        return self._place

    @property
    def layer(self) -> str | None:
        """The tapped layer's dotted name, or the callable's name; `None` until it is found."""
        if self._place is not None:
            return self._place.layer
        return self.features if isinstance(self.features, str) else None

    @property
    def is_located(self) -> bool:
        """Whether the place of the features is known."""
        return self._place is not None

    @property
    def found(self) -> Place:
        """The place that the first call found."""
        if self._place is None:
            raise NotFittedError("The feature layer is found on the first call: run a batch through the tap first.")
        return self._place

    @property
    def asked(self) -> Place | str | nn.Module | None:
        """The place that a forward pass found or, before the first, the layer that `features` names."""
        if self._place is None and isinstance(self.features, nn.Module):
            names = [name for name, module in unwrapped(self.model).named_modules() if module is self.features]
            return names[0] if names else self.features
        return self._place or self.layer

    def describe(self) -> dict[str, str]:
        """The tapped place as JSON-ready text: `FeatureTap(model, description)` taps it again."""
        return self.found._asdict()

    def place(self) -> dict[str, str] | str | None:
        """`asked` as JSON."""
        asked = self.asked
        return asked._asdict() if isinstance(asked, Place) else asked if isinstance(asked, str) else None

    def __repr__(self) -> str:
        place = f"{self._place.kind} of {self._place.layer!r}" if self._place else f"features={self.layer!r}"
        return f"FeatureTap({type(unwrapped(self.model)).__name__}, {place})"


class LogitsTap(ModelTap):
    """Runs a model for its logits alone, wherever its features are; in the batch, the logits stand for the features."""

    @property
    def taps(self) -> tuple[()]:
        """None."""
        return ()

    def batch_of(self, batch: SharedBatch) -> FeatureBatch:
        """Its own batch from any other."""
        return FeatureBatch(batch.logits, batch.logits, batch.labels)

    def __repr__(self) -> str:
        return f"LogitsTap({type(unwrapped(self.model)).__name__})"


class LayersTap(ModelTap):
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
    >>> tap.places
    (Place(kind='output', layer='0'), Place(kind='input', layer='2'))
    """

    def __init__(self, model: nn.Module, layers: Sequence[FeatureSource]):
        super().__init__(model)
        self._taps = [FeatureTap(model, layer) for layer in layers]
        self.widths: list[int] | None = None
        _refuse_callables(self._taps)

    @property
    def taps(self) -> list[FeatureTap]:
        """A tap for each layer."""
        return self._taps

    def batch_of(self, batch: SharedBatch) -> FeatureBatch:
        """Its own batch from one that has all its places."""
        parts = [batch.features[place] for place in self.places]
        self.widths = [part.shape[1] for part in parts]
        return FeatureBatch(torch.cat(parts, 1), batch.logits, batch.labels)

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
                # the model may work in place
                found, logits = _capture(model, self.taps, x, lambda: model(x.clone()))
                features = self.batch_of(SharedBatch(found, logits)).features
                (gradient,) = torch.autograd.grad(score(features).sum(), x)
            return x.detach() - step * gradient.sign(), logits

        with torch.inference_mode(False):
            x, logits = observed(model, inputs, moved_inputs)
        return self(x)._replace(logits=logits)

    def __repr__(self) -> str:
        return f"LayersTap({', '.join(map(repr, self.taps))})"


class SharedTap:
    """Reads every place that several taps of one model read, in one forward pass, and hands out to each its own batch.

    Each tap gets from it what it would have read itself, bit for bit. Its batches can be kept and serve detectors that
    are made later: `extract(SharedTap(model, taps), loader)` gives them for a whole loader.

    Args:
        model: Any classifier.
        taps: `FeatureTap`, `LayersTap` and `LogitsTap` of that model, without callables.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> head, both = FeatureTap(model), LayersTap(model, ["0", "2"])
    >>> shared = SharedTap(model, [head, both])
    >>> batch = shared(torch.zeros(5, 4))
    >>> list(batch.features)
    [Place(kind='input', layer='2'), Place(kind='output', layer='0')]
    >>> shared.batch_for(head, batch).features.shape, shared.batch_for(both, batch).features.shape
    (torch.Size([5, 8]), torch.Size([5, 16]))
    """

    def __init__(self, model: nn.Module, taps: Iterable[ModelTap]):
        check_model(model)
        self.model = model
        self._taps = {tap.asked: tap for shared in taps for tap in shared.taps}
        _refuse_callables(self._taps.values())

    def __call__(self, inputs: Any) -> SharedBatch:
        """Runs the model once, on inputs as `FeatureTap` takes them."""
        return _read(self.model, list(self._taps.values()), inputs)

    def serves(self, tap: object) -> bool:
        """Whether its batches have everything that a tap reads."""
        return isinstance(tap, ModelTap) and all(self._source(one) is not None for one in tap.taps)

    def batch_for(self, tap: ModelTap, batch: SharedBatch) -> FeatureBatch:
        """What a tap would have read itself; a tap that has not run yet learns its places from those found here."""
        for one in tap.taps:
            source = self._source(one)
            if source is None:
                raise InputError(f"{one} reads a place that was not extracted. There are {list(batch.features)}.")
            one._place = source.found
        return tap.batch_of(batch)

    def _source(self, tap: FeatureTap) -> FeatureTap | None:
        """The tap here that reads the same place as another, by the layer named or by the place found."""
        found = {one.asked: one for one in self._taps.values()}
        return self._taps.get(tap.asked) or found.get(tap.asked)

    def __repr__(self) -> str:
        return f"SharedTap({type(unwrapped(self.model)).__name__}, {list(self._taps)})"


# One forward pass


def _read(model: nn.Module, taps: Sequence[FeatureTap], inputs: Any) -> SharedBatch:
    """The features at the places of some taps, and the logits."""
    model = unwrapped(model)
    found, logits = observed(model, inputs, lambda: _capture(model, taps, inputs, lambda: run(model, model, inputs)))
    return SharedBatch({place: features.detach() for place, features in found.items()}, logits)


def _capture(
    model: nn.Module, taps: Sequence[FeatureTap], inputs: Any, call: Callable[[], Any]
) -> tuple[dict[Place, Tensor], Tensor]:
    """Features at the places of some taps, and logits, while `call` runs the model once."""
    sources = {tap.locate(model, inputs): tap.features for tap in taps}
    called = {
        place: _pooled(run(source, model, inputs), f"What {place.layer} returns")
        for place, source in sources.items()
        if _is_function(source)
    }
    with ExitStack() as hooks:
        seen = {place: hooks.enter_context(_features_at(model, place)) for place in sources if place not in called}
        logits = logits_in(call())
    for place, kept in seen.items():
        if len(kept) != 1:
            times = f"runs {len(kept)} times" if kept else "does not run"
            raise LayerError(
                f"The {_described(model, place)} {times} in a forward pass of the {type(model).__name__}, and features "
                "need a layer that runs once: pass another layer, or a callable that returns (N, d)."
            )
    found = called | {place: kept[0] for place, kept in seen.items()}
    for place, features in found.items():
        if len(features) != len(logits):
            raise LayerError(
                f"The features from {place.layer!r} of the {type(model).__name__} have {len(features)} rows, and the "
                f"logits {len(logits)}: pass another layer, or a callable that returns (N, d)."
            )
    return found, logits


@contextmanager
def _features_at(model: nn.Module, place: Place) -> Iterator[list[Tensor]]:
    """The features that pass a layer while the model runs."""
    layer = submodule(model, place.layer)
    thread = threading.get_ident()  # others may run the same model at the same time
    seen: list[Tensor] = []

    def keep(value: object) -> None:
        if threading.get_ident() == thread:
            seen.append(_pooled(value, f"The {place.kind} of the {_described(model, place)}"))

    # Another thread may meet the hook before torch has noted that it takes keyword arguments
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] = MappingProxyType({})) -> None:
        keep(next(chain(args, kwargs.values()), None))

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        keep(output)

    if place.kind == "input":
        hook = layer.register_forward_pre_hook(before, with_kwargs=True)
    else:
        hook = layer.register_forward_hook(after)
    with hook:
        yield seen


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


def _described(model: nn.Module, place: Place) -> str:
    return f"layer {place.layer!r} ({type(submodule(model, place.layer)).__name__})"


def _restored(description: Mapping[str, str]) -> Place:
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
    return Place(kind, layer)


def _is_function(features: object) -> TypeGuard[Callable[..., Tensor]]:
    return callable(features) and not isinstance(features, nn.Module)


def _refuse_callables(taps: Iterable[FeatureTap]) -> None:
    if any(_is_function(tap.features) for tap in taps):
        raise InputError("Layers must be names or modules of the model, which a callable is not.")
