"""What all detectors share: run a model, calibrate, give verdicts, save and load.

A new detector says what it learns from batches of features and logits (`_learn`), and how it scores a batch
(`_evidence`). One that learns from sums over samples says instead how it collects them (`_collect`) and what follows
from them (`_finish`), so that several processes can share the work. Everything else is here.
"""

import functools
import inspect
import itertools
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from ddu.artifacts import model_fingerprint, save_artifact
from ddu.calibration import Calibration, ThresholdRule, calibrate
from ddu.conformal import conformal_rank, least_samples, possible_rate
from ddu.density import GaussianDensity, check_classes, check_device, check_labels
from ddu.detectors.inputs import (
    Channels,
    SeenInputs,
    first_tensor,
    warn_of_augmentation,
    watched,
    without_bad_inputs,
    without_bad_outputs,
)
from ddu.detectors.labels import Agreement, check_coverage, labels_of
from ddu.detectors.parts import Judged, Learned, Pass
from ddu.distributed import Ranks
from ddu.errors import (
    ArtifactError,
    DDUWarning,
    InputError,
    LabelError,
    LogitsWarning,
    NotFittedError,
    NotSupportedError,
)
from ddu.features import FeatureBatch, Tap, extract
from ddu.features.forward import are_log_probabilities, check_logits
from ddu.features.loaders import are_given, batches_of, check_loader, expected_samples, listed_labels
from ddu.measures import entropy
from ddu.messages import check_entries, frames_to_the_caller
from ddu.types import Prediction

if TYPE_CHECKING:
    from ddu.data import Preprocessing
    from ddu.export import Parity

# Rows of features gathered before something is learned from them: long matrix products instead of many short ones
_ROWS = 4096

# The option of a detector that keeps all classes of its model
_ALL = ("classes", None)

# Inputs per forward pass of a prediction
_BATCH = 512

KEPT, INPUTS = "calibration.", "inputs."
"""In a file, the names of what a calibration keeps begin so, and those of what is known of the inputs."""


class Evidence(NamedTuple):
    """The logits and scores of a batch, before temperature and thresholds."""

    logits: Tensor  # (N, C), log-probabilities up to a constant
    epistemic: Tensor  # (N,), larger means more unknown
    values: Tensor | None = None  # (N, P), what the parts of a sum say, before they are standardised and added


class BaseDetector(ABC):
    """Everything about a detector except what it learns and how it scores.

    The model runs in evaluation mode, and is left as it was. Every method that takes inputs also takes a `FeatureBatch`
    from `ddu.features.extract(detector.tap, loader)`, which saves the forward pass.

    Attributes:
        tap: What runs the model.
        calibration: Temperature and thresholds; None before `calibrate`.
        class_names: Names for the classes, for printing.
        classes: Those of the model's classes that are kept, which are then numbered from 0 in this order, in labels and
            in predictions; None keeps all.
    """

    name: ClassVar[str]
    """What files and the command line call it."""
    needs_fit: ClassVar[bool] = True
    """Whether it learns from training data; one that does not predicts without `fit`."""
    can_save: ClassVar[bool] = True
    """Whether it can be saved."""
    needs_every_class: ClassVar[bool] = False
    """Whether it learns something about each class, and so needs samples of each."""
    _how_to_fit: ClassVar[str] = "fit(loader)"

    def __init__(self, tap: Tap, class_names: Sequence[str] | None, classes: Sequence[int] | None = None):
        if isinstance(class_names, Mapping):
            raise InputError(
                f"The 'class_names' parameter of {type(self).__name__} must be a sequence in the order of the classes."
            )
        self.tap = tap
        self.class_names = None if class_names is None else tuple(map(str, class_names))
        self.classes = None if classes is None else tuple(check_classes(classes))
        self.calibration: Calibration | None = None
        self._fingerprint: str | None = None
        # How many training samples `fit` will give `_learn`, where the loader knows
        self._expected_samples: int | None = None
        # The densities of a pass that was refused, what ends it, and what the pass saw of its inputs
        self._refused: tuple[Sequence[GaussianDensity], Callable[[], None]] | None = None
        self._passed = SeenInputs()
        # The inputs that it was fitted to; a loaded detector knows their scale alone
        self._inputs = SeenInputs()

    # What a new detector defines

    @abstractmethod
    def _evidence(self, batch: FeatureBatch) -> Evidence:
        """Scores a batch."""

    def _learn(self, batches: Iterable[FeatureBatch]) -> None:
        """Learns from labelled batches; if it fails, the detector is left as it was."""
        self._finish(self._collect(batches))

    def _collect(self, batches: Iterable[FeatureBatch]) -> Any:
        """Sums up labelled batches, to something that merges; None if there are none. The detector stays as it was."""
        raise NotSupportedError(
            f"{type(self).__name__} learns from all of its training data at once: fit it in one process."
        )

    def _finish(self, collected: Any) -> None:
        """Learns from what `_collect` summed up."""
        raise NotImplementedError

    def _view(self, x: Any) -> FeatureBatch:
        """Runs the model for a prediction."""
        return self.tap(x)

    @property
    def is_fitted(self) -> bool:
        """Whether it has learned what it needs to predict."""
        return not self.needs_fit

    @property
    def has_density(self) -> bool:
        """Whether its epistemic score is a negative log-density."""
        return False

    def samples_for_threshold(self, held_out: int) -> int:
        """How many of so many held-out samples set the threshold: all, unless some have another purpose before."""
        return held_out

    def _threshold_scores(self, evidence: Evidence) -> tuple[Tensor, Tensor | None]:
        """The epistemic scores that set the threshold, as many as `samples_for_threshold` says, and their rows."""
        return evidence.epistemic, None

    def _contributions(self, evidence: Evidence) -> dict[str, Tensor] | None:
        """What each part contributes to the epistemic score, by name, where that is a sum."""
        return None

    @property
    def part_names(self) -> list[str] | None:
        """The names of the parts, where the score is a sum."""
        return None

    def graph(self) -> nn.Module:
        """Its score in steps that do not depend on the data, to be exported: a module of features and logits.

        It returns what each part contributes, (sample, part), in single precision; the score is their sum.
        """
        raise NotSupportedError(
            f"{type(self).__name__} has no graph to export: export DDU, Softmax, Energy, or Mahalanobis without a "
            "perturbation."
        )

    @property
    def needs_inputs(self) -> bool:
        """Whether it needs the inputs themselves, so that extracted features are not enough."""
        return False

    @property
    def needs_energy(self) -> bool:
        """Whether the size of the logits is a part of its score, which log-probabilities do not have."""
        return False

    @property
    def sees_more(self) -> str:
        """Which setting sees inputs that this one is blind to, as a sentence."""
        return "The default score, ddu.DDU(model), looks at every stage of the network and at the energy: use that."

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
        """Share of in-distribution inputs that may be called out of distribution; None before calibration.

        Setting it needs no data, and moves whatever depends on it.
        """
        return self.calibration.false_alarm_rate if self.calibration else None

    @false_alarm_rate.setter
    def false_alarm_rate(self, rate: float) -> None:
        if self.calibration is None:
            raise NotFittedError(f"This {type(self).__name__} detector is not calibrated yet. Call calibrate first.")
        self.calibration = replace(self.calibration, false_alarm_rate=rate)

    def __repr__(self) -> str:
        state = "calibrated" if self.calibration else "fitted" if self.is_fitted else "not fitted"
        shown = self._options().items()
        options = [f"{name}={value!r}" for name, value in shown if name != "features" and (name, value) != _ALL]
        return f"{type(self).__name__}({', '.join([repr(self.tap), *options, state])})"

    def fit(self, loader: Iterable[Any], *, progress: bool | None = None, ranks: Ranks | None = None) -> Self:
        """Learns from training data, in one pass; an earlier fit and its calibration are forgotten.

        A detector that has nothing to learn leaves the loader alone.

        Args:
            loader: Batches of (inputs, labels), or mappings of them. Not augmented, if you can.
            progress: `True` shows a progress bar, `False` none; by default one appears if it takes long.
            ranks: The processes that fit together, from `ddu.distributed.join`. Each gives a loader of its own shard,
                which may be empty; all of them end with what one process learns from all shards.

        Warns:
            LabelWarning: The labels agree with the model's predictions no more than by chance.
            LogitsWarning: The model returns log-probabilities, and the energy is a part of the score.
            AugmentationWarning: The loader gives another input each time that a sample is read.
        """
        check_loader(loader)
        if not self.needs_fit:
            return self._settle()
        warn_of_augmentation(loader, "Fit")
        expected = expected_samples(loader)
        if ranks is not None and ranks.size > 1:
            expected = ranks.merged(expected, lambda one, two: None if one is None or two is None else one + two)
            part = self.learn_part(loader, expected_samples=expected, progress=progress, check=ranks.check)
            return self.fit_parts([ranks.merged(part, Learned.merge)])
        self._refused, seen, self._expected_samples = None, Pass(), expected
        self._passed = seen.inputs
        run = watched(self._tapped, self._passed)
        batches = self._labelled(run, loader, progress, seen, every_class=self.needs_every_class)
        self._learn(_gathered(_then(batches, lambda: seen.check("to fit", every_class=self.needs_every_class))))
        return self._settle(self._passed)

    def learn_part(
        self,
        loader: Iterable[Any],
        *,
        expected_samples: int | None = None,
        progress: bool | None = None,
        check: Callable[[], None] | None = None,
    ) -> Learned:
        """What there is to learn from some of the training data, for `fit_parts`; the detector stays as it was.

        Args:
            loader: Batches of (inputs, labels), perhaps none.
            expected_samples: How many samples all parts have together, where that is known.
            progress: As in `fit`.
            check: Called before each batch.
        """
        check_loader(loader)
        part, self._expected_samples = Learned(), expected_samples
        run = watched(_checking(self._tapped, check), part.inputs)
        part.state = self._collect(_gathered(self._labelled(run, loader, progress, part)))
        return part

    def fit_parts(self, parts: Iterable[Learned]) -> Self:
        """Learns what `learn_part` learned from all parts of the training data, as `fit` does in one pass over them."""
        learned = functools.reduce(Learned.merge, parts)
        learned.check("to fit", every_class=self.needs_every_class)
        self._refused, self._passed = None, learned.inputs
        self._finish(learned.state)
        return self._settle(self._passed)

    def keep_classes(self, classes: Sequence[int]) -> Self:
        """Ends a `fit` that was refused because classes had no samples, with what was learned of these others.

        No second pass is needed. The model is restricted to these classes, as by `classes=` when making the detector:
        they are numbered from 0 in this order. Until `calibrate`, the energy is standardised by that of all logits.
        """
        if self._refused is None:
            raise NotFittedError(
                "There is no pass to keep: fit was not refused for classes without samples. Make the detector with "
                "classes=, and fit it."
            )
        densities, finish = self._refused
        kept = check_classes(classes, len(densities[0].counts_))
        for density in densities:
            density.keep_classes(kept)
        self.classes = tuple(kept if self.classes is None else (self.classes[c] for c in kept))
        self.class_names = self.class_names and tuple(self.class_names[c] for c in kept)
        finish()
        return self._settle(self._passed)

    def _complete(self, densities: Sequence[GaussianDensity], finish: Callable[[], None]) -> None:
        """Ends learning, or refuses classes without samples and leaves to `keep_classes` what it needs to end it."""
        self._refused = densities, finish
        check_coverage(densities[0].counts_, is_learned=True)
        finish()

    def calibrate(
        self,
        loader: Iterable[Any],
        false_alarm_rate: float = 0.01,
        *,
        threshold: ThresholdRule = "conformal",
        confidence: float | None = None,
        per_class: bool = False,
        error_rate: float | None = None,
        coverage: float = 0.95,
        labels: bool = True,
        probes: bool = True,
        progress: bool | None = None,
        ranks: Ranks | None = None,
    ) -> Self:
        """Learns from held-out data, which the model was not trained on, what its numbers mean.

        It sets the temperature, and keeps of every held-out input what p-values, verdicts and candidates need.

        Args:
            loader: Held-out batches of (inputs, labels) from the training distribution.
            false_alarm_rate: Share of in-distribution inputs that may be called out of distribution.
            threshold: "conformal", which keeps that rate for new data whatever its distribution; or
                "training_quantile", the paper's: the plain share, for which `loader` is the training data.
            confidence: With which the rates hold for this held-out set, for instance 0.95; by default the false-alarm
                rate holds on average over held-out sets, and the error rate with 0.95.
            per_class: Whether the rate is to hold within each predicted class, so that a rare class is not flagged more
                often than others; each then needs as many held-out inputs.
            error_rate: Share of the inputs called in distribution that may be predicted wrongly; inputs of a higher
                entropy are ambiguous. By default no share is promised: the entropy that best tells wrong held-out
                predictions from right ones decides.
            coverage: Share of inputs whose right class is to be among the candidates.
            labels: Whether the loader gives labels. Without them, `loader` is whatever `predict` takes, there are
                p-values alone, and nothing is called ambiguous.
            probes: Whether to judge a few synthetic images in the end, made from held-out ones, and to warn if they are
                not flagged.
            progress: As in `fit`.
            ranks: As in `fit`. The order of the samples is that of the ranks.

        Warns:
            LabelWarning, LogitsWarning, AugmentationWarning: As in `fit`.
            ScaleWarning: As in `predict`.
            CalibrationWarning: No temperature is best.
            OverlapWarning: The held-out data was in the training pass.
            BlindSpotWarning: Flat images, noise or shuffled patches are not flagged.
        """
        self._need_fit()
        warn_of_augmentation(loader, "Calibrate")
        ranks = ranks or Ranks()
        part = self.judge_part(loader, labels=labels, progress=progress, check=ranks.check)
        settings = {"per_class": per_class, "error_rate": error_rate, "coverage": coverage}
        settings |= {"threshold": threshold, "confidence": confidence, "false_alarm_rate": false_alarm_rate}
        return self.calibrate_parts([ranks.merged(part, Judged.merge)], probes=probes, **settings)

    def judge_part(
        self,
        loader: Iterable[Any],
        *,
        labels: bool = True,
        progress: bool | None = None,
        check: Callable[[], None] | None = None,
    ) -> Judged:
        """Scores some of the held-out data, for `calibrate_parts`.

        Args:
            loader: As of `calibrate`, perhaps without batches.
            labels: The same.
            progress: The same.
            check: Called before each batch.
        """
        self._need_fit()
        part = Judged()
        run = self._scale_checked(watched(_checking(self._viewed, check), part.inputs, part.probes))
        found, truth = list[Evidence](), list[Tensor]()
        if labels:
            for batch in self._labelled(run, loader, progress, part):
                found.append(self._judge(batch))
                truth.append(labels_of(batch))
        else:
            for batch in batches_of(loader, _BATCH, progress=progress):
                found.append(self._checked(run(batch)))
            if found:
                self._warn_of_log_probabilities(found[0].logits)
        if found:
            part.columns = (*join_evidence(found), torch.cat(truth) if labels else None)
        return part

    def calibrate_parts(
        self,
        parts: Iterable[Judged],
        *,
        threshold: ThresholdRule = "conformal",
        false_alarm_rate: float = 0.01,
        confidence: float | None = None,
        probes: bool = True,
        **settings: Any,
    ) -> Self:
        """Learns what `judge_part` found in all parts of the held-out data, with the settings of `calibrate`."""
        self._need_fit()
        held_out = functools.reduce(Judged.merge, parts)
        if held_out.columns is None:
            raise InputError(
                "The loader gave no batches, so there is nothing to calibrate on: check its data set and sampler."
            )
        *columns, truth = held_out.columns
        evidence = Evidence(*columns)  # pyright: ignore[reportArgumentType]
        before = dict(vars(self))
        try:
            if truth is not None:
                held_out.check("to calibrate on")
            if threshold == "conformal":
                self.check_held_out(len(evidence.logits), false_alarm_rate, confidence)
            scores, rows = self._threshold_scores(evidence)
            settings |= {"threshold": threshold, "confidence": confidence, "false_alarm_rate": false_alarm_rate}
            self.calibration = calibrate(evidence.logits, scores, truth, rows=rows, **settings)
            if threshold == "conformal":
                self._inputs.sample.warn_of_overlap(held_out.inputs.sample)
            if probes:
                held_out.probes.warn_of_blindness(self._predict, self.calibration.false_alarm_rate, self.sees_more)
            if not self.needs_fit:
                self._inputs.channels = held_out.inputs.channels
        except BaseException:
            vars(self).update(before)  # the earlier calibration stands
            raise
        if not self.needs_fit:
            self._fingerprint = model_fingerprint(self.model)
        return self

    def _scale_checked(self, run: Callable[[Any], FeatureBatch]) -> Callable[[Any], FeatureBatch]:
        """The same function, whose inputs are compared with those of the fit."""

        def run_and_check(inputs: Any) -> FeatureBatch:
            batch = run(inputs)
            self._inputs.channels.warn_of_scale(first_tensor(inputs))
            return batch

        return run_and_check

    def evidence(self, x: Any) -> Evidence:
        """Scores a batch of inputs, before temperature and thresholds."""
        self._need_fit()
        return self._checked(self._viewed(x))

    def _tapped(self, x: Any) -> FeatureBatch:
        return self._restricted(self.tap(x))

    def _viewed(self, x: Any) -> FeatureBatch:
        return self._restricted(self._view(x))

    def _restricted(self, batch: FeatureBatch) -> FeatureBatch:
        """A batch with the logits of the classes that are kept."""
        if self.classes is None:
            return batch
        check_logits(batch.logits)  # of some classes, probabilities no longer sum to 1
        return batch._replace(logits=batch.logits[:, check_classes(self.classes, batch.logits.shape[1])])

    def _checked(self, batch: FeatureBatch) -> Evidence:
        check_logits(batch.logits)
        return self._judge(batch)

    def predict(
        self,
        x: Any,
        *,
        batch_size: int = _BATCH,
        invalid: Literal["mark", "raise"] = "mark",
        progress: bool | None = None,
    ) -> Prediction:
        """Judges inputs, in batches.

        Args:
            x: A tensor or array is a batch; a tuple or mapping is one batch of several inputs; a list of tensors or
                arrays of one shape is stacked. A data set, a loader and any other iterable give batches of inputs, or
                of (inputs, labels) as for `fit`: a last vector of integers, one per input, is left out.
            batch_size: Inputs per forward pass, of a tensor, an array or a data set.
            invalid: What to do about NaN and infinity, in an input or in what the model makes of it: "mark" gives it
                the verdict `invalid` with a reason, "raise" an error.
            progress: As in `fit`.

        Warns:
            ScaleWarning: The images are not scaled as those of the fit; once per detector.
        """
        self._need_fit()
        if invalid not in ("mark", "raise"):
            raise InputError(f"The 'invalid' parameter of predict must be 'mark' or 'raise'. Got {invalid!r} instead.")
        found = [self._predict(batch, check=True) for batch in batches_of(x, batch_size, progress=progress)]
        if not found:
            raise InputError("The inputs are an iterable that gave no batches, so there is nothing to predict.")
        prediction = found[0] if len(found) == 1 else Prediction.join(found)
        if invalid == "raise" and prediction.reason is not None:
            reason = np.asarray(prediction.reason)
            (bad,) = np.nonzero(reason != "")
            raise InputError(
                f"{len(bad)} of {len(prediction)} inputs cannot be judged; the first, at position {bad[0]}: "
                f"{reason[bad[0]]}."
            )
        return prediction

    def _predict(self, x: Any, *, check: bool = False) -> Prediction:
        """Judges one batch, and may check the scale of its inputs."""
        x, bad_inputs = without_bad_inputs(x)
        batch = self._viewed(x)
        if check:
            self._inputs.channels.warn_of_scale(first_tensor(x))
        check_logits(batch.logits)
        batch, reason = without_bad_outputs(batch, bad_inputs)
        prediction = self.decide(self._judge(batch))
        return prediction if reason is None else prediction.with_invalid(reason)

    def decide(self, evidence: Evidence) -> Prediction:
        """What follows from `evidence` by the temperature and the thresholds: the second half of `predict`."""
        epistemic, logits = evidence.epistemic, evidence.logits / self.temperature
        aleatoric, probs = entropy(logits), torch.softmax(logits, dim=1)
        label, calibration = probs.argmax(1), self.calibration
        return Prediction(
            probs=probs,
            label=label,
            aleatoric=aleatoric,
            epistemic=epistemic,
            log_density=-epistemic if self.has_density else None,
            parts=self._contributions(evidence),
            p_value=calibration.p_values(epistemic, label) if calibration else None,
            candidates=calibration.candidates(probs, label) if calibration else None,
            verdict=calibration.verdicts(epistemic, aleatoric, label) if calibration else None,
            class_names=self.class_names,
            least_p_value=calibration.least_p_value if calibration else None,
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
        save_artifact(folder, self._content(), self._tensors() | self._kept())

    def export(
        self,
        folder: str | os.PathLike[str],
        inputs: Any = None,
        *,
        preprocessing: "Preprocessing | None" = None,
        description: Mapping[str, Any] | None = None,
    ) -> "dict[str, Parity]":
        """Writes it as one graph, from inputs to verdicts, that needs neither ddu nor torch: see `ddu.export.export`.

        Args:
            folder: A new or empty folder.
            inputs: At least two inputs, held-out ones if you can, on which the graph is checked against PyTorch.
            preprocessing: How raw inputs become the network's; of images it becomes part of the graph.
            description: What the model card says of the network and its data.
        """
        from ddu.export import export

        return export(self, folder, inputs, preprocessing=preprocessing, description=description)

    def _kept(self) -> dict[str, Tensor]:
        """What the calibration keeps and what is known of the inputs, by the names in a file."""
        kept = self.calibration.held_out.tensors() if self.calibration else {}
        inputs = {INPUTS + name: tensor for name, tensor in self._inputs.channels.tensors().items()}
        return inputs | {KEPT + name: tensor for name, tensor in kept.items()}

    def _content(self) -> dict[str, Any]:
        """What `save` writes beside the tensors."""
        self._need_fit()
        return {
            "detector": self.name,
            "class_names": self.class_names,
            "options": self._options(),
            "calibration": self.calibration.settings() if self.calibration else None,
            "model": {
                "class": type(self.model).__name__,
                "fingerprint": self._fingerprint or model_fingerprint(self.model),
            },
        }

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
        options = content["options"]
        if "classes" in own and isinstance(options, dict):  # older files have none
            options = dict([_ALL]) | options
        check_entries(f"the options of {cls.__name__}", options, own)
        check_entries("the model", saved, ("class", "fingerprint"))
        if not all(isinstance(value, str) for value in saved.values()):
            raise InputError(f"The model must have a class and a fingerprint that are text. Got {saved!r} instead.")
        if not (names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))):
            raise InputError(f"The class names must be None or a list of text. Got {names!r} instead.")
        kept, inputs, learned = _by_prefix(tensors, KEPT, INPUTS)
        if calibration is None and kept:
            raise InputError(f"There must be no kept tensors without a calibration. Got {', '.join(kept)}.")
        calibrated = None if calibration is None else Calibration.restore(calibration, kept)
        fingerprint = model_fingerprint(model)
        if fingerprint != saved["fingerprint"]:
            message = (
                f"The detector was fitted to a {saved['class']} with the fingerprint {saved['fingerprint'][:12]}, this "
                f"{type(model).__name__} has {fingerprint[:12]}: load the weights it was fitted to, or fit again."
            )
            if strict:
                raise ArtifactError(f"{message} If only the precision or layout differs, pass strict=False.")
            warnings.warn(message, DDUWarning, stacklevel=3)
        channels = Channels.restore(inputs)
        detector = cls._rebuild(model, options | replaced, learned)
        detector.class_names = None if names is None else tuple(names)
        detector.calibration = calibrated
        detector._fingerprint = saved["fingerprint"]
        detector._inputs.channels = channels
        return detector

    def _settle(self, inputs: SeenInputs | None = None) -> Self:
        """After a fit: it belongs to the weights that the model has now, is not calibrated, and knows these inputs."""
        self.calibration = self._refused = None
        self._inputs = inputs or SeenInputs()
        self._fingerprint = model_fingerprint(self.model)
        return self

    def _need_fit(self) -> None:
        if not self.is_fitted:
            raise NotFittedError(
                f"This {type(self).__name__} detector is not fitted yet. Call {self._how_to_fit} first."
            )

    def check_held_out(self, samples: int, false_alarm_rate: float, confidence: float | None = None) -> None:
        """Refuses too few held-out samples; some may standardise the score, and the rest sets thresholds."""
        needed, left = least_samples(false_alarm_rate, confidence), self.samples_for_threshold(samples)
        if left == samples:
            conformal_rank(samples, false_alarm_rate, confidence=confidence)
        elif left < needed:
            least = next(count for count in itertools.count(needed) if self.samples_for_threshold(count) >= needed)
            raise InputError(
                f"A false-alarm rate of {false_alarm_rate:g} needs at least {least} held-out samples, {needed} for the "
                f"threshold and {least - needed} that standardise the score, there are {samples}: hold out more, or "
                f"accept a rate of {possible_rate(left, confidence):g}."
            )

    def _judge(self, batch: FeatureBatch) -> Evidence:
        evidence = self._evidence(batch)
        logits = evidence.logits
        bad = int((~torch.isfinite(logits)).any(1).sum())
        self.check_class_names(logits.shape[1])
        if bad:
            raise InputError(f"The model gave NaN or infinite logits for {bad} of {len(logits)} inputs: check it.")
        return evidence._replace(logits=logits.float())

    def _labelled(
        self,
        run: Callable[[Any], FeatureBatch],
        loader: Iterable[Any],
        progress: bool | None,
        seen: Pass,
        *,
        every_class: bool = False,
    ) -> Iterator[FeatureBatch]:
        """Batches with labels, checked against the model: after the first batch where possible; `seen` has the rest."""
        for batch in extract(run, loader, progress=progress):
            num_classes = batch.logits.shape[1]
            if seen.labels is None:
                seen.labels = Agreement(num_classes)
                self.check_class_names(num_classes)
                self._check_ahead(loader, num_classes, every_class)
                self._warn_of_log_probabilities(batch.logits)
            check_logits(batch.logits)
            labels = self._labels(labels_of(batch), num_classes)
            seen.labels.add(batch.logits, labels)
            yield batch._replace(labels=labels)

    def _check_ahead(self, loader: Iterable[Any], num_classes: int, every_class: bool) -> None:
        """Refuses labels that a data set lists before all of it is read."""
        labels = listed_labels(loader)
        if labels is None:
            return
        try:
            self._labels(labels, num_classes)
            if every_class:
                check_coverage(torch.bincount(labels, minlength=num_classes))
        except LabelError:
            if are_given(labels, loader):
                raise

    def _labels(self, labels: Tensor, num_classes: int) -> Tensor:
        """Labels as integers below the number of classes that are kept."""
        try:
            return check_labels(labels, samples=len(labels), num_classes=num_classes)
        except LabelError as error:
            if self.classes is None:
                raise
            raise LabelError(
                f"{error} With classes={list(self.classes)!r}, they are counted from 0 in that order."
            ) from error

    def _warn_of_log_probabilities(self, logits: Tensor) -> None:
        """Warns of logits whose energy is the same for every input, where that is a part of the score."""
        if self.needs_energy and are_log_probabilities(logits):
            warnings.warn(
                f"The model returns log-probabilities instead of logits: exp of each of {len(logits)} rows sums to 1. "
                "The energy -log Σ exp(logit) is then 0 whatever the input, and tells nothing: leave out the model's "
                "log-softmax, for instance model[:-1], or the energy of the score, ddu.DDU(model, energy=False).",
                LogitsWarning,
                stacklevel=frames_to_the_caller(),
            )

    def check_class_names(self, num_classes: int) -> None:
        """Refuses names for another number of classes than the model has."""
        if self.class_names is not None and len(self.class_names) != num_classes:
            raise InputError(
                f"There are {len(self.class_names)} class names for {num_classes} classes: give one for each."
            )


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


def _then(batches: Iterable[FeatureBatch], check: Callable[[], None]) -> Iterator[FeatureBatch]:
    """The same batches, and a check at their end."""
    yield from batches
    check()


def _checking(run: Callable[[Any], FeatureBatch], check: Callable[[], None] | None) -> Callable[[Any], FeatureBatch]:
    """The same function, with a check before each call."""

    def check_and_run(inputs: Any) -> FeatureBatch:
        assert check is not None
        check()
        return run(inputs)

    return run if check is None else check_and_run


def joined(batches: list[FeatureBatch]) -> FeatureBatch:
    """Batches with labels as one."""
    rows = [(batch.features, batch.logits, labels_of(batch)) for batch in batches]
    return FeatureBatch(*(torch.cat(column) for column in zip(*rows, strict=True)))


def _by_prefix(tensors: dict[str, Tensor], *prefixes: str) -> list[dict[str, Tensor]]:
    """Tensors by the beginning of their names, which is taken away; the last are those that begin otherwise."""
    groups = [{n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)} for prefix in prefixes]
    return [*groups, {n: t for n, t in tensors.items() if not n.startswith(prefixes)}]


def join_evidence(found: Sequence[Evidence]) -> Evidence:
    """The evidence of several batches as one."""
    columns = zip(*found, strict=True)
    return Evidence(*(None if column[0] is None else torch.cat(column) for column in columns))  # pyright: ignore
