"""Deep Deterministic Uncertainty around any classifier."""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from ddu.artifacts import model_fingerprint, save_artifact
from ddu.calibration import conformal_threshold, entropy_threshold, fit_temperature, training_quantile
from ddu.density import GaussianDensity, check_labels
from ddu.errors import ArtifactError, DDUWarning, InputError, NotFittedError
from ddu.features import FeatureBatch, FeatureSource, FeatureTap, extract, unwrapped
from ddu.measures import entropy
from ddu.types import Prediction, Verdict

# Rows of features gathered before the moments are updated: long matrix products instead of many short ones
_ROWS = 4096

_VERDICTS = np.array([Verdict.IN_DISTRIBUTION, Verdict.AMBIGUOUS, Verdict.OUT_OF_DISTRIBUTION], dtype=object)


class DDU:
    """A detector around a trained classifier: is this prediction clear, ambiguous, or about something unknown?

    The model runs in evaluation mode and without gradients, and is left as it was.

    Args:
        model: Any classifier that returns logits.
        features: Where its features are: by default what the last linear layer sees; or a layer's name, a module, or a
            callable that is called like the model.
        density: The density to fit; by default `GaussianDensity()`. With `background=True` it is the relative density
            that counts.
        class_names: Names for the classes, for printing.

    Attributes:
        density: The density, fitted by `fit` or `fit_features`.
        temperature: Divides the logits; 1 before calibration.
        density_threshold: Log-density below which an input is out of distribution; None before calibration.
        entropy_threshold: Entropy above which one in distribution is ambiguous; None before calibration.
        false_alarm_rate: The rate that the density threshold was set for.

    Example:
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

    def __init__(
        self,
        model: nn.Module,
        *,
        features: FeatureSource = None,
        density: GaussianDensity | None = None,
        class_names: Sequence[str] | None = None,
    ):
        if density is not None and not isinstance(density, GaussianDensity):
            raise InputError(f"The 'density' parameter of DDU must be a GaussianDensity. Got {density!r} instead.")
        if isinstance(class_names, Mapping):
            raise InputError("The 'class_names' parameter of DDU must be a sequence in the order of the classes.")
        self.tap = FeatureTap(model, features)
        self.density = GaussianDensity() if density is None else density
        self.class_names = None if class_names is None else tuple(map(str, class_names))
        self._forget_calibration()

    def __repr__(self) -> str:
        state = (
            "not fitted" if not self.density.is_fitted else "fitted" if self.density_threshold is None else "calibrated"
        )
        return f"DDU({self.tap}, {self.density}, {state})"

    @property
    def model(self) -> nn.Module:
        return self.tap.model

    def fit(self, loader: Iterable[Any], *, progress: bool | None = None) -> Self:
        """Fits the density to the features of training data, in one pass whose memory does not grow with the data.

        Args:
            loader: Batches of (inputs, labels), or mappings of them. Not augmented, if you can.
            progress: `True` shows a progress bar, `False` none; by default one appears if it takes long.
        """
        density: GaussianDensity | None = None
        for features, labels, num_classes in _gathered(extract(self.tap, loader, progress=progress)):
            if density is None:
                density = self._fresh_density(num_classes)
            density.update(features, labels)
        if density is None:
            raise InputError("The loader gave no batches, so there is nothing to fit: check its data set and sampler.")
        return self._accept(density)

    def fit_features(self, z: Tensor | np.ndarray, y: Tensor | np.ndarray) -> Self:
        """Fits the density to features that were extracted before, (sample, feature), with labels (sample,)."""
        return self._accept(self._fresh_density(len(self.class_names) if self.class_names else None).update(z, y))

    def calibrate(
        self,
        loader: Iterable[Any],
        false_alarm_rate: float = 0.01,
        *,
        threshold: Literal["conformal", "training_quantile"] = "conformal",
        progress: bool | None = None,
    ) -> Self:
        """Sets the temperature and the thresholds on data that the model was not trained on.

        Args:
            loader: Held-out batches of (inputs, labels) from the training distribution.
            false_alarm_rate: Share of in-distribution inputs that may be called out of distribution.
            threshold: "conformal", which keeps that rate for new data whatever its distribution; or
                "training_quantile", the paper's: the plain quantile, for which `loader` is the training data.
            progress: As in `fit`.
        """
        rules = {"conformal": conformal_threshold, "training_quantile": training_quantile}
        if threshold not in rules:
            raise InputError(
                f"The 'threshold' must be one of {', '.join(map(repr, rules))}. Got {threshold!r} instead."
            )
        self._need_fit()
        rows = [
            (batch.logits.float(), self._log_density(batch.features), _labels(batch))
            for batch in extract(self.tap, loader, progress=progress)
        ]
        if not rows:
            raise InputError("The loader gave no batches, so there is nothing to calibrate on.")
        logits, log_density, labels = (torch.cat(column) for column in zip(*rows, strict=True))
        _check_calibration_data(logits, labels)
        density_threshold = rules[threshold](log_density, false_alarm_rate)
        temperature = fit_temperature(logits, labels)
        # Nothing above has changed the detector: if it fails, the earlier calibration stands
        self.temperature = temperature
        self.density_threshold = density_threshold
        self.entropy_threshold = entropy_threshold(entropy(logits / temperature), logits.argmax(1) == labels)
        self.false_alarm_rate = float(false_alarm_rate)
        return self

    def predict(self, x: Any) -> Prediction:
        """Judges a batch of inputs: a tensor or array, or a tuple or mapping of what the model takes."""
        self._need_fit()
        batch = self.tap(x)
        logits = batch.logits.float() / self.temperature
        log_density = self._log_density(batch.features)
        aleatoric = entropy(logits)
        probs = torch.softmax(logits, dim=1)
        return Prediction(
            probs=probs,
            label=probs.argmax(1),
            aleatoric=aleatoric,
            epistemic=-log_density,
            log_density=log_density,
            verdict=self._verdicts(log_density, aleatoric),
            class_names=self.class_names,
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes everything learned to a folder; `ddu.load(folder, model)` reads it.

        The model's weights are not part of it, only the fingerprint of those that it was fitted to.
        """
        self._need_fit()
        content = {
            "detector": self.name,
            "features": _place(self.tap),
            "feature_width": self.density.moments_.dim,
            "num_classes": self.density.moments_.num_classes,
            "class_names": self.class_names,
            "density": self.density.get_params(),
            "temperature": self.temperature,
            "density_threshold": self.density_threshold,
            "entropy_threshold": self.entropy_threshold,
            "false_alarm_rate": self.false_alarm_rate,
            "model": {"class": type(self.model).__name__, "fingerprint": self._fingerprint},
        }
        save_artifact(folder, content, self.density.state_tensors())

    @classmethod
    def restore(
        cls,
        content: dict[str, Any],
        tensors: dict[str, Tensor],
        model: nn.Module,
        *,
        features: FeatureSource = None,
        strict: bool = True,
    ) -> Self:
        """A detector from what `save` wrote."""
        saved, fingerprint = content["model"], model_fingerprint(model)
        if fingerprint != saved["fingerprint"]:
            message = (
                f"The detector was fitted to a {saved['class']} with the fingerprint {saved['fingerprint'][:12]}, this "
                f"{type(model).__name__} has {fingerprint[:12]}: load the weights it was fitted to, or fit again."
            )
            if strict:
                raise ArtifactError(f"{message} If only the precision or layout differs, pass strict=False.")
            warnings.warn(message, DDUWarning, stacklevel=3)
        where = content["features"] if features is None else features
        detector = cls(model, features=where, class_names=content["class_names"])
        detector.density = GaussianDensity.restore(content["density"], tensors)
        detector._fingerprint = saved["fingerprint"]
        detector.temperature = content["temperature"]
        detector.density_threshold = content["density_threshold"]
        detector.entropy_threshold = content["entropy_threshold"]
        detector.false_alarm_rate = content["false_alarm_rate"]
        return detector

    def _fresh_density(self, num_classes: int | None) -> GaussianDensity:
        params: dict[str, Any] = self.density.get_params() | {"num_classes": num_classes}
        return GaussianDensity(**params)

    def _accept(self, density: GaussianDensity) -> Self:
        num_classes = density.prepare().moments_.num_classes
        if self.class_names is not None and len(self.class_names) != num_classes:
            raise InputError(
                f"There are {len(self.class_names)} class names for {num_classes} classes: give one for each."
            )
        self.density = density
        self._fingerprint = model_fingerprint(self.model)
        self._forget_calibration()
        return self

    def _forget_calibration(self) -> None:
        self.temperature = 1.0
        self.density_threshold: float | None = None
        self.entropy_threshold: float | None = None
        self.false_alarm_rate: float | None = None

    def _need_fit(self) -> None:
        if not self.density.is_fitted:
            raise NotFittedError("This DDU detector is not fitted yet. Call fit(loader) or fit_features(z, y) first.")

    def _log_density(self, features: Tensor) -> Tensor:
        density = self.density
        scores = density.relative_log_density(features) if density.background else density.log_density(features)
        return torch.as_tensor(scores)

    def _verdicts(self, log_density: Tensor, aleatoric: Tensor) -> np.ndarray | None:
        if self.density_threshold is None or self.entropy_threshold is None:
            return None
        unknown = log_density.double() < self.density_threshold
        ambiguous = aleatoric.double() > self.entropy_threshold
        return _VERDICTS[torch.where(unknown, 2, ambiguous.long()).cpu().numpy()]


def _place(tap: FeatureTap) -> dict[str, str] | str | None:
    """Where the features are, as JSON: as found by a forward pass or, where none has run, as asked for."""
    if tap.is_located:
        return tap.describe()
    if isinstance(tap.features, nn.Module):
        names = [name for name, module in unwrapped(tap.model).named_modules() if module is tap.features]
        return names[0] if names else None
    return tap.layer


def _gathered(batches: Iterable[FeatureBatch]) -> Iterable[tuple[Tensor, Tensor, int]]:
    """Features, labels and the number of classes, with small batches joined."""
    waiting: list[FeatureBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(len(b.features) for b in waiting) >= _ROWS:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[FeatureBatch]) -> tuple[Tensor, Tensor, int]:
    features = torch.cat([batch.features for batch in batches])
    return features, torch.cat([_labels(batch) for batch in batches]), batches[0].logits.shape[1]


def _labels(batch: FeatureBatch) -> Tensor:
    assert batch.labels is not None
    return batch.labels


def _check_calibration_data(logits: Tensor, labels: Tensor) -> None:
    check_labels(labels, samples=len(logits), num_classes=logits.shape[1])
    bad = int((~torch.isfinite(logits)).any(1).sum())
    if bad:
        raise InputError(f"The model gave NaN or infinite logits for {bad} of {len(logits)} held-out inputs: check it.")
