"""What all detectors share: run a model, calibrate, give verdicts, save and load.

A new detector says what it learns from batches of features and logits (`_learn`), and how it scores a batch
(`_evidence`). Everything else is here.
"""

import inspect
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from ddu.artifacts import model_fingerprint, save_artifact
from ddu.calibration import Calibration, ThresholdRule, calibrate
from ddu.density import check_counts, check_device, check_labels
from ddu.detectors.agreement import Agreement
from ddu.errors import ArtifactError, DDUWarning, InputError, LabelError, LayerError, NotFittedError
from ddu.features import FeatureBatch, Tap, check_model, extract, unwrapped
from ddu.features.forward import check_logits
from ddu.features.loaders import are_given, check_loader, listed_labels
from ddu.measures import entropy
from ddu.messages import check_entries
from ddu.types import Prediction

# Rows of features gathered before something is learned from them: long matrix products instead of many short ones
_ROWS = 4096


class Evidence(NamedTuple):
    """The logits and scores of a batch, before temperature and thresholds."""

    logits: Tensor  # (N, C), log-probabilities up to a constant
    epistemic: Tensor  # (N,), larger means more unknown


class BaseDetector(ABC):
    """Everything about a detector except what it learns and how it scores.

    The model runs in evaluation mode, and is left as it was. Every method that takes inputs also takes a `FeatureBatch`
    from `ddu.features.extract(detector.tap, loader)`, which saves the forward pass.

    Attributes:
        tap: What runs the model.
        calibration: Temperature and thresholds; None before `calibrate`.
        class_names: Names for the classes, for printing.
    """

    name: ClassVar[str]
    """What files and the command line call it."""
    needs_fit: ClassVar[bool] = True
    """Whether it learns from training data; one that does not predicts without `fit`."""
    can_save: ClassVar[bool] = True
    """Whether it can be saved."""
    has_density: ClassVar[bool] = False
    """Whether its epistemic score is a negative log-density."""
    needs_every_class: ClassVar[bool] = False
    """Whether it learns something about each class, and so needs samples of each."""
    _how_to_fit: ClassVar[str] = "fit(loader)"

    def __init__(self, tap: Tap, class_names: Sequence[str] | None):
        if isinstance(class_names, Mapping):
            raise InputError(
                f"The 'class_names' parameter of {type(self).__name__} must be a sequence in the order of the classes."
            )
        self.tap = tap
        self.class_names = None if class_names is None else tuple(map(str, class_names))
        self.calibration: Calibration | None = None
        self._fingerprint: str | None = None

    # What a new detector defines

    @abstractmethod
    def _evidence(self, batch: FeatureBatch) -> Evidence:
        """Scores a batch."""

    def _learn(self, batches: Iterable[FeatureBatch]) -> None:
        """Learns from labelled batches; if it fails, the detector is left as it was."""
        raise NotImplementedError

    def _view(self, x: Any) -> FeatureBatch:
        """Runs the model for a prediction."""
        return self.tap(x)

    @property
    def is_fitted(self) -> bool:
        """Whether it has learned what it needs to predict."""
        return not self.needs_fit

    @property
    def needs_inputs(self) -> bool:
        """Whether it needs the inputs themselves, so that extracted features are not enough."""
        return False

    def _options(self) -> dict[str, Any]:
        """The constructor's own arguments as JSON."""
        return {}

    def _tensors(self) -> dict[str, Tensor]:
        """Everything learned, by name."""
        return {}

    def _movable(self) -> Iterable[Any]:
        """What was learned, as objects that `to(device)` moves in place."""
        return ()

    @classmethod
    def _rebuild(cls, model: nn.Module, options: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """A fitted detector from its options and tensors."""
        constructor: Any = cls
        return constructor(model, **options)

    # What all of them do

    @property
    def model(self) -> nn.Module:
        """The model whose predictions are judged."""
        return self.tap.model

    @property
    def temperature(self) -> float:
        """Divides the logits; 1 before calibration."""
        return self.calibration.temperature if self.calibration else 1.0

    @property
    def epistemic_threshold(self) -> float | None:
        """Epistemic score above which an input is out of distribution; None before calibration."""
        return self.calibration.epistemic_threshold if self.calibration else None

    @property
    def entropy_threshold(self) -> float | None:
        """Entropy above which an input in distribution is ambiguous; None before calibration."""
        return self.calibration.entropy_threshold if self.calibration else None

    @property
    def false_alarm_rate(self) -> float | None:
        """The rate that the epistemic threshold was set for; None before calibration."""
        return self.calibration.false_alarm_rate if self.calibration else None

    def __repr__(self) -> str:
        state = "calibrated" if self.calibration else "fitted" if self.is_fitted else "not fitted"
        options = [f"{name}={value!r}" for name, value in self._options().items() if name != "features"]
        return f"{type(self).__name__}({', '.join([repr(self.tap), *options, state])})"

    def fit(self, loader: Iterable[Any], *, progress: bool | None = None) -> Self:
        """Learns from training data, in one pass; an earlier fit and its calibration are forgotten.

        A detector that has nothing to learn leaves the loader alone.

        Args:
            loader: Batches of (inputs, labels), or mappings of them. Not augmented, if you can.
            progress: `True` shows a progress bar, `False` none; by default one appears if it takes long.

        Warns:
            LabelWarning: The labels agree with the model's predictions no more than by chance.
        """
        check_loader(loader)
        if self.needs_fit:
            batches = self._labelled(self.tap, loader, progress, "to fit", every_class=self.needs_every_class)
            self._learn(_gathered(batches))
        return self._settle()

    def calibrate(
        self,
        loader: Iterable[Any],
        false_alarm_rate: float = 0.01,
        *,
        threshold: ThresholdRule = "conformal",
        progress: bool | None = None,
    ) -> Self:
        """Sets the temperature and the thresholds on data that the model was not trained on.

        Args:
            loader: Held-out batches of (inputs, labels) from the training distribution.
            false_alarm_rate: Share of in-distribution inputs that may be called out of distribution.
            threshold: "conformal", which keeps that rate for new data whatever its distribution; or
                "training_quantile", the paper's: the plain quantile, for which `loader` is the training data.
            progress: As in `fit`.

        Warns:
            LabelWarning: As in `fit`.
            CalibrationWarning: No temperature is best.
        """
        self._need_fit()
        batches = self._labelled(self._view, loader, progress, "to calibrate on")
        rows = [(*self._judge(batch), labels_of(batch)) for batch in batches]
        logits, epistemic, labels = (torch.cat(column) for column in zip(*rows, strict=True))
        # If this fails, the earlier calibration stands
        self.calibration = calibrate(logits, epistemic, labels, false_alarm_rate, threshold)
        if not self.needs_fit:
            self._fingerprint = model_fingerprint(self.model)
        return self

    def evidence(self, x: Any) -> Evidence:
        """Scores a batch of inputs, before temperature and thresholds."""
        self._need_fit()
        batch = self._view(x)
        check_logits(batch.logits)
        return self._judge(batch)

    def predict(self, x: Any) -> Prediction:
        """Judges a batch of inputs: a tensor or array, or a tuple or mapping of what the model takes."""
        logits, epistemic = self.evidence(x)
        logits = logits / self.temperature
        aleatoric = entropy(logits)
        probs = torch.softmax(logits, dim=1)
        return Prediction(
            probs=probs,
            label=probs.argmax(1),
            aleatoric=aleatoric,
            epistemic=epistemic,
            log_density=-epistemic if self.has_density else None,
            verdict=self.calibration.verdicts(epistemic, aleatoric) if self.calibration else None,
            class_names=self.class_names,
        )

    def to(self, device: torch.device | str | None = None) -> Self:
        """Moves the model and everything learned to a device, in place, as `nn.Module.to` does.

        `detector.model.to(device)` alone works as well. A density then copies its factors to the features' device on
        first use; other detectors bring the features to what they learned, and the scores back.
        """
        check_device(device)
        if device is not None:
            for part in (self.model, *self._movable()):
                part.to(device)
        return self

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes everything learned to a folder; `ddu.load(folder, model)` reads it.

        The model's weights are not part of it, only the fingerprint of those that it was fitted to.
        """
        self._need_fit()
        content = {
            "detector": self.name,
            "class_names": self.class_names,
            "options": self._options(),
            "calibration": asdict(self.calibration) if self.calibration else None,
            "model": {
                "class": type(self.model).__name__,
                "fingerprint": self._fingerprint or model_fingerprint(self.model),
            },
        }
        save_artifact(folder, content, self._tensors())

    @classmethod
    def restore(
        cls,
        content: dict[str, Any],
        tensors: dict[str, Tensor],
        model: nn.Module,
        *,
        strict: bool = True,
        **replaced: Any,
    ) -> Self:
        """A detector from what `save` wrote, with some of its options replaced."""
        names, calibration, saved = content["class_names"], content["calibration"], content["model"]
        own = [name for name in inspect.signature(cls).parameters if name not in ("model", "models", "class_names")]
        check_entries(f"the options of {cls.__name__}", content["options"], own)
        check_entries("the model", saved, ("class", "fingerprint"))
        if not all(isinstance(value, str) for value in saved.values()):
            raise InputError(f"The model must have a class and a fingerprint that are text. Got {saved!r} instead.")
        if not (names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))):
            raise InputError(f"The class names must be None or a list of text. Got {names!r} instead.")
        if calibration is not None:
            check_entries("the calibration", calibration, [one.name for one in fields(Calibration)])
        fingerprint = model_fingerprint(model)
        if fingerprint != saved["fingerprint"]:
            message = (
                f"The detector was fitted to a {saved['class']} with the fingerprint {saved['fingerprint'][:12]}, this "
                f"{type(model).__name__} has {fingerprint[:12]}: load the weights it was fitted to, or fit again."
            )
            if strict:
                raise ArtifactError(f"{message} If only the precision or layout differs, pass strict=False.")
            warnings.warn(message, DDUWarning, stacklevel=3)
        detector = cls._rebuild(model, content["options"] | replaced, tensors)
        detector.class_names = None if names is None else tuple(names)
        detector.calibration = None if calibration is None else Calibration(**calibration)
        detector._fingerprint = saved["fingerprint"]
        return detector

    def _settle(self) -> Self:
        """After a fit: it belongs to the weights that the model has now, and is not calibrated."""
        self.calibration = None
        self._fingerprint = model_fingerprint(self.model)
        return self

    def _need_fit(self) -> None:
        if not self.is_fitted:
            raise NotFittedError(
                f"This {type(self).__name__} detector is not fitted yet. Call {self._how_to_fit} first."
            )

    def _judge(self, batch: FeatureBatch) -> Evidence:
        logits, epistemic = self._evidence(batch)
        bad = int((~torch.isfinite(logits)).any(1).sum())
        self._check_class_names(logits.shape[1])
        if bad:
            raise InputError(f"The model gave NaN or infinite logits for {bad} of {len(logits)} inputs: check it.")
        return Evidence(logits.float(), epistemic)

    def _labelled(
        self,
        run: Callable[[Any], FeatureBatch],
        loader: Iterable[Any],
        progress: bool | None,
        purpose: str,
        *,
        every_class: bool = False,
    ) -> Iterator[FeatureBatch]:
        """Batches with labels, checked against the model: after the first batch where possible, or at the end."""
        agreement: Agreement | None = None
        for batch in extract(run, loader, progress=progress):
            num_classes = batch.logits.shape[1]
            if agreement is None:
                agreement = Agreement(num_classes)
                self._check_class_names(num_classes)
                _check_ahead(loader, num_classes, every_class)
            check_logits(batch.logits)
            labels = check_labels(labels_of(batch), samples=len(batch.logits), num_classes=num_classes)
            agreement.add(batch.logits, labels)
            yield batch._replace(labels=labels)
        if agreement is None:
            raise InputError(
                f"The loader gave no batches, so there is nothing {purpose}: check its data set and sampler."
            )
        if every_class:
            _check_coverage(agreement.labels)
        agreement.warn_of_chance()

    def _check_class_names(self, num_classes: int) -> None:
        if self.class_names is not None and len(self.class_names) != num_classes:
            raise InputError(
                f"There are {len(self.class_names)} class names for {num_classes} classes: give one for each."
            )


def _check_ahead(loader: Iterable[Any], num_classes: int, every_class: bool) -> None:
    """Refuses labels that a data set lists before all of it is read."""
    labels = listed_labels(loader)
    if labels is None:
        return
    try:
        check_labels(labels, samples=len(labels), num_classes=num_classes)
        if every_class:
            _check_coverage(torch.bincount(labels, minlength=num_classes))
    except LabelError:
        if are_given(labels, loader):
            raise


def _check_coverage(counts: Tensor) -> None:
    """Every class of the model has samples, and enough for a variance."""
    empty = (counts == 0).nonzero().flatten().tolist()
    if empty:
        covered = len(counts) - len(empty)
        raise LabelError(
            f"The model has {len(counts):,} classes, and the labels of the {int(counts.sum()):,} training samples "
            f"cover {covered:,} of them; class {empty[0]} has none. Add samples of every class, or give the model a "
            f"head of {covered:,} outputs, trained on labels from 0 to {covered - 1}."
        )
    check_counts(counts)


def _gathered(batches: Iterable[FeatureBatch]) -> Iterator[FeatureBatch]:
    """The same rows in larger batches."""
    waiting: list[FeatureBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(len(b.features) for b in waiting) >= _ROWS:
            yield joined(waiting)
            waiting = []
    if waiting:
        yield joined(waiting)


def joined(batches: list[FeatureBatch]) -> FeatureBatch:
    """Batches with labels as one."""
    rows = [(batch.features, batch.logits, labels_of(batch)) for batch in batches]
    return FeatureBatch(*(torch.cat(column) for column in zip(*rows, strict=True)))


def find_layer(model: nn.Module, kind: type[nn.Module], way_out: str) -> str:
    """The name of the only layer of a kind."""
    check_model(model)
    names = [name for name, module in unwrapped(model).named_modules() if isinstance(module, kind)]
    if len(names) != 1:
        raise LayerError(
            f"This detector needs a network with one {kind.__name__}, and the {type(model).__name__} has {len(names)}: "
            f"train one that {way_out} makes."
        )
    return names[0]


def labels_of(batch: FeatureBatch) -> Tensor:
    """The labels, which batches from `extract` always have."""
    assert batch.labels is not None
    return batch.labels
