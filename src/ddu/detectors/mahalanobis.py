"""The Mahalanobis detector (Lee et al., "A simple unified framework for detecting ... samples", 2018).

Differences from the original: several layers are averaged without weights learned from other data, since no unfamiliar
data is needed then; and the step along the input gradient is one for all layers, along their average.

The relative form is Ren et al., "A simple fix to Mahalanobis distance for improving near-OOD detection", 2021.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from ddu.density import GaussianDensity
from ddu.detectors.base import BaseDetector, Evidence, labels_of
from ddu.errors import FeatureError, InputError
from ddu.features import FeatureBatch, FeatureSource, LayersTap
from ddu.messages import check_name


class Mahalanobis(BaseDetector):
    """Scores inputs by their distance to the nearest class mean, under the covariance that the classes share.

    With D² the squared distance to the nearest class mean in d features, a layer's score is (D² - d) / √(2d): D² has
    the mean d and the variance 2d where its Gaussian is right, so that layers of any width weigh the same. Several
    layers are averaged.

    Args:
        model: Any classifier that returns logits.
        layers: The layers to take features from, by name or as modules; by default what the last linear layer sees.
        relative: Subtract the squared distance to one Gaussian of all data, instead of d.
        perturbation: Step of the inputs against the sign of the score's gradient, which familiar inputs follow further
            than others. It costs a backward and a second forward pass, and is in the units of the inputs.
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
        layers: Sequence[FeatureSource] | None = None,
        relative: bool = False,
        perturbation: float = 0.0,
        class_names: Sequence[str] | None = None,
    ):
        if layers is not None and (not isinstance(layers, Sequence) or isinstance(layers, str) or not layers):
            raise InputError(f"The 'layers' parameter of Mahalanobis must be a list of layers. Got {layers!r} instead.")
        if relative not in (True, False):
            raise InputError(
                f"The 'relative' parameter of Mahalanobis must be True or False. Got {relative!r} instead."
            )
        if not isinstance(perturbation, float | int) or not 0 <= perturbation <= sys.float_info.max:
            raise InputError(
                f"The 'perturbation' parameter of Mahalanobis must be a float of at least 0. Got {perturbation!r} "
                "instead."
            )
        super().__init__(LayersTap(model, [None] if layers is None else layers), class_names)
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

    def _learn(self, batches: Iterable[FeatureBatch]) -> None:
        densities: list[GaussianDensity] = []
        for batch in batches:
            parts = batch.features.split(self.tap.widths or batch.features.shape[1], dim=1)
            if not densities:
                densities = [self._density(num_classes=batch.logits.shape[1]) for _ in parts]
            for density, part in zip(densities, parts, strict=True):
                density.update(part, labels_of(batch))
        self.densities = [density.prepare() for density in densities]

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
        moments = [density.moments_ for density in self.densities]
        # In double precision, since the relative form is a small difference of large distances
        exact = features.to(moments[0].device, torch.float64)
        if exact.shape[1] != sum(m.dim for m in moments):
            raise FeatureError(
                f"The densities were fitted on {sum(m.dim for m in moments)} features, these have {exact.shape[1]}. "
                "Use features of the same layers of the same network, or fit again."
            )
        scores = []
        for density, z in zip(self.densities, exact.split([m.dim for m in moments], dim=1), strict=True):
            # Both papers divide their scatter by n, not by n - C and n - 1: far out, where both distances are large,
            # their difference would hang on it
            count = density.counts_
            n, dof = count.sum(), count.sum() - len(count)
            nearest = density.mahalanobis(z).amin(1) * n / dof
            expected = density.background_mahalanobis(z) * n / (n - 1) if self.relative else z.shape[1]
            scores.append((nearest - expected) / (2 * z.shape[1]) ** 0.5)
        return torch.stack(scores).mean(0).float().to(features.device)

    def _density(self, num_classes: int | None) -> GaussianDensity:
        return GaussianDensity("shared", shrinkage=None, background=self.relative, num_classes=num_classes)

    def _options(self) -> dict[str, Any]:
        places = [tap.place() for tap in self.tap.taps]
        return {"layers": places, "relative": self.relative, "perturbation": self.perturbation}

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f"{layer}.{name}": tensor
            for layer, density in enumerate(self.densities)
            for name, tensor in density.state_tensors().items()
        }

    def _movable(self) -> Iterable[Any]:
        return self.densities

    @classmethod
    def _rebuild(cls, model: nn.Module, options: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        detector = cls(model, **options)
        parts: dict[str, dict[str, Tensor]] = {str(layer): {} for layer in range(len(detector.tap.taps))}
        for name, tensor in tensors.items():
            layer, _, own_name = name.partition(".")
            check_name(layer, parts, "There must be no layer {name!r} in the learned tensors")
            parts[layer][own_name] = tensor
        params = detector._density(num_classes=None).get_params()
        for own in parts.values():
            density = GaussianDensity.restore(params, own)
            density.num_classes = density.moments_.num_classes
            detector.densities.append(density)
        return detector
