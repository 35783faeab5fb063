"""What all detectors share: fit, calibrate, predict, save.

What differs between them, `AbstractDetector` (interface.py) has as methods for a new detector to define.
"""

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch

from ddu.artifacts import model_fingerprint
from ddu.calibration import ThresholdRule, calibrate
from ddu.conformal import least_samples, too_few
from ddu.density import check_classes, check_device
from ddu.detectors.inputs import (
    SeenInputs,
    first_tensor,
    warn_of_augmentation,
    watched,
    without_bad_inputs,
    without_bad_outputs,
)
from ddu.detectors.interface import AbstractDetector, Evidence, join_evidence
from ddu.detectors.labels import check_coverage
from ddu.detectors.passes import BATCH, Judged, Learned, gathered, labelled, no_batches, unlabelled
from ddu.detectors.saved import save_detector
from ddu.distributed import Ranks
from ddu.errors import InputError, NotFittedError
from ddu.features import FeatureBatch
from ddu.features.forward import check_logits
from ddu.features.loaders import batches_of, check_loader, expected_samples
from ddu.measures import entropy
from ddu.types import Prediction

if TYPE_CHECKING:
    from ddu.data import Preprocessing
    from ddu.export import Parity


class BaseDetector(AbstractDetector):
    """Everything about a detector except what it learns and how it scores.

    The model runs in evaluation mode, and is left as it was. Every method that takes inputs also takes a `FeatureBatch`
    from `ddu.features.extract(detector.tap, loader)`, which saves the forward pass.
    """

    # A pass that was refused for classes without samples, until `keep_classes` or another fit
    _refused: Learned | None = None

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
        ranks, self._refused = ranks or Ranks(), None
        samples = ranks.merged(
            expected_samples(loader), lambda one, two: None if one is None or two is None else one + two
        )
        part = self.learn_part(
            loader, expected_samples=samples, whole=ranks.size == 1, progress=progress, check=ranks.check
        )
        return self.fit_parts([ranks.merged(part, Learned.merge)])

    def learn_part(
        self,
        loader: Iterable[Any],
        *,
        expected_samples: int | None = None,
        whole: bool = False,
        progress: bool | None = None,
        check: Callable[[], None] | None = None,
    ) -> Learned:
        """What there is to learn from some of the training data, for `fit_parts`; the detector stays as it was.

        Args:
            loader: Batches of (inputs, labels), perhaps none.
            expected_samples: How many samples all parts have together, where that is known.
            whole: Whether there are no other parts; some detectors need all data at once.
            progress: As in `fit`.
            check: Called before each batch.
        """
        check_loader(loader)
        self._need_a_way_to_learn()
        if not whole:
            self._need_sums()
        part = Learned()
        run = watched(lambda x: self._restricted(self.tap(x)), part.inputs.add, check=check)
        batches = labelled(self, run, loader, part, progress=progress, every_class=whole and self.needs_every_class)
        part.state = self._collect(gathered(batches), expected_samples)
        return part

    def fit_parts(self, parts: Iterable[Learned]) -> Self:
        """Learns what `learn_part` learned from all parts of the training data, as `fit` does in one pass over them."""
        learned = functools.reduce(Learned.merge, parts)
        counts = learned.check("to fit", every_class=self.needs_every_class)
        if self.needs_every_class:
            self._refused = learned
            check_coverage(counts, is_learned=True)
        return self._take(learned)

    def keep_classes(self, classes: Sequence[int]) -> Self:
        """Ends a `fit` that was refused because classes had no samples, with what was learned of these others.

        No second pass is needed. The model is restricted to these classes, as by `classes=` when making the detector:
        they are numbered from 0 in this order. Until `calibrate`, the energy is standardised by that of all logits.
        """
        learned = self._refused
        if learned is None:
            raise NotFittedError(
                "There is no pass to keep: fit was not refused for classes without samples. Make the detector with "
                "classes=, and fit it."
            )
        densities = learned.state.densities
        kept = check_classes(classes, len(densities[0].counts_))
        for density in densities:
            density.keep_classes(kept)
        self._keep(kept)
        return self._take(learned)

    def _take(self, learned: Learned) -> Self:
        """Ends a fit."""
        self._finish(learned.state)
        return self._settle(learned.inputs)

    def _settle(self, inputs: SeenInputs | None = None) -> Self:
        """After a fit: it belongs to the weights that the model has now, is not calibrated, and knows these inputs."""
        self.calibration = self._refused = None
        self._inputs = inputs or SeenInputs()
        self._fingerprint = model_fingerprint(self.model)
        return self

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
        return self.calibrate_parts(
            [ranks.merged(part, Judged.merge)],
            false_alarm_rate=false_alarm_rate,
            threshold=threshold,
            confidence=confidence,
            probes=probes,
            per_class=per_class,
            error_rate=error_rate,
            coverage=coverage,
        )

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
        seen = part.inputs.add, self._inputs.channels.warn_of_scale
        run = watched(self._viewed, *seen, of_whole_inputs=[part.probes.add], check=check)
        if labels:
            batches = labelled(self, run, loader, part, progress=progress)
        else:
            batches = unlabelled(self, run, loader, progress=progress)
        found = [(self._judge(batch), batch.labels) for batch in batches]
        if found:
            evidence, truth = zip(*found, strict=True)
            part.evidence, part.truth = join_evidence(evidence), torch.cat(truth) if labels else None
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
        evidence, truth = held_out.evidence, held_out.truth
        if evidence is None:
            raise no_batches("to calibrate on")
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

    def evidence(self, x: Any) -> Evidence:
        """Scores a batch of inputs, before temperature and thresholds."""
        self._need_fit()
        batch = self._viewed(x)
        check_logits(batch.logits)
        return self._judge(batch)

    def _viewed(self, x: Any) -> FeatureBatch:
        return self._restricted(self._view(x))

    def _restricted(self, batch: FeatureBatch) -> FeatureBatch:
        """A batch with the logits of the classes that are kept."""
        if self.classes is None:
            return batch
        check_logits(batch.logits)  # of some classes, probabilities no longer sum to 1
        return batch._replace(logits=batch.logits[:, check_classes(self.classes, batch.logits.shape[1])])

    def predict(
        self,
        x: Any,
        *,
        batch_size: int = BATCH,
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
        self._need_fit()
        save_detector(self, folder, self._tensors())

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

    def check_held_out(self, samples: int, false_alarm_rate: float, confidence: float | None = None) -> None:
        """Refuses too few held-out samples; some may standardise the score, and the rest sets thresholds."""
        needed, left = least_samples(false_alarm_rate, confidence), self.samples_for_threshold(samples)
        if left >= needed:
            return
        least = next(count for count in itertools.count(needed) if self.samples_for_threshold(count) >= needed)
        purposes = f", {needed} for the threshold and {least - needed} that standardise the score" * (least > needed)
        raise too_few(f"{least} held-out samples{purposes}", samples, left, false_alarm_rate, confidence)

    def _judge(self, batch: FeatureBatch) -> Evidence:
        evidence = self._evidence(batch)
        logits = evidence.logits
        bad = int((~torch.isfinite(logits)).any(1).sum())
        self.check_class_names(logits.shape[1])
        if bad:
            raise InputError(f"The model gave NaN or infinite logits for {bad} of {len(logits)} inputs: check it.")
        return evidence._replace(logits=logits.float())
