"""Taps run a model and give its logits together with the features at one or several of its layers.

The model is only looked at. One forward pass under hooks gives features and logits together; afterwards the hooks are
gone and modes, parameters, buffers and random state are as before, also when the forward pass fails.

    FeatureTap   one layer: what the head sees, logits = head(features), unless another is named
    LayersTap    several layers side by side, named or at the ends of the network's stages
    LogitsTap    the logits alone
    SharedTap    all layers of several taps in one pass; each gets its own batch from it
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn

from ddu.errors import InputError, LayerError, NotFittedError
from ddu.features.forward import arguments, check_model, logits_in, observed, run, unwrapped
from ddu.features.places import Place, find_stages, locate, pooled, submodule
from ddu.messages import shown

FeatureSource: TypeAlias = str | nn.Module | Callable[..., Tensor] | Mapping[str, str] | None

_KINDS = ("input", "output", "input tokens", "output tokens", "callable")


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
        return inputs if isinstance(inputs, FeatureBatch) else self.batch_of(_read(self.model, self.sources, inputs))

    def traced(self, model: nn.Module, *args: Any, **kwargs: Any) -> FeatureBatch:
        """The same of one forward pass of a copy of the model, as operations that `torch.export` can follow.

        Inputs are neither copied nor moved, and the mode of the copy stays as it is.
        """
        found, logits = _capture(model, self.sources, args, lambda: model(*args, **kwargs))
        return self.batch_of(SharedBatch(found, logits))

    @property
    @abstractmethod
    def taps(self) -> "Sequence[FeatureTap]":
        """A tap for each single layer that it reads, in order."""

    @property
    def sources(self) -> "Sequence[FeatureTap | LayersTap]":
        """What finds its layers: the taps of named layers, or itself where one search finds all of them."""
        return self.taps

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

    def located(self, model: nn.Module, inputs: Any) -> "tuple[FeatureTap]":
        """Itself, with its place in the model, which is searched on the first call."""
        if self._place is None:
            self._place = locate(model, self.features, inputs)
        return (self,)

    def adopt(self, places: Sequence[Place]) -> None:
        """Takes over the place that another tap found."""
        (self._place,) = places

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
        return f"FeatureTap({type(unwrapped(self.model)).__name__}, {_listed([self])})"


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
        layers: Layers as `FeatureTap` takes them, without callables; or `"stages"`, the ends of the network's stages,
            of which the last is what the head sees. They are searched on the first call, which costs one more forward
            pass: where the resolution falls, or of transformers and MLPs, between their blocks. Tokens (N, T, d) are
            averaged. Afterwards `places` and the tap itself, printed, say what was found.

    Attributes:
        widths: How many features each layer has; known after the first call.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    >>> tap = LayersTap(model, ["0", "4"])
    >>> tap(torch.zeros(5, 4)).features.shape, tap.widths
    (torch.Size([5, 14]), [8, 6])
    >>> tap.places
    (Place(kind='output', layer='0'), Place(kind='input', layer='4'))
    >>> tap = LayersTap(model, "stages")
    >>> tap(torch.randn(5, 4)).features.shape
    torch.Size([5, 14])
    >>> tap
    LayersTap(Sequential, output of '1', input of '4')
    """

    def __init__(self, model: nn.Module, layers: Sequence[FeatureSource] | Literal["stages"]):
        super().__init__(model)
        if isinstance(layers, str) and layers != "stages":
            raise InputError(f"layers= must be a list of layers or 'stages'. Got {layers!r} instead.")
        self.layers = layers
        self._taps = None if isinstance(layers, str) else [FeatureTap(model, layer) for layer in layers]
        self.widths: list[int] | None = None
        _refuse_callables(self._taps or ())

    @property
    def taps(self) -> list[FeatureTap]:
        """A tap for each layer."""
        if self._taps is None:
            raise NotFittedError("The stages are found on the first call: run a batch through the tap first.")
        return self._taps

    @property
    def sources(self) -> "Sequence[FeatureTap | LayersTap]":
        """The taps of named layers, or itself for stages."""
        return [self] if self.layers == "stages" else self.taps

    @property
    def asked(self) -> Place:
        """What stands for its stages, whether they are found or not."""
        return Place("stages", "")

    def place(self) -> list[dict[str, str] | str | None] | str:
        """What it taps as JSON: a place for each layer, or "stages" before they are found."""
        return "stages" if self._taps is None else [tap.place() for tap in self._taps]

    def located(self, model: nn.Module, inputs: Any) -> list[FeatureTap]:
        """Its taps, with their places in the model; stages are searched on the first call."""
        if self._taps is None:
            self.adopt(find_stages(model, inputs))
        return [one for tap in self.taps for one in tap.located(model, inputs)]

    def adopt(self, places: Sequence[Place]) -> None:
        """Takes over the places that another tap found."""
        self._taps = [FeatureTap(self.model, place._asdict()) for place in places]

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
                found, logits = _capture(model, self.sources, x, lambda: model(x.clone()))
                features = self.batch_of(SharedBatch(found, logits)).features
                (gradient,) = torch.autograd.grad(score(features).sum(), x)
            return x.detach() - step * gradient.sign(), logits

        with torch.inference_mode(False):
            x, logits = observed(model, inputs, moved_inputs)
        return self(x)._replace(logits=logits)

    def __repr__(self) -> str:
        only = "only " if self.layers == "stages" and self._taps and len(self._taps) == 1 else ""
        found = "layers='stages'" if self._taps is None else only + _listed(self._taps)
        return f"LayersTap({type(unwrapped(self.model)).__name__}, {found})"


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
        self._sources = {source.asked: source for tap in taps for source in tap.sources}
        _refuse_callables(self._sources.values())

    def __call__(self, inputs: Any) -> SharedBatch:
        """Runs the model once, on inputs as `FeatureTap` takes them."""
        return _read(self.model, list(self._sources.values()), inputs)

    def serves(self, tap: object) -> bool:
        """Whether its batches have everything that a tap reads."""
        return isinstance(tap, ModelTap) and all(self._source(one) is not None for one in tap.sources)

    def batch_for(self, tap: ModelTap, batch: SharedBatch) -> FeatureBatch:
        """What a tap would have read itself; a tap that has not run yet learns its places from those found here."""
        for one in tap.sources:
            source = self._source(one)
            if source is None:
                raise InputError(f"{one} reads a place that was not extracted. There are {list(batch.features)}.")
            one.adopt(source.places)
        return tap.batch_of(batch)

    def _source(self, asking: "FeatureTap | LayersTap") -> "FeatureTap | LayersTap | None":
        """What reads here the same as another, by the layer named or by the place found."""
        if asking.asked in self._sources:
            return self._sources[asking.asked]
        stages = [one for one in self._sources.values() if isinstance(one, LayersTap) and one._taps is not None]
        singles = [one for one in self._sources.values() if isinstance(one, FeatureTap)]
        found = {one.asked: one for one in chain(singles, *(tap.taps for tap in stages))}
        return found.get(asking.asked)

    def __repr__(self) -> str:
        return f"SharedTap({type(unwrapped(self.model)).__name__}, {list(self._sources)})"


# One forward pass


def _read(model: nn.Module, sources: "Sequence[FeatureTap | LayersTap]", inputs: Any) -> SharedBatch:
    """The features at the places of some taps, and the logits."""
    model = unwrapped(model)
    found, logits = observed(model, inputs, lambda: _capture(model, sources, inputs, lambda: run(model, model, inputs)))
    return SharedBatch({place: features.detach() for place, features in found.items()}, logits)


def _capture(
    model: nn.Module, taps: "Sequence[FeatureTap | LayersTap]", inputs: Any, call: Callable[[], Any]
) -> tuple[dict[Place, Tensor], Tensor]:
    """Features at the places of some taps, and logits, while `call` runs the model once."""
    sources = {one.found: one.features for tap in taps for one in tap.located(model, inputs)}
    called = {
        place: pooled(run(source, model, inputs), False, f"What {place.layer} returns")
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
    rows = logits.shape[0]  # of an export it is a symbol, which len() would make a number
    for place, features in found.items():
        if features.shape[0] != rows:
            raise LayerError(
                f"The features from {place.layer!r} of the {type(model).__name__} have {features.shape[0]} rows, and "
                f"the logits {rows}: pass another layer, or a callable that returns (N, d)."
            )
    return found, logits


@contextmanager
def _features_at(model: nn.Module, place: Place) -> Iterator[list[Tensor]]:
    """The features that pass a layer while the model runs."""
    layer, side = submodule(model, place.layer), place.kind.split()[0]
    thread = threading.get_ident()  # others may run the same model at the same time
    seen: list[Tensor] = []

    def keep(value: object) -> None:
        if threading.get_ident() == thread:
            seen.append(pooled(value, place.kind.endswith("tokens"), f"The {side} of the {_described(model, place)}"))

    # Another thread may meet the hook before torch has noted that it takes keyword arguments
    def before(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] = MappingProxyType({})) -> None:
        keep(next(chain(args, kwargs.values()), None))

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        keep(output)

    if side == "input":
        hook = layer.register_forward_pre_hook(before, with_kwargs=True)
    else:
        hook = layer.register_forward_hook(after)
    with hook:
        yield seen


def _described(model: nn.Module, place: Place) -> str:
    return f"layer {place.layer!r} ({type(submodule(model, place.layer)).__name__})"


def _restored(description: Mapping[str, str]) -> Place:
    """The inverse of `FeatureTap.describe`."""
    kind, layer = description.get("kind"), description.get("layer")
    if kind not in _KINDS or not isinstance(layer, str):
        raise InputError(
            "A described feature layer has a 'layer', and a 'kind' that is 'input', 'output', 'input tokens', "
            f"'output tokens' or 'callable'. Got {dict(description)} instead."
        )
    if kind == "callable":
        raise LayerError(
            f"The features came from the callable {layer!r}, which text cannot hold: pass it again as features=."
        )
    return Place(kind, layer)


def _is_function(features: object) -> TypeGuard[Callable[..., Tensor]]:
    return callable(features) and not isinstance(features, nn.Module)


def _listed(taps: Sequence[FeatureTap]) -> str:
    """The places of some taps in words: outputs of 'layer1', 'layer2', input of 'fc'."""
    words = []
    for kind, group in groupby(taps, lambda tap: tap.found.kind if tap.is_located else None):
        names = [repr(tap.layer) for tap in group]
        if kind is None:
            words += [f"features={name}" for name in names]
        else:
            plural = "s" if len(names) > 1 and not kind.endswith("s") else ""
            words.append(f"{kind}{plural} of {', '.join(names)}")
    return ", ".join(words)


def _refuse_callables(taps: "Iterable[FeatureTap | LayersTap]") -> None:
    if any(isinstance(tap, FeatureTap) and _is_function(tap.features) for tap in taps):
        raise InputError("Layers must be names or modules of the model, which a callable is not.")
