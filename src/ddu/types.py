"""The values that flow through the library, and the protocol that detectors follow."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ddu.extras import require

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


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions for a batch of inputs, with both uncertainties.

    Prints as a table; `prediction[3]`, `prediction[mask]` and `prediction[2:5]` pick inputs; `to_pandas()` gives a
    frame.

    Attributes:
        probs: Class probabilities, after temperature scaling where calibrated, (batch, class).
        label: The likeliest class, (batch,).
        aleatoric: Entropy of `probs` in nats, (batch,); meaningful in distribution only.
        epistemic: How unlike the training data the input is, on the detector's own scale, (batch,).
        log_density: -epistemic where that is a log-density of the features, (batch,); None elsewhere.
        verdict: A `Verdict` for each input, (batch,); None before calibration.
        class_names: Names to print instead of class numbers.
    """

    probs: Tensor
    label: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    log_density: Tensor | None = None
    verdict: np.ndarray | Verdict | None = None
    class_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        if self.label.ndim == 0:
            raise TypeError("A single prediction has no length")
        return len(self.label)

    def __getitem__(self, index: Any) -> "Prediction":
        at = index.cpu().numpy() if isinstance(index, Tensor) else index
        picked = {name: value[index] for name, value in vars(self).items() if isinstance(value, Tensor)}
        verdict = None if self.verdict is None else np.asarray(self.verdict, dtype=object)[at]
        return replace(self, **picked, verdict=verdict)

    def __iter__(self) -> "Iterator[Prediction]":
        return (self[i] for i in range(len(self)))

    @property
    def confidence(self) -> Tensor:
        """The probability of the likeliest class, (batch,)."""
        return self.probs.amax(-1)

    def name(self, label: int) -> str:
        """What class `label` is called."""
        return self.class_names[label] if self.class_names else str(label)

    def to_pandas(self) -> "pandas.DataFrame":
        """A frame with one row per input: label, confidence, both uncertainties, verdict and every probability."""
        pandas = require("pandas", extra="pandas", purpose="Prediction.to_pandas")
        batch = self[None] if self.label.ndim == 0 else self
        columns = dict(_columns(batch))
        probs = batch.probs.float().cpu().numpy()
        return pandas.DataFrame(columns | {f"prob_{batch.name(c)}": probs[:, c] for c in range(probs.shape[1])})

    def __repr__(self) -> str:
        batch = self[None] if self.label.ndim == 0 else self
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
        return "\n".join(line.rstrip() for line in lines)


def _columns(prediction: Prediction) -> Iterator[tuple[str, np.ndarray]]:
    yield "label", np.array([prediction.name(c) for c in prediction.label.tolist()], dtype=object)
    yield "confidence", prediction.confidence.double().cpu().numpy()
    for name in ("aleatoric", "epistemic", "log_density"):
        value = getattr(prediction, name)
        if value is not None:
            yield name, value.double().cpu().numpy()
    if prediction.verdict is not None:
        yield "verdict", np.asarray(prediction.verdict, dtype=object)


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
