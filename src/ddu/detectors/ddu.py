"""Deep Deterministic Uncertainty around any classifier."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor, nn

from ddu.density import GaussianDensity
from ddu.detectors.base import BaseDetector, Evidence, labels_of
from ddu.errors import InputError
from ddu.features import FeatureBatch, FeatureSource, FeatureTap
from ddu.messages import check_name


class DDU(BaseDetector):
    """A detector around a trained classifier: is this prediction clear, ambiguous, or about something unknown?

    The model runs in evaluation mode and without gradients, and is left as it was.

    Args:
        model: Any classifier that returns logits.
        features: Where its features are: by default what the last linear layer sees; or a layer's name, a module, or a
            callable that is called like the model.
        density: The density to fit, or a mapping of its options; by default `GaussianDensity()`. With `background=True`
            it is the relative density that counts.
        class_names: Names for the classes, for printing.

    Attributes:
        density: The density, fitted by `fit` or `fit_features`.
        temperature: Divides the logits; 1 before calibration.
        density_threshold: Log-density below which an input is out of distribution; None before calibration.
        entropy_threshold: Entropy above which one in distribution is ambiguous; None before calibration.
        false_alarm_rate: The rate that the density threshold was set for.

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
    has_density = True
    _how_to_fit: ClassVar[str] = "fit(loader) or fit_features(z, y)"
    needs_every_class = True
    tap: FeatureTap

    def __init__(
        self,
        model: nn.Module,
        *,
        features: FeatureSource = None,
        density: GaussianDensity | Mapping[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
    ):
        super().__init__(FeatureTap(model, features), class_names)
        self.density = _as_density(density)

    @property
    def is_fitted(self) -> bool:
        """Whether the density has been fitted."""
        return self.density.is_fitted

    @property
    def density_threshold(self) -> float | None:
        """Log-density below which an input is out of distribution; None before calibration."""
        return None if self.epistemic_threshold is None else -self.epistemic_threshold

    def fit_features(self, z: Tensor | np.ndarray, y: Tensor | np.ndarray) -> Self:
        """Fits the density to features that were extracted before, (sample, feature), with labels (sample,)."""
        self._accept(self._fresh_density(len(self.class_names) if self.class_names else None).update(z, y))
        return self._settle()

    def score_features(self, z: Tensor) -> Tensor:
        """The epistemic score of features that were extracted before: minus their log-density, (sample,)."""
        self._need_fit()
        density = self.density
        score = density.relative_log_density if density.background else density.log_density
        return -score(z)

    def _learn(self, batches: Iterable[FeatureBatch]) -> None:
        """Moments only: memory does not grow with the data."""
        density: GaussianDensity | None = None
        for batch in batches:
            if density is None:
                density = self._fresh_density(batch.logits.shape[1])
            density.update(batch.features, labels_of(batch))
        assert density is not None
        self._accept(density)

    def _evidence(self, batch: FeatureBatch) -> Evidence:
        return Evidence(batch.logits, self.score_features(batch.features))

    def _options(self) -> dict[str, Any]:
        return {"features": self.tap.place(), "density": self.density.get_params()}

    def _tensors(self) -> dict[str, Tensor]:
        return self.density.state_tensors()

    def _movable(self) -> Iterable[Any]:
        return [self.density]

    @classmethod
    def _rebuild(cls, model: nn.Module, options: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        density = GaussianDensity.restore(options["density"], tensors)
        return cls(model, features=options["features"], density=density)

    def _fresh_density(self, num_classes: int | None) -> GaussianDensity:
        params: dict[str, Any] = self.density.get_params() | {"num_classes": num_classes}
        return GaussianDensity(**params)

    def _accept(self, density: GaussianDensity) -> None:
        self.density = density.prepare()


def _as_density(density: object) -> GaussianDensity:
    """A density as it is, or one with these options."""
    if isinstance(density, GaussianDensity):
        return density
    if not isinstance(density, Mapping | None):
        raise InputError(
            "The 'density' parameter of DDU must be a GaussianDensity, or a mapping of its options such as "
            f"{{'covariance': 'shared'}}. Got {density!r} instead."
        )
    for option in density or {}:
        check_name(option, inspect.signature(GaussianDensity).parameters, "A density has no option {name!r}")
    return GaussianDensity(**density or {})
