"""From what a client sent to a batch, and from a batch to what each client is told."""

import base64
import binascii
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ddu.data.preprocessing import covering
from ddu.errors import InputError
from ddu.messages import require
from ddu.serving.requests import Limits, RefusedError
from ddu.sources import Source
from ddu.types import Prediction

# Formats that are decoded by Pillow itself: none of them runs a program or opens another file
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


class Inputs(NamedTuple):
    """The inputs of a request, ready to be judged; and why some of them cannot be, "" for the others."""

    tensor: Tensor
    reasons: np.ndarray

    def __len__(self) -> int:
        return len(self.tensor)


class Answers(NamedTuple):
    """What is said of some inputs: columns by name, each with a row per input."""

    columns: Mapping[str, np.ndarray]
    class_names: tuple[str, ...]
    part_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.columns["label"])

    def rows(self) -> list[dict[str, Any]]:
        """One mapping per input, as JSON takes it; what is not a finite number is None."""
        columns = {name: column for name, column in self.columns.items() if column.ndim == 1}
        listed = {name: plain_list(column) for name, column in columns.items()}
        rows = [{name: values[i] for name, values in listed.items()} for i in range(len(self))]
        for row, probs in zip(rows, self.columns["probs"], strict=True):
            row["label"] = row.pop("label_name")
            if not row["reason"]:
                del row["reason"]
            row["probs"] = dict(zip(self.class_names, plain_list(probs), strict=True))
        for row, fits in zip(rows, self.columns.get("candidates", ()), strict=False):
            named = zip(self.class_names, fits, strict=True)
            row["candidates"] = sorted((n for n, fit in named if fit), key=lambda n: -(row["probs"][n] or 0))
        for row, parts in zip(rows, self.columns.get("parts", ()), strict=False):
            row["parts"] = dict(zip(self.part_names, plain_list(parts), strict=True))
        return rows


class Predictor:
    """Reads requests for a source, and judges what it read.

    Args:
        source: What judges.
        limits: How much is taken at a time.
        name: What clients call it; by default the last part of the source's name.
        on_batch: Is told of every batch that was judged.
    """

    def __init__(
        self,
        source: Source,
        *,
        limits: Limits | None = None,
        name: str | None = None,
        on_batch: Callable[[Prediction], object] | None = None,
    ):
        require("PIL", extra="serve", purpose="Reading images")
        self.source, self.limits = source, limits or Limits()
        self.name = _plain_name(source.name if name is None else name)
        channels, *size = self.shape
        blank = np.zeros((1, *size, channels), np.uint8 if self.is_image else np.float32)
        # What stands in the place of an input that cannot be judged, in whatever form the source prepares inputs
        self._blank = source.prepare(blank)
        # The first batch is slower than others, and shows what there is to say
        self.columns = _columns(source.judge(self._blank))
        self._on_batch = on_batch

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input of the network."""
        return self.source.preprocessing.shape

    @property
    def is_image(self) -> bool:
        return self.source.preprocessing.is_image

    def read_images(self, files: Sequence[bytes]) -> Inputs:
        """Encoded images; one that cannot be read among others that can is marked, all of them are refused."""
        if not self.is_image:
            raise RefusedError(415, f"Inputs are vectors of {self.shape[0]} numbers, not images: send them as JSON.")
        self._check_rows(len(files))
        found = [self._read_image(file) for file in files]
        bad = [one for one in found if isinstance(one, RefusedError)]
        if len(bad) == len(found):
            raise bad[0]
        rows = [self._blank if isinstance(one, RefusedError) else one for one in found]
        reasons = [one.reason.rstrip(".") if isinstance(one, RefusedError) else "" for one in found]
        return Inputs(torch.cat(rows), np.array(reasons, dtype=object))

    def read_array(self, array: np.ndarray) -> Inputs:
        """Numbers: bytes or floats in [0, 1] for pixels, or vectors; rows that are not such are marked.

        If no row can be judged, all of them are refused.
        """
        if array.dtype.kind not in "iuf":
            found = {"U": "text", "b": "true or false", "c": "complex numbers"}.get(array.dtype.kind, str(array.dtype))
            raise RefusedError(422, f"Inputs must be numbers. Got {found} instead.")
        self._check_size(array.shape)
        bad, why = ~np.isfinite(array), "it has NaN or infinity"
        if self.is_image:
            most = 1 if array.dtype.kind == "f" else 255
            outside = ~((array >= 0) & (array <= most))
            if (outside & ~bad).any():
                bad, why = outside, f"its pixels are not in {'[0, 1]' if most == 1 else '0 to 255'}"
        clean = np.where(bad, 0, array) if bad.any() else array
        if self.is_image and array.dtype.kind != "f":
            clean = clean.astype(np.uint8)
        try:
            with np.errstate(over="ignore"):  # what is too large is infinite, and marked later
                tensor = self.source.prepare(clean)
        except InputError as error:
            raise RefusedError(422, str(error)) from error
        self._check_rows(len(tensor))
        # The first axis is that of the samples, or there is one
        rows = np.asarray(bad.reshape(len(tensor), -1).any(1))
        if rows.all():
            every = "The input" if len(rows) == 1 else f"Every one of the {len(rows)} inputs"
            raise RefusedError(422, f"{every} cannot be judged: {why}.")
        if rows.any():
            tensor[torch.from_numpy(rows)] = self._blank
        return Inputs(tensor, np.where(rows, why, "").astype(object))

    def judge(self, requests: Sequence[Inputs]) -> list[Answers]:
        """Judges several requests as one batch, and takes what it says apart again."""
        prediction = self.source.judge(torch.cat([one.tensor for one in requests]))
        reasons = np.concatenate([one.reasons for one in requests])
        if (reasons != "").any():
            others = np.full(len(reasons), "", dtype=object) if prediction.reason is None else prediction.reason
            prediction = prediction.with_invalid(np.where(reasons != "", reasons, others))
        if self._on_batch is not None:
            self._on_batch(prediction)
        columns, names = _columns(prediction), tuple(map(prediction.name, range(prediction.probs.shape[1])))
        ends, parts = np.cumsum([len(one) for one in requests]), tuple(prediction.parts or ())
        return [
            Answers({name: column[end - len(one) : end] for name, column in columns.items()}, names, parts)
            for one, end in zip(requests, ends, strict=True)
        ]

    def _read_image(self, file: bytes) -> Tensor | RefusedError:
        from PIL import Image

        try:
            with Image.open(io.BytesIO(file), formats=_FORMATS) as image:
                if image.width * image.height > self.limits.pixels:
                    return self._too_large
                self._check_scaled(1, image.height, image.width)
                return self.source.prepare(image)
        except RefusedError as error:
            return error
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            return self._too_large
        # What a damaged file raises depends on its format, and on where the damage is
        except Exception:
            return RefusedError(422, f"This is not an image that can be read: it must be one of {', '.join(_FORMATS)}.")

    @property
    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"The image has more than {self.limits.pixels:,} pixels: scale it down.")

    def _check_size(self, shape: tuple[int, ...]) -> None:
        """Refuses arrays that would become too large, before they do."""
        if not math.prod(shape):
            raise RefusedError(422, f"There are no inputs. Got the shape {shape}.")
        if not self.is_image:
            self._check_rows(shape[0] if len(shape) > 1 else 1)
            return
        match shape:
            case (height, width) | (height, width, 1 | 3):
                self._check_scaled(1, height, width)
            case (rows, height, width) | (rows, height, width, _):
                self._check_rows(rows)
                self._check_scaled(rows, height, width)

    def _check_scaled(self, rows: int, height: int, width: int) -> None:
        """An image is scaled until it covers the input: a narrow one becomes long."""
        (scaled_height, scaled_width), _ = covering((height, width), self.shape[1:], self.source.preprocessing.kept)
        if rows * scaled_height * scaled_width > self.limits.pixels:
            raise RefusedError(
                413,
                f"{rows} of {height} x {width} pixels would be scaled to {scaled_height} x {scaled_width}, and at most "
                f"{self.limits.pixels:,} pixels are taken: cut them to the sides {self.shape[1]} x {self.shape[2]}.",
            )

    def _check_rows(self, rows: int) -> None:
        if not rows:
            raise RefusedError(422, "There are no inputs.")
        if rows > self.limits.rows:
            raise RefusedError(413, f"There are {rows} inputs, and a request may have {self.limits.rows}: send fewer.")


def parse_array(values: Any) -> np.ndarray:
    """Nested lists of numbers, as JSON has them, as an array; null is NaN."""
    try:
        array = np.asarray(values)
        if array.dtype == object:
            if not all(one is None or type(one) in (int, float) for one in array.ravel().tolist()):
                raise RefusedError(422, "Inputs must be arrays of one shape, of numbers or null.")
            array = array.astype(np.float64)
    except (ValueError, OverflowError) as error:
        raise RefusedError(422, "Inputs must be arrays of one shape, of numbers or null.") from error
    return array


def parse_base64(text: Any) -> bytes:
    """The bytes of a file in base64, or of a `data:` address."""
    if not isinstance(text, str):
        raise RefusedError(422, "An image must be text: its file in base64.")
    try:
        return base64.b64decode(re.sub(r"^data:[^,]{0,100},", "", text), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedError(422, "The image is not base64.") from error


def plain_list(column: np.ndarray) -> list[Any]:
    """A column as JSON takes it; what is not a finite number is None."""
    return [None if isinstance(v, float) and not math.isfinite(v) else v for v in column.tolist()]


def _columns(prediction: Prediction) -> dict[str, np.ndarray]:
    """Everything that is said of inputs, by name."""
    label = prediction.label.cpu().numpy()
    columns = {"label": label, "label_name": np.array([prediction.name(c) for c in label.tolist()], dtype=object)}
    for name in ("confidence", "probs", "aleatoric", "epistemic", "p_value", "candidates"):
        value: Tensor | None = getattr(prediction, name)
        if value is not None:
            columns[name] = value.cpu().numpy()
    if prediction.parts:
        columns["parts"] = torch.stack(list(prediction.parts.values()), 1).cpu().numpy()
    if prediction.verdict is not None:
        columns["verdict"] = np.array([str(verdict) for verdict in np.atleast_1d(prediction.verdict)], dtype=object)
    reason = prediction.reason
    columns["reason"] = np.full(len(label), "", dtype=object) if reason is None else np.asarray(reason, dtype=object)
    return columns


def _plain_name(name: str) -> str:
    """The last part of a path, with nothing that has to be quoted in an address.

    >>> _plain_name("runs/mnist"), _plain_name("my models:make")
    ('mnist', 'my-models-make')
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(name).resolve().name).strip("-.") or "model"
