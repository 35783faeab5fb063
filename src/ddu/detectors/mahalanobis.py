"""The Mahalanobis detector (Lee et al., "A simple unified framework for detecting ... samples", 2018).

Differences from the original: several layers are averaged without weights learned from other data, since no unfamiliar
data is needed then; and the step along the input gradient is one for all layers, along their average.

The relative form is Ren et al., "A simple fix to Mahalanobis distance for improving near-OOD detection", 2021. Both
papers divide scatter by n; here the shared covariance divides by n - C, and the background adds the covariance of the
class means to it, so that the two cancel wherever the means do not differ.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from ddu.density import DensityGraph, GaussianDensity
from ddu.detectors.base import BaseDetector, Evidence
from ddu.detectors.labels import labels_of
from ddu.detectors.score import split_names
from ddu.errors import FeatureError, InputError, NotSupportedError
from ddu.features import FeatureBatch, FeatureSource, LayersTap


class Mahalanobis(BaseDetector):
    """Scores inputs by their distance to the nearest class mean, under the covariance that the classes share.

    With D² the squared distance to the nearest class mean in d features, a layer's score is (D² - d) / √(2d): D² has
    the mean d and the variance 2d where its Gaussian is right, so that layers of any width weigh the same. Several
    layers are averaged.

    Args:
        model: Any classifier that returns logits.
        layers: The layers to take features from, by name or as modules, or `"stages"`, as `LayersTap` takes them; by
            default what the last linear layer sees.
        relative: Subtract the squared distance to one Gaussian of all classes, instead of d.
        perturbation: Step of the inputs against the sign of the score's gradient, which familiar inputs follow further
            than others. It costs a backward and a second forward pass, and is in the units of the inputs.
        classes: Those of the model's classes that the data has, as for `DDU`.
        class_names: Names for the classes, for printing.

    Attributes:
        densities: The fitted Gaussians, one per layer.

    >>> x, y = torch.randn(200, 2), torch.arange(200) % 2
    >>> x[:, 0] += 6 * y
    >>> detector = Mahalanobis(nn.Linear(2, 2)).fit([(x, y)])
    >>> known, unknown = detector.predict(torch.tensor([[6.0, 0.0], [3.0, 0.0]])).epistemic
    >>> known < unknown
    tensor(True)
    """

    name = "mahalanobis"
    needs_every_class = True
    tap: LayersTap

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Sequence[FeatureSource] | Literal["stages"] | None = None,
        relative: bool = False,
        perturbation: float = 0.0,
        classes: Sequence[int] | None = None,
        class_names: Sequence[str] | None = None,
    ):
        is_list = isinstance(layers, Sequence) and not isinstance(layers, str) and len(layers) > 0
        if not is_list and layers not in (None, "stages"):
            raise InputError(
                f"The 'layers' parameter of Mahalanobis must be a list of layers or 'stages'. Got {layers!r} instead."
            )
        if relative not in (True, False):
            raise InputError(
                f"The 'relative' parameter of Mahalanobis must be True or False. Got {relative!r} instead."
            )
        if not isinstance(perturbation, float | int) or not 0 <= perturbation <= sys.float_info.max:
            raise InputError(
                f"The 'perturbation' parameter of Mahalanobis must be a float of at least 0. Got {perturbation!r} "
                "instead."
            )
        super().__init__(LayersTap(model, [None] if layers is None else layers), class_names, classes)
        self.relative = relative
        self.perturbation = perturbation
        self.densities: list[GaussianDensity] = []

    @property
    def is_fitted(self) -> bool:
        """Whether it has seen training data."""
        return bool(self.densities)

    @property
    def needs_inputs(self) -> bool:
        """Whether it takes a step along the input gradient."""
        return self.perturbation > 0

    def _collect(self, batches: Iterable[FeatureBatch], expected_samples: int | None) -> "_Layers | None":
        densities: list[GaussianDensity] = []
        for batch in batches:
            parts = batch.features.split(self.tap.widths or batch.features.shape[1], dim=1)
            if not densities:
                densities = [self._density(num_classes=batch.logits.shape[1]) for _ in parts]
            for density, part in zip(densities, parts, strict=True):
                density.update(part, labels_of(batch))
        return _Layers(densities) if densities else None

    def _finish(self, collected: "_Layers") -> None:
        self.densities = [density.prepare() for density in collected.densities]

    def _view(self, x: Any) -> FeatureBatch:
        if not self.needs_inputs:
            return self.tap(x)
        if isinstance(x, FeatureBatch):
            raise InputError("Mahalanobis with a perturbation needs the inputs themselves, not extracted features.")
        return self.tap.descend(x, self._score, self.perturbation)

    def _evidence(self, batch: FeatureBatch) -> Evidence:
        return Evidence(batch.logits, self._score(batch.features))

    def _score(self, features: Tensor) -> Tensor:
        """The mean over layers of (D² - d) / √(2d), (sample,); differentiable in the features."""
        widths = [density.num_features_ for density in self.densities]
        if features.shape[1] != sum(widths):
            raise FeatureError(
                f"The densities were fitted on {sum(widths)} features, these have {features.shape[1]}. "
                "Use features of the same layers of the same network, or fit again."
            )
        scores = []
        # In single precision, whatever the model's: so it is what a saved detector scores with
        for density, z in zip(self.densities, features.float().split(widths, dim=1), strict=True):
            excess = density.relative_mahalanobis(z) if self.relative else density.mahalanobis(z) - z.shape[1]
            scores.append(excess.amin(1) / (2 * z.shape[1]) ** 0.5)
        return torch.stack(scores).mean(0)

    def graph(self) -> nn.Module:
        """The score as a module that can be exported."""
        if self.needs_inputs:
            raise NotSupportedError(
                f"Mahalanobis with perturbation={self.perturbation:g} takes a step along a gradient, which a graph "
                "does not have: export one without."
            )
        self._need_fit()
        return _MahalanobisGraph(self.densities)

    def _density(self, num_classes: int | None) -> GaussianDensity:
        return GaussianDensity("shared", shrinkage=None, background=self.relative, num_classes=num_classes)

    def _options(self) -> dict[str, Any]:
        classes = None if self.classes is None else list(self.classes)
        options = {"layers": self.tap.place(), "relative": self.relative, "perturbation": self.perturbation}
        return options | {"classes": classes}

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f"{layer}.{name}": tensor
            for layer, density in enumerate(self.densities)
            for name, tensor in density.state_tensors(moments=False, factors=True).items()
        }

    def _movable(self) -> Iterable[Any]:
        return self.densities

    @classmethod
    def _rebuild(cls, model: nn.Module, options: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        detector = cls(model, **options)
        parts = split_names(tensors, [str(layer) for layer in range(len(detector.tap.taps))], "layer")
        params = detector._density(num_classes=None).get_params()
        for own in parts.values():
            density = GaussianDensity.restore(params, own)
            density.num_classes = len(density.counts_)
            detector.densities.append(density)
        return detector


class _Layers(NamedTuple):
    """The densities of the layers, before they are factorised."""

    densities: list[GaussianDensity]

    def merge(self, other: "_Layers") -> "_Layers":
        for mine, theirs in zip(self.densities, other.densities, strict=True):
            mine.merge(theirs)
        return self


class _MahalanobisGraph(nn.Module):
    def __init__(self, densities: Sequence[GaussianDensity]):
        super().__init__()
        self.widths = [density.num_features_ for density in densities]
        self.densities = nn.ModuleList(density.graph() for density in densities)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        scores = []
        for density, z in zip(self.densities, features.split(self.widths, dim=1), strict=True):
            assert isinstance(density, DensityGraph)
            excess = density.mahalanobis(z) - (0 if density.relative else z.shape[1])
            scores.append(excess.amin(1) / (2 * z.shape[1]) ** 0.5)
        limit = torch.finfo(torch.float32).max
        return torch.stack(scores, 1).mean(1, keepdim=True).clamp(-limit, limit).float()
