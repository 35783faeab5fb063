"""The detectors of the `pytorch-ood` package as ours, and ours as theirs.

Theirs come in kinds, by what they score: logits, features or feature maps, which we have in a `FeatureBatch`; or
inputs, for which they run the model themselves.
"""

import copy
import difflib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from ddu.detectors.base import BaseDetector, Evidence
from ddu.detectors.ddu import DDU
from ddu.detectors.labels import labels_of
from ddu.detectors.passes import joined
from ddu.distributed import Ranks
from ddu.errors import InputError, NotFittedError, NotSupportedError
from ddu.features import FeatureBatch, FeatureSource, FeatureTap, LogitsTap, Tap, extract, unwrapped
from ddu.features.loaders import check_loader
from ddu.messages import require

if TYPE_CHECKING:
    import pytorch_ood.api

_EXTRA = {"extra": "compare", "purpose": "Exchange with pytorch-ood"}


def from_pytorch_ood(
    name: str,
    model: nn.Module,
    *,
    features: FeatureSource = None,
    class_names: Sequence[str] | None = None,
    **options: Any,
) -> BaseDetector:
    """A detector of the `pytorch-ood` package around a model: "KNN", "ViM", "ReAct", "ODIN", "RMD" and all others.

    Arguments that come from the model, such as its head, are filled in; `d` of ViM is chosen as in its
    paper, and `p` of DICE is 0.9. Feature maps are those before the head, averaged over positions. Detectors that score
    logits or features run on the CPU, wherever the model is.

    It is fitted, calibrated and used like any other, but cannot be saved: pytorch-ood does not expose what it learns.

    Args:
        name: The class in `pytorch_ood.detector`, in small or capital letters.
        model: Any classifier that returns logits.
        features: Where its features are, as for `ddu.DDU`.
        class_names: Names for the classes, for printing.
        **options: Arguments of their class.

    Raises:
        MissingExtraError: pytorch-ood is not installed.
        InputError: An unknown name (the message has the closest ones) or option, or an option that is missing.
        NotSupportedError: RankFeat, which needs whole feature maps.
    """
    cls = _find(name)
    api = require("pytorch_ood.api", **_EXTRA)
    kinds = {"logits": "LogitsDetector", "features": "FeaturesDetector", "feature_maps": "FeatureMapsDetector"}
    if cls.__name__ == "RankFeat":
        raise NotSupportedError("RankFeat takes whole feature maps apart, and here they are averaged over positions.")
    for kind, base in kinds.items():
        if issubclass(cls, getattr(api, base)):
            return _OnBatches(cls, kind, FeatureTap(model, features), class_names, options)
    if features is not None:
        raise InputError(f"{cls.__name__} runs the model itself, and has no use for features=.")
    # Each structured detector takes parts of a model in its own form
    found = set() if issubclass(cls, api.StructuredDetector) else {"model"}
    return _OnInputs(cls, found, LogitsTap(model), class_names, options)


def as_pytorch_ood(detector: BaseDetector) -> "pytorch_ood.api.Detector":
    """One of our detectors as a `pytorch_ood.api.Detector`, for their benchmarks and searches.

    `fit(loader)` leaves out samples with negative labels, which are out of distribution there, and `predict(x)` returns
    the epistemic score. Around a `ddu.DDU`, `fit_features(z, y)` and `predict_features(z)` work too: minus the
    log-density of features.
    """
    api = require("pytorch_ood.api", **_EXTRA)

    @contextmanager
    def in_their_words() -> Iterator[None]:
        try:
            yield
        except NotFittedError as error:
            raise api.RequiresFittingException(str(error)) from error

    class FromDDU(api.FeaturesDetector):
        requires_fit = detector.needs_fit

        def __init__(self) -> None:
            self.detector = detector

        def fit(self, data_loader: Iterable[tuple[Tensor, Tensor]]) -> Self:
            known = ((x[y >= 0], y[y >= 0]) for x, y in data_loader)
            detector.fit((x, y) for x, y in known if len(y))
            return self

        def predict(self, x: Tensor) -> Tensor:
            with in_their_words():
                return detector.predict(x).epistemic

        def fit_features(self, x: Tensor, y: Tensor) -> Self:
            _density_detector(detector).fit_features(x[y >= 0], y[y >= 0])
            return self

        def predict_features(self, x: Tensor) -> Tensor:
            with in_their_words():
                return _density_detector(detector).score_features(x)

    return FromDDU()


class _Adapter(BaseDetector):
    """What all adapters share: a class of theirs, made and fitted by `fit`.

    Args:
        cls: Their class.
        found: Names of the arguments that are found in the model.
        tap: What runs the model.
        class_names: Names for the classes.
        options: Arguments of their class that were given.
    """

    name = "pytorch_ood"
    can_save = False

    def __init__(
        self, cls: type, found: set[str], tap: Tap, class_names: Sequence[str] | None, options: dict[str, Any]
    ):
        super().__init__(tap, class_names)
        parameters = inspect.signature(cls).parameters
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        for option in options:
            if option not in parameters and not open_ended:
                raise InputError(f"{cls.__name__} has no option {option!r}; it takes {', '.join(parameters)}.")
        needed = [p.name for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        missing = [name for name in needed if name not in options and name not in found]
        if missing:
            raise InputError(
                f"{cls.__name__} needs {', '.join(missing)}, which cannot be inferred from the model: pass it as an "
                "option."
            )
        self.cls, self.options = cls, options
        self.needed = [name for name in needed if name not in options]
        self.theirs: Any = None

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` has been called."""
        return self.theirs is not None

    def save(self, folder: str | PathLike[str]) -> None:
        """Refused: pytorch-ood does not expose what its detectors learn."""
        raise NotSupportedError(
            f"A {self.cls.__name__} of pytorch-ood cannot be saved, since it does not expose what it learned: fit it "
            "again where you need it."
        )

    def _make(self, found: dict[str, Any]) -> Any:
        """Their detector, with the options and what else it needs from what was found."""
        return self.cls(**self.options, **{name: found[name] for name in self.needed})

    def _options(self) -> dict[str, Any]:
        return {"cls": self.cls.__name__, **self.options}


class _OnBatches(_Adapter):
    """One that scores logits, features or feature maps."""

    tap: FeatureTap

    def __init__(self, cls: type, kind: str, tap: FeatureTap, class_names: Any, options: dict[str, Any]):
        found = {"model", "encoder", "backbone", "num_classes", "head", "w", "b", "d", "p"}
        super().__init__(cls, found, tap, class_names, options)
        self.kind = kind

    def _learn(self, batches: Sequence[FeatureBatch]) -> None:
        """Theirs learn from all data at once, so that memory grows with it."""
        data = joined(batches)
        width, num_classes = data.features.shape[1], data.logits.shape[1]
        # What the ViM paper takes: 1,000 principal directions of 2,048, 512 of 768, and else half
        principal = 1000 if width >= 1500 else 512 if width >= 768 else width // 2
        found = {"model": None, "encoder": None, "backbone": None, "num_classes": num_classes, "d": principal, "p": 0.9}
        if {"head", "w", "b"} & set(self.needed):
            head = self._head(width, num_classes)
            bias = torch.zeros(num_classes) if head.bias is None else head.bias.detach()
            found |= {
                "head": _Flat(head) if self.kind == "feature_maps" else head,
                "w": head.weight.detach(),
                "b": bias,
            }
        theirs = self._make(found)
        if theirs.requires_fit:
            getattr(theirs, f"fit_{self.kind}")(self._representation(data), labels_of(data).cpu())
        self.theirs = theirs

    def _evidence(self, batch: FeatureBatch) -> Evidence:
        with torch.no_grad():
            scores = getattr(self.theirs, f"predict_{self.kind}")(self._representation(batch))
        return Evidence(batch.logits, scores.float().to(batch.logits.device))

    def _representation(self, batch: FeatureBatch) -> Tensor:
        """What theirs work on, in memory of its own: some work in place."""
        values = (batch.logits if self.kind == "logits" else batch.features).detach().float().cpu().clone()
        return values[:, :, None, None] if self.kind == "feature_maps" else values

    def _head(self, width: int, num_classes: int) -> nn.Linear:
        """A copy of the linear layer from the features to the logits, on the CPU."""
        network = unwrapped(self.model)
        if self.tap.is_located:
            layers = [network.get_submodule(self.tap.describe()["layer"])]
        else:  # the features were extracted before
            layers = list(network.modules())
        heads = [
            m for m in layers if isinstance(m, nn.Linear) and (m.in_features, m.out_features) == (width, num_classes)
        ]
        if len(heads) != 1:
            raise InputError(
                f"{self.cls.__name__} needs a linear head from {width} features to {num_classes} logits, and the "
                f"{type(network).__name__} has {len(heads)} there: take the features before its head."
            )
        return copy.deepcopy(heads[0]).cpu().float().requires_grad_(False)


class _Flat(nn.Module):
    """A head on maps of a single position."""

    def __init__(self, head: nn.Linear):
        super().__init__()
        self.head = head

    def forward(self, maps: Tensor) -> Tensor:
        return self.head(maps.flatten(1))


class _OnInputs(_Adapter):
    """One that runs the model itself: on a copy, since some leave gradients behind."""

    @property
    def needs_inputs(self) -> bool:
        """Always."""
        return True

    def fit(self, loader: Iterable[Any], *, progress: bool | None = None, ranks: Ranks | None = None) -> Self:
        """Fits theirs to batches of (inputs, labels), in one process."""
        check_loader(loader)
        if ranks is not None and ranks.size > 1:
            self._need_sums()
        network = copy.deepcopy(unwrapped(self.model)).eval()
        theirs = self._make({"model": network})
        if theirs.requires_fit:
            batches = extract(lambda x: _as_inputs(network, x), loader, progress=progress)
            theirs.fit([(batch.features, labels_of(batch)) for batch in batches])
        self.theirs, self.network = theirs, network
        return self._settle()

    def _movable(self) -> Iterable[Any]:
        return [] if self.theirs is None else [self.theirs, self.network]

    def _view(self, x: Any) -> FeatureBatch:
        """In the batch, the scores stand for the features."""
        if isinstance(x, FeatureBatch):
            raise InputError(f"{self.cls.__name__} needs the inputs themselves, not extracted features.")
        batch = self.tap(x)
        with torch.random.fork_rng([]):
            torch.manual_seed(0)  # for those that draw
            scores = self.theirs.predict(_as_inputs(self.network, x).features)
        return FeatureBatch(scores.detach().float().to(batch.logits.device)[:, None], batch.logits)

    def _evidence(self, batch: FeatureBatch) -> Evidence:
        return Evidence(batch.logits, batch.features[:, 0])


def _as_inputs(network: nn.Module, x: Any) -> FeatureBatch:
    """A copy of the inputs as the network takes them, in the place of features."""
    example = next(network.parameters(), torch.zeros(()))
    inputs = torch.as_tensor(x).detach().to(example.device, example.dtype, copy=True)
    return FeatureBatch(inputs, inputs)


def list_pytorch_ood() -> list[str]:
    """The names that `from_pytorch_ood` knows."""
    theirs = require("pytorch_ood.detector", **_EXTRA)
    return [name for name in theirs.__all__ if inspect.isclass(getattr(theirs, name))]


def _find(name: str) -> type:
    theirs = require("pytorch_ood.detector", **_EXTRA)
    known = {one.lower(): one for one in list_pytorch_ood()}
    if name.lower() not in known:
        close = [known[one] for one in difflib.get_close_matches(name.lower(), known, n=3)]
        hint = f"The closest are {', '.join(close)}" if close else f"It has {', '.join(known.values())}"
        raise InputError(f"pytorch-ood has no detector {name!r}. {hint}.")
    return getattr(theirs, known[name.lower()])


def _density_detector(detector: BaseDetector) -> DDU:
    if not isinstance(detector, DDU):
        raise NotSupportedError(
            f"The {type(detector).__name__} detector does not score features alone: use fit(loader) and predict(x)."
        )
    return detector
