"""Deep Deterministic Uncertainty around any classifier."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from ddu.density import GaussianDensity
from ddu.detectors.base import BaseDetector, Evidence
from ddu.detectors.labels import labels_of
from ddu.detectors.saved import save_detector
from ddu.detectors.score import VIEWS, Part, Score, View
from ddu.errors import InputError, NotSupportedError
from ddu.features import FeatureBatch, FeatureSource, FeatureTap, LayersTap
from ddu.messages import check_name

Features = FeatureSource | Sequence[FeatureSource] | Literal["stages"]

# One in so many held-out samples standardises the parts; the others set the thresholds
_STANDARDIZING = 5

# One full covariance per class, and no more than rounding added to its variances: relative to their mean, the least
# eigenvalue of d features is off by up to d² 2⁻⁵², which is 1e-9 for 2,048
_PAPER_DENSITY = {"covariance": "full", "shrinkage": None, "regularization": 1e-9}

PAPER: Mapping[str, Any] = {"features": None, "view": "raw", "energy": False, "density": _PAPER_DENSITY}
"""The options of the paper's detector."""


class DDU(BaseDetector):
    """A detector around a trained classifier: is this prediction clear, ambiguous, or about something unknown?

    The epistemic score is a sum of parts: minus the log-density of the features at the end of each stage of the
    network, and the energy of the logits. Each part is standardised on a fifth of the held-out data; the thresholds are
    set on the rest. `DDU.paper` is the detector of the paper, whose score is one log-density.

    The model runs in evaluation mode and without gradients, and is left as it was.

    Args:
        model: Any classifier that returns logits.
        features: Where its features are: "stages", the ends of its stages; None, what the last linear layer sees; a
            layer's name or a module, or a list of them; or a callable that is called like the model.
        view: How features are looked at: "shares", where they point and how large they are; "raw", as they are; or
            "auto", shares of every layer, and the last layer as it is besides, where distances are largest far out.
        energy: Whether the energy of the logits is a part.
        density: Options of the `GaussianDensity` of each layer, as a mapping, or a density that has them. With
            `background=True` it is the relative density that counts.
        seed: Decides which held-out samples standardise the parts.
        classes: Those of the model's classes that the data has, such as [0, 3, 7]: other logits are left out, and
            labels and predictions number these from 0, in this order. None is all.
        class_names: Names for the classes, for printing.

    Attributes:
        score: The parts, fitted by `fit`.
        temperature: Divides the logits; 1 before calibration.
        entropy_threshold: Entropy above which one in distribution is ambiguous; None before calibration.
        false_alarm_rate: Share of in-distribution inputs that may be flagged; can be set after calibration.

    Example:
        >>> import torch
        >>> x, y = torch.randn(400, 2), torch.arange(400) % 2
        >>> x[:, 0] += 2 * y  # two blobs that overlap
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2))
        >>> weights = {"1.weight": torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), "1.bias": torch.tensor([2.0, -2.0])}
        >>> model.load_state_dict(weights)  # as good as trained
        <All keys matched successfully>
        >>> detector = DDU(model).fit([(x[:200], y[:200])]).calibrate([(x[200:], y[200:])], false_alarm_rate=0.05)
        >>> detector.predict(torch.tensor([[50.0, -50.0]])).verdict[0]
        <Verdict.OUT_OF_DISTRIBUTION: 'out_of_distribution'>
    """

    name = "ddu"
    needs_every_class = True
    tap: FeatureTap | LayersTap

    def __init__(
        self,
        model: nn.Module,
        *,
        features: Features = "stages",
        view: View | Literal["auto"] = "auto",
        energy: bool = True,
        density: GaussianDensity | Mapping[str, Any] | None = None,
        seed: int = 0,
        classes: Sequence[int] | None = None,
        class_names: Sequence[str] | None = None,
    ):
        super().__init__(_make_tap(model, features), class_names, classes)
        check_name(view, ["auto", *VIEWS], "DDU has no view {name!r}")
        if energy not in (True, False):
            raise InputError(f"The 'energy' parameter of DDU must be True or False. Got {energy!r} instead.")
        if not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise InputError(f"The 'seed' parameter of DDU must be an integer from 0 to 2⁶³ - 1. Got {seed!r} instead.")
        self.view: View | Literal["auto"] = view
        self.energy = energy
        self.density_options = _density_options(density)
        self.seed = seed
        self.score: Score | None = None

    @classmethod
    def paper(
        cls,
        model: nn.Module,
        *,
        features: FeatureSource = None,
        classes: Sequence[int] | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """The detector of the paper, to the letter: epistemic = -log q(z) of the penultimate features z as they are.

        One full covariance per class without shrinkage, and class weights as in the training data. What is added to
        each variance, 1e-9 of their mean, is at the level of rounding: a class with no more samples than features has
        directions without variance, and a warning says so; where all classes together have no more, it is refused.

        Args:
            model: Any classifier that returns logits.
            features: A layer other than the one that the head sees.
            classes: Those of the model's classes that the data has; None is all.
            class_names: Names for the classes, for printing.
        """
        return cls(model, **{**PAPER, "features": features}, classes=classes, class_names=class_names)

    @property
    def is_fitted(self) -> bool:
        """Whether it has seen training data."""
        return self.score is not None

    @property
    def has_density(self) -> bool:
        """Whether the epistemic score is one negative log-density."""
        return not (self._fitted.is_standardized or self.density_options.get("background"))

    @property
    def needs_energy(self) -> bool:
        """Whether the energy is a part of the score."""
        return self.energy

    @property
    def sees_more(self) -> str:
        """The default score or, if it is that, earlier layers and a more sensitive network."""
        if self.view == "auto" and self.energy and isinstance(self.tap, LayersTap) and len(self.tap.taps) > 1:
            return (
                "Earlier layers see more, features=[...], and so does a network with residual connections and spectral "
                "norm, ddu.surgery.regularise or ddu.create_model."
            )
        return super().sees_more

    @property
    def density(self) -> GaussianDensity:
        """The density, of a score that has only one; `score.densities` are those of all parts."""
        densities = self._fitted.densities
        if len(densities) > 1:
            raise NotSupportedError(
                f"The score of this detector has {len(densities)} densities: use detector.score.densities, or a "
                "detector of one density, DDU.paper(model)."
            )
        return densities[0]

    @property
    def density_threshold(self) -> float | None:
        """Log-density below which an input is out of distribution; None before calibration and for other scores."""
        return -self.epistemic_threshold if self.epistemic_threshold is not None and self.has_density else None

    def fit_features(self, z: Tensor | np.ndarray, y: Tensor | np.ndarray) -> Self:
        """Fits to features that were extracted before, (sample, feature), with labels (sample,); for one density.

        A sum of parts also needs the logits: fit it to batches of `ddu.features.extract(detector.tap, loader)`.
        """
        self._need_one_density("fit_features")
        classes = len(self.class_names) if self.class_names else None
        z = torch.as_tensor(z)
        score = Score(self._parts(self._layer_names(), classes), [z.shape[-1]])
        score.update(z, z, torch.as_tensor(y), len(z))
        self.score = score.prepare()
        return self._settle()

    def score_features(self, z: Tensor) -> Tensor:
        """The epistemic score of features that were extracted before, (sample,); for a single density."""
        self._need_one_density("score_features")
        return self._fitted.values(z, z).squeeze(1)

    def update(self, batch: FeatureBatch) -> None:
        """Adds labelled samples to those that the densities have seen; what standardises the parts stays."""
        score, batch = self._fitted, self._restricted(batch)
        score.update(batch.features, batch.logits, labels_of(batch))
        for density in score.densities:
            density.prepare()

    def downdate(self, batch: FeatureBatch) -> None:
        """Forgets labelled samples that the densities have seen, the inverse of `update`."""
        score, batch = self._fitted, self._restricted(batch)
        score.downdate(batch.features, labels_of(batch))

    def _collect(self, batches: Iterable[FeatureBatch], expected_samples: int | None) -> Score | None:
        """Moments only: memory does not grow with the data."""
        score: Score | None = None
        for batch in batches:
            if score is None:
                score = Score(self._parts(self._layer_names(), batch.logits.shape[1]), self._widths(batch))
            score.update(batch.features, batch.logits, labels_of(batch), expected_samples)
        return score

    def _finish(self, collected: Score) -> None:
        self.score = collected.prepare()

    def _evidence(self, batch: FeatureBatch) -> Evidence:
        score = self._fitted
        values = score.values(batch.features, batch.logits)
        return Evidence(batch.logits, score.terms(values).sum(1), values if score.is_standardized else None)

    def save(self, folder: str | os.PathLike[str], *, moments: bool = False) -> None:
        """As `BaseDetector.save`: what it scores with, in float32, so that loading factorises nothing.

        Args:
            folder: Where to.
            moments: Whether to write the moments of the densities as well, in float64. Without them a loaded detector
                can neither `update` nor `downdate`.
        """
        save_detector(self, folder, self._fitted.tensors(moments=moments))

    def samples_for_threshold(self, held_out: int) -> int:
        """How many of so many held-out samples set the threshold: all but a fifth, or all for a single part."""
        return held_out * (_STANDARDIZING - 1) // _STANDARDIZING if self._is_sum else held_out

    def _threshold_scores(self, evidence: Evidence) -> tuple[Tensor, Tensor | None]:
        """A fifth, drawn by `seed`, standardises the parts; new inputs and those of the rest are then scored alike."""
        if evidence.values is None:
            return evidence.epistemic, None
        samples = len(evidence.values)
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(self.seed))
        standardizing, rest = order.tensor_split([samples - self.samples_for_threshold(samples)])
        self.score = self._fitted.standardized(evidence.values[standardizing])
        return self.score.terms(evidence.values[rest]).sum(1), rest

    def _contributions(self, evidence: Evidence) -> dict[str, Tensor] | None:
        if evidence.values is None:
            return None
        score = self._fitted
        return dict(zip((part.name for part in score.parts), score.terms(evidence.values).T, strict=True))

    def graph(self) -> nn.Module:
        """The terms of its score as a module that can be exported."""
        return self._fitted.graph()

    @property
    def part_names(self) -> list[str] | None:
        """The names of the parts; None for a single one."""
        return [part.name for part in self._fitted.parts] if self._fitted.is_standardized else None

    def _options(self) -> dict[str, Any]:
        return {
            "features": self.tap.place(),
            "view": self.view,
            "energy": self.energy,
            "density": self.density_options,
            "seed": self.seed,
            "classes": None if self.classes is None else list(self.classes),
        }

    def _movable(self) -> Iterable[Any]:
        return self._fitted.densities if self.score else []

    @classmethod
    def _rebuild(cls, model: nn.Module, options: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        detector = cls(model, **options)
        detector.score = Score.restore(detector._parts(detector._layer_names()), tensors)
        return detector

    @property
    def _is_sum(self) -> bool:
        """Whether the score has several parts."""
        if self.score is not None:
            return self.score.is_standardized
        return self.energy or self.view == "auto" or isinstance(self.tap, LayersTap)

    @property
    def _fitted(self) -> Score:
        self._need_fit()
        assert self.score is not None
        return self.score

    def _parts(self, layers: Sequence[str], num_classes: int | None = None) -> list[Part]:
        """Parts that have learned nothing yet."""

        def part(layer: int, view: View, name: str) -> Part:
            options: dict[str, Any] = {**self.density_options, "num_classes": num_classes}
            return Part(name, layer, GaussianDensity(**options), view)

        view = cast(View, "shares" if self.view == "auto" else self.view)
        parts = [part(layer, view, name) for layer, name in enumerate(layers)]
        if self.view == "auto":
            parts.append(part(len(layers) - 1, "raw", f"{layers[-1]} (raw)"))
        return [*parts, Part("energy")] if self.energy else parts

    def _layer_names(self) -> list[str]:
        """What the parts are called: their layers, of which all but the head are asked for their output."""
        taps = self.tap.taps
        names = [
            f"input of {tap.layer}" if tap.is_located and tap.found.kind.startswith("input") else tap.layer
            for tap in taps
        ]
        for name, times in Counter(names).items():
            if times > 1:
                raise InputError(f"The layers of DDU must differ, and {name!r} is there {times} times: name it once.")
        return [name or "features" for name in names]

    def _widths(self, batch: FeatureBatch) -> list[int]:
        """The number of features of each layer in a batch."""
        width = batch.features.shape[1]
        if isinstance(self.tap, FeatureTap):
            return [width]
        widths = self.tap.widths or (self.score.widths if self.score else [])
        if sum(widths) != width:
            raise InputError(
                f"The batch has {width} features, and the layers of this detector have "
                f"{sum(widths) or 'not been found yet'}: extract it with ddu.features.extract(detector.tap, loader)."
            )
        return widths

    def _need_one_density(self, purpose: str) -> None:
        if self._is_sum:
            raise NotSupportedError(
                f"{purpose} needs a score of one density, and this one is a sum of parts: use batches of "
                "ddu.features.extract(detector.tap, loader) in fit and predict, or DDU.paper(model)."
            )


def _make_tap(model: nn.Module, features: Features) -> FeatureTap | LayersTap:
    """A tap of several layers, or of one."""
    if isinstance(features, list | tuple):
        if not features:
            raise InputError("The 'features' parameter of DDU must have at least one layer. Got none instead.")
        return LayersTap(model, features)
    if isinstance(features, str) and features == "stages":
        return LayersTap(model, "stages")
    return FeatureTap(model, cast(FeatureSource, features))


def _density_options(density: object) -> dict[str, Any]:
    """The options of a density that differ from the defaults."""
    if isinstance(density, GaussianDensity):
        density = density.get_params()
    if not isinstance(density, Mapping | None):
        raise InputError(
            "The 'density' parameter of DDU must be a GaussianDensity, or a mapping of its options such as "
            f"{{'covariance': 'shared'}}. Got {density!r} instead."
        )
    defaults = GaussianDensity().get_params()
    for option in density or {}:
        check_name(option, defaults, "A density has no option {name!r}")
    # How many classes there are is for the model to say
    return {name: value for name, value in (density or {}).items() if name != "num_classes" and value != defaults[name]}
