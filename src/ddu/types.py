"""The values that flow through the library, and the protocol that detectors follow."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ddu.conformal import benjamini_hochberg, check_share
from ddu.errors import CalibrationWarning, InputError, NotFittedError
from ddu.messages import require

if TYPE_CHECKING:
    import pandas


class Verdict(StrEnum):
    """What to make of a prediction."""

    IN_DISTRIBUTION = "in_distribution"
    """The input is like the training data, and the prediction is clear."""
    AMBIGUOUS = "ambiguous"
    """The input is like the training data, but more than one class would fit."""
    OUT_OF_DISTRIBUTION = "out_of_distribution"
    """The input is unlike the training data: the prediction and its entropy mean nothing."""
    INVALID = "invalid"
    """The input, or what the model makes of it, is NaN or infinite: there is no prediction."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions for a batch of inputs, with both uncertainties.

    Prints as a table; `prediction[3]`, `prediction[mask]` and `prediction[2:5]` pick inputs, `Prediction.join` puts
    several together; `to_pandas()` gives a frame, `to_dict()` what JSON takes.

    Attributes:
        probs: Class probabilities, after temperature scaling where calibrated, (batch, class).
        label: The likeliest class, (batch,).
        aleatoric: Entropy of `probs` in nats, (batch,); meaningful in distribution only.
        epistemic: How unlike the training data the input is, on the detector's own scale, (batch,).
        log_density: -epistemic where that is a log-density of the features, (batch,); None elsewhere.
        parts: What each part of the score contributes to `epistemic`, by name, (batch,) each: the part that stands out
            says where in the network an input looks unlike the training data. None where the score has no parts.
        p_value: The share of in-distribution inputs at least as unknown, (batch,); None before calibration.
        candidates: Which classes fit, (batch, class): the right one is among them at the coverage that was asked for,
            in distribution. None before calibration, and where that had no labels.
        verdict: A `Verdict` for each input, (batch,); None before calibration.
        reason: Why an input is invalid, (batch,), "" for the others; None if all are valid. An invalid one has the
            label -1, no candidates, and NaN for every number.
        class_names: Names to print instead of class numbers.
        least_p_value: The smallest p-value that the held-out data can give.
    """

    probs: Tensor
    label: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    log_density: Tensor | None = None
    parts: Mapping[str, Tensor] | None = None
    p_value: Tensor | None = None
    candidates: Tensor | None = None
    verdict: np.ndarray | Verdict | None = None
    reason: np.ndarray | str | None = None
    class_names: tuple[str, ...] | None = None
    least_p_value: float | None = None

    def __len__(self) -> int:
        if self.label.ndim == 0:
            raise TypeError("A single prediction has no length")
        return len(self.label)

    def __getitem__(self, index: Any) -> "Prediction":
        at = index.cpu().numpy() if isinstance(index, Tensor) else index
        picked = {name: value[index] for name, value in vars(self).items() if isinstance(value, Tensor)}
        parts = self.parts and {name: value[index] for name, value in self.parts.items()}
        verdict, reason = (
            None if value is None else np.asarray(value, dtype=object)[at] for value in (self.verdict, self.reason)
        )
        return replace(self, **picked, parts=parts, verdict=verdict, reason=reason)

    def __iter__(self) -> "Iterator[Prediction]":
        return (self[i] for i in range(len(self)))

    @property
    def confidence(self) -> Tensor:
        """The probability of the likeliest class, (batch,)."""
        return self.probs.amax(-1)

    def name(self, label: int) -> str:
        """What class `label` is called; an invalid input has none."""
        if label < 0:
            return ""
        return self.class_names[label] if self.class_names else str(label)

    def outliers(self, false_discovery_rate: float = 0.1) -> Tensor:
        """Which of these inputs are outliers, (batch,), so that at most the given share of them is a false discovery.

        The procedure of Benjamini and Hochberg on the p-values; the rate is that expected over held-out sets. Verdicts
        bound the share of in-distribution inputs that are flagged; this bounds the share of what is flagged that is in
        distribution. Judge all inputs of interest together.

        Warns:
            CalibrationWarning: The held-out data is too small to find few outliers among so many inputs.
        """
        if self.p_value is None or self.least_p_value is None:
            raise NotFittedError("There are no p-values: calibrate the detector on held-out data first.")
        check_share("false-discovery rate", false_discovery_rate)
        p_value = self._batch.p_value
        assert p_value is not None
        valid = ~p_value.isnan()
        count, found = int(valid.sum()), torch.zeros_like(valid)
        found[valid] = benjamini_hochberg(p_value[valid], false_discovery_rate)
        fewest = math.ceil(self.least_p_value * count / false_discovery_rate * (1 - 1e-12))  # equal, but for rounding
        if fewest > 1:
            warnings.warn(
                f"The p-values here are at least {self.least_p_value:.2g}, so that among {count:,} inputs "
                f"at a false-discovery rate of {false_discovery_rate:g} either none or at least {fewest:,} are found: "
                f"hold out {math.ceil(count / false_discovery_rate) - 1:,} inputs to find single ones.",
                CalibrationWarning,
                stacklevel=2,
            )
        return found if self.label.ndim else found[0]

    @classmethod
    def join(cls, predictions: "Iterable[Prediction]") -> "Prediction":
        """Predictions of one detector, one after the other, as one."""
        batches = [prediction._batch for prediction in predictions]
        if not batches:
            raise InputError("There is nothing to join: give at least one prediction.")
        first, joined = batches[0], {}
        if len({(batch.class_names, batch.probs.shape[1]) for batch in batches}) > 1:
            raise InputError("These predictions are of different classes: join those of one detector.")
        if len({tuple(batch.parts) for batch in batches if batch.parts is not None}) > 1:
            raise InputError("The scores of these predictions have different parts: join those of one detector.")
        for name in (field.name for field in fields(cls)):
            column = [getattr(batch, name) for batch in batches]
            if name == "reason":
                filled = [np.full(len(b), "", dtype=object) if b.reason is None else b.reason for b in batches]
                joined[name] = None if all(value is None for value in column) else np.concatenate(filled)
            elif name in ("class_names", "least_p_value"):
                joined[name] = column[0]
            elif any((value is None) != (column[0] is None) for value in column):
                raise InputError(
                    f"Some of these predictions have {name!r} and others have none: join those of one detector."
                )
            elif isinstance(column[0], Tensor):
                joined[name] = torch.cat(column)
            elif isinstance(column[0], np.ndarray):
                joined[name] = np.concatenate(column)
            elif column[0] is not None:
                joined[name] = {part: torch.cat([parts[part] for parts in column]) for part in column[0]}
        return replace(first, **joined)

    def with_invalid(self, reason: np.ndarray) -> "Prediction":
        """The same without what it says of the inputs that a reason is given for, (batch,)."""
        bad = reason != ""
        rows = torch.from_numpy(bad).to(self.label.device)
        changed: dict[str, Any] = {"label": self.label.masked_fill(rows, -1)}
        for name in ("aleatoric", "epistemic", "log_density", "p_value"):
            value = getattr(self, name)
            changed[name] = None if value is None else value.masked_fill(rows, torch.nan)
        parts = self.parts and {name: value.masked_fill(rows, torch.nan) for name, value in self.parts.items()}
        probs = self.probs.masked_fill(rows[:, None], torch.nan)
        candidates = None if self.candidates is None else self.candidates & ~rows[:, None]
        verdict = None if self.verdict is None else np.array(self.verdict, dtype=object)
        if verdict is not None:
            verdict[bad] = Verdict.INVALID
        return replace(self, **changed, parts=parts, probs=probs, candidates=candidates, verdict=verdict, reason=reason)

    def to_dict(self) -> dict[str, Any]:
        """Everything by name, as JSON takes it: lists with an item per input, or single values of a single prediction.

        Candidates are lists of names, probabilities are by name. What is not a number is None.
        """
        batch = self._batch
        found = {name: _listed(column) for name, column in _columns(batch)}
        if batch.candidates is not None:
            found["candidates"] = _candidate_names(batch)
        if batch.reason is not None:
            found["reason"] = np.asarray(batch.reason).tolist()
        rows: dict[str, Mapping[str, Tensor]] = {"probs": {batch.name(c): p for c, p in enumerate(batch.probs.T)}}
        for group, values in (rows | ({"parts": batch.parts} if batch.parts else {})).items():
            listed = {name: _listed(value.double().cpu().numpy()) for name, value in values.items()}
            found[group] = [{name: listed[name][i] for name in listed} for i in range(len(batch))]
        return found if self.label.ndim else {name: values[0] for name, values in found.items()}

    def to_pandas(self) -> "pandas.DataFrame":
        """A frame with one row per input: label, confidence, both uncertainties, verdict and every probability."""
        pandas = require("pandas", extra="pandas", purpose="Prediction.to_pandas")
        batch = self._batch
        columns = dict(_columns(batch))
        if batch.reason is not None:
            columns["reason"] = np.asarray(batch.reason)
        columns |= {f"part_{name}": value.double().cpu().numpy() for name, value in (batch.parts or {}).items()}
        probs = batch.probs.float().cpu().numpy()
        return pandas.DataFrame(columns | {f"prob_{batch.name(c)}": probs[:, c] for c in range(probs.shape[1])})

    @property
    def _batch(self) -> "Prediction":
        """Itself, or a batch of one."""
        return self if self.label.ndim else self[None]

    def __repr__(self) -> str:
        batch = self._batch
        shown = 10 if len(batch) > 12 else len(batch)
        names = ["", *(name for name, _ in _columns(batch))]
        rows = [
            [str(i), *(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row)]
            for i, row in enumerate(zip(*(c.tolist() for _, c in _columns(batch[:shown])), strict=True))
        ]
        widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [names, *rows]
        ]
        if shown < len(batch):
            lines.append(f"... and {len(batch) - shown} more")
        if self.verdict is None:
            lines.append("No verdicts: calibrate the detector on held-out data first.")
        reasons = np.asarray([] if batch.reason is None else batch.reason, dtype=object)
        for reason in dict.fromkeys(reasons[reasons != ""]):
            (at,) = np.nonzero(reasons == reason)
            others = f" and {len(at) - 1} more" if len(at) > 1 else ""
            lines.append(f"Invalid: input {at[0]}{others}: {reason}.")
        return "\n".join(line.rstrip() for line in lines)


def _columns(prediction: Prediction) -> Iterator[tuple[str, np.ndarray]]:
    yield "label", np.array([prediction.name(c) for c in prediction.label.tolist()], dtype=object)
    yield "confidence", prediction.confidence.double().cpu().numpy()
    if prediction.candidates is not None:
        yield "candidates", np.array([choice_in_words(names) for names in _candidate_names(prediction)], dtype=object)
    for name in ("aleatoric", "epistemic", "log_density", "p_value"):
        value = getattr(prediction, name)
        if value is not None:
            yield name, value.double().cpu().numpy()
    if prediction.verdict is not None:
        yield "verdict", np.asarray(prediction.verdict, dtype=object)


def _candidate_names(prediction: Prediction) -> list[list[str]]:
    """The names of the candidates of each input, the likeliest first."""
    assert prediction.candidates is not None
    order = prediction.probs.argsort(dim=1, descending=True, stable=True)
    counts = prediction.candidates.sum(1).tolist()
    # All candidates are at least as likely as the others
    return [[prediction.name(c) for c in row[:count].tolist()] for row, count in zip(order, counts, strict=True)]


def choice_in_words(names: list[str]) -> str:
    """Some names as a choice.

    >>> choice_in_words(["4", "9"]), choice_in_words(["1", "4", "7", "9"])
    ('4 or 9', '1, 4 or 2 more')
    """
    shown = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"]
    return " or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _listed(column: np.ndarray) -> list[Any]:
    return [None if isinstance(value, float) and math.isnan(value) else value for value in column.tolist()]


@runtime_checkable
class Detector(Protocol):
    """Anything that can be fitted, calibrated, and asked whether to trust a prediction.

    `ddu.testing.check_detector` says what a detector has to keep to.
    """

    needs_fit: ClassVar[bool]
    """Whether it learns from training data; one that does not predicts without `fit`."""
    can_save: ClassVar[bool]
    """Whether `save` works; where it does not, it raises a NotSupportedError."""

    def fit(self, loader: Iterable[Any]) -> Self:
        """Learns from training data; fitting again forgets the earlier fit."""
        ...

    def calibrate(self, loader: Iterable[Any], false_alarm_rate: float = 0.01) -> Self:
        """Sets temperature and thresholds on held-out data."""
        ...

    def predict(self, x: Any) -> Prediction:
        """Judges a batch of inputs."""
        ...

    def to(self, device: torch.device | str) -> Self:
        """Moves the model and everything learned to a device."""
        ...

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes everything learned to a folder that `ddu.load` reads."""
        ...
