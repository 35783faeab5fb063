"""What a detector says of itself: what it learns from batches of features and logits, and how it scores a batch.

A new detector derives from `BaseDetector` (base.py), which does everything else, and defines `_evidence` and, if there
is something to learn, one of two ways to learn it:

_learn               from all labelled batches at once, in one process
_collect, _finish    from sums over samples, which merge, so that several processes can share the work

The rest has defaults. `docs/extending.md` has an example to copy.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from ddu.calibration import Calibration
from ddu.density import check_classes
from ddu.detectors.inputs import SeenInputs
from ddu.errors import InputError, NotFittedError, NotSupportedError
from ddu.features import FeatureBatch, Tap


class Evidence(NamedTuple):
    """The logits and scores of a batch, before temperature and thresholds."""

    logits: Tensor  # (N, C), log-probabilities up to a constant
    epistemic: Tensor  # (N,), larger means more unknown
    values: Tensor | None = None  # (N, P), what the parts of a sum say, before they are standardised and added


def join_evidence(found: Sequence[Evidence]) -> Evidence:
    """The evidence of several batches as one."""
    columns = zip(*found, strict=True)
    return Evidence(*(None if column[0] is None else torch.cat(column) for column in columns))  # pyright: ignore


class AbstractDetector(ABC):
    """What a detector is, and what differs between detectors; what all of them do, `BaseDetector` adds.

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
    """Whether it learns something about each class, and so needs samples of each; it collects `densities`."""
    _how_to_fit: ClassVar[str] = "fit(loader)"

    def __init__(self, tap: Tap, class_names: Sequence[str] | None, classes: Sequence[int] | None = None):
        if isinstance(class_names, Mapping):
            raise InputError(
                f"The 'class_names' parameter of {type(self).__name__} must be a sequence in the order of the classes."
            )
        self.tap = tap
        self.class_names = None if class_names is None else tuple(map(str, class_names))
        self.classes: tuple[int, ...] | None = None if classes is None else tuple(check_classes(classes))
        self.calibration: Calibration | None = None
        self._fingerprint: str | None = None
        # The inputs that it was fitted to; a loaded detector knows their scale alone
        self._inputs = SeenInputs()

    # What it scores

    @abstractmethod
    def _evidence(self, batch: FeatureBatch) -> Evidence:
        """Scores a batch."""

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

    @property
    def part_names(self) -> list[str] | None:
        """The names of the parts, where the score is a sum."""
        return None

    def _contributions(self, evidence: Evidence) -> dict[str, Tensor] | None:
        """What each part contributes to the epistemic score, by name, where that is a sum."""
        return None

    # What it learns from training data

    def _learn(self, batches: Sequence[FeatureBatch]) -> None:
        """Learns from labelled batches, all of them; if it fails, the detector is left as it was."""
        raise NotSupportedError(
            f"{type(self).__name__} needs a fit, and defines no way to learn: define _learn, or _collect and _finish, "
            "or set needs_fit = False."
        )

    def _collect(self, batches: Iterable[FeatureBatch], expected_samples: int | None) -> Any:
        """Sums up labelled batches, to something that merges; None if there are none. The detector stays as it was.

        Args:
            batches: Of this part of the training data.
            expected_samples: How many samples all parts have together, where that is known.
        """
        return list(batches)

    def _finish(self, collected: Any) -> None:
        """Learns from what `_collect` summed up."""
        self._learn(collected)

    @property
    def can_share_fit(self) -> bool:
        """Whether several processes can fit it together: what it collects merges."""
        return type(self)._collect is not AbstractDetector._collect

    # What it learns from held-out data

    def samples_for_threshold(self, held_out: int) -> int:
        """How many of so many held-out samples set the threshold: all, unless some have another purpose before."""
        return held_out

    def _threshold_scores(self, evidence: Evidence) -> tuple[Tensor, Tensor | None]:
        """The epistemic scores that set the threshold, as many as `samples_for_threshold` says, and their rows."""
        return evidence.epistemic, None

    # Files and devices

    def _options(self) -> dict[str, Any]:
        """The constructor's own arguments as JSON."""
        return {}

    def _tensors(self) -> dict[str, Tensor]:
        """Everything learned, by name."""
        return {}

    @classmethod
    def _rebuild(cls, model: nn.Module, options: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """A fitted detector from its options and tensors."""
        constructor: Any = cls
        return constructor(model, **options)

    def _movable(self) -> Iterable[Any]:
        """What was learned, as objects that `to(device)` moves in place."""
        return ()

    def graph(self) -> nn.Module:
        """Its score in steps that do not depend on the data, to be exported: a module of features and logits.

        It returns what each part contributes, (sample, part), in single precision; the score is their sum.
        """
        raise NotSupportedError(
            f"{type(self).__name__} has no graph to export: export DDU, Softmax, Energy, or Mahalanobis without a "
            "perturbation."
        )

    # What is known of it

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
        hidden = ("features", "classes") if self.classes is None else ("features",)
        options = [f"{name}={value!r}" for name, value in self._options().items() if name not in hidden]
        return f"{type(self).__name__}({', '.join([repr(self.tap), *options, state])})"

    def check_class_names(self, num_classes: int) -> None:
        """Refuses names for another number of classes than the model has."""
        if self.class_names is not None and len(self.class_names) != num_classes:
            raise InputError(
                f"There are {len(self.class_names)} class names for {num_classes} classes: give one for each."
            )

    def _keep(self, kept: Sequence[int]) -> None:
        """Keeps some of the classes, which are numbered from 0 in this order from now on."""
        self.classes = tuple(kept if self.classes is None else (self.classes[c] for c in kept))
        self.class_names = self.class_names and tuple(self.class_names[c] for c in kept)

    def _need_fit(self) -> None:
        if not self.is_fitted:
            raise NotFittedError(
                f"This {type(self).__name__} detector is not fitted yet. Call {self._how_to_fit} first."
            )

    def _need_a_way_to_learn(self) -> None:
        own, base = type(self), AbstractDetector
        if own._learn is base._learn and own._finish is base._finish:
            self._learn([])  # which says so

    def _need_sums(self) -> None:
        if not self.can_share_fit:
            raise NotSupportedError(
                f"{type(self).__name__} learns from all of its training data at once: fit it in one process."
            )
