"""What is kept of the data beside a detector, for people to look at: scores, training examples, and inputs to try.

    keep_examples(detector, train, held_out, 200).save("detector")
    examples = load_examples("detector", detector.calibration)  # None where none were kept

One safetensors file of bounded size in the detector's folder; nothing is unpickled. The detector does not need it.
Features and scores mean something for one detector alone, so those of another are not used.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from ddu import data
from ddu.calibration import Calibration
from ddu.data import ArrayDataset
from ddu.data.preprocessing import fitted
from ddu.detectors import BaseDetector
from ddu.errors import ArtifactError, DDUWarning, InputError
from ddu.features import FeatureTap
from ddu.features.taps import ModelTap
from ddu.files import FilePath, write_bytes
from ddu.messages import frames_to_the_caller
from ddu.progress import track
from ddu.provenance import fingerprint
from ddu.types import Prediction, Verdict

FILE = "examples.safetensors"
MOST = 2000
"""Training examples, and scores of a set."""

_FORMAT, _VERSION = "ddu-examples", 1
_SIDE = 64  # pixels of a thumbnail
_TRIED = 8  # inputs of a group


class Group(NamedTuple):
    """Inputs to try, and what each of them is.

    Attributes:
        inputs: Images at the network's size, bytes (input, height, width, channel); or vectors (input, feature).
        words: Such as the name of its class, (input,).
    """

    inputs: Tensor
    words: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Examples:
    """What is kept.

    Attributes:
        inputs: Training examples: thumbnails, bytes (example, height, width, channel); or vectors (example, feature).
        labels: Their classes, (example,).
        features: What the head of the network sees of them, (example, feature).
        scores: Epistemic scores of some inputs of a set, by its name.
        gallery: Groups of inputs to try, by name.
        detector: The digits of `detector_digits`: whose features and scores these are.
    """

    inputs: Tensor
    labels: Tensor
    features: Tensor
    scores: Mapping[str, Tensor] = field(default_factory=dict)
    gallery: Mapping[str, Group] = field(default_factory=dict)
    detector: str = ""

    def __post_init__(self) -> None:
        count = len(self.labels)
        if not len(self.inputs) == len(self.features) == count or self.features.ndim != 2 or not 0 < count <= MOST:
            raise InputError(
                f"There must be 1 to {MOST:,} examples, each with an input, a label and features. Got "
                f"{tuple(self.inputs.shape)}, {tuple(self.labels.shape)} and {tuple(self.features.shape)} instead."
            )
        for name, scores in self.scores.items():
            if scores.ndim != 1 or not 0 < len(scores) <= MOST or not bool(torch.isfinite(scores).all()):
                raise InputError(f"The scores of {name!r} must be 1 to {MOST:,} finite numbers.")
        for name, group in self.gallery.items():
            if len(group.inputs) != len(group.words):
                raise InputError(f"The group {name!r} has {len(group.inputs)} inputs and {len(group.words)} words.")
        for name, inputs in {"examples": self.inputs, **{n: g.inputs for n, g in self.gallery.items()}}.items():
            is_image = inputs.dtype == torch.uint8 and inputs.ndim == 4 and inputs.shape[3] in (1, 3)
            if not is_image and not (inputs.is_floating_point() and inputs.ndim == 2):
                raise InputError(
                    f"The inputs of {name!r} must be images, bytes (input, height, width, channel), or vectors. Got "
                    f"{inputs.dtype} of shape {tuple(inputs.shape)} instead."
                )

    def nearest(self, features: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The distances to the nearest examples and their rows, (input, count) each, the nearest first.

        Args:
            features: What the head of the network sees of some inputs, (input, feature).
            count: How many to find; fewer where there are fewer.
        """
        distances = torch.cdist(features.double().cpu(), self.features.double())
        return distances.topk(min(count, len(self.labels)), largest=False)  # pyright: ignore[reportReturnType]

    def save(self, folder: FilePath) -> None:
        """Writes the file to the folder of a detector."""
        tensors = {"inputs": self.inputs, "labels": self.labels, "features": self.features}
        tensors |= {f"scores.{name}": scores for name, scores in self.scores.items()}
        tensors |= {f"gallery.{name}": group.inputs for name, group in self.gallery.items()}
        about = {
            "version": _VERSION,
            "detector": self.detector,
            "scores": list(self.scores),
            "gallery": {name: group.words for name, group in self.gallery.items()},
        }
        content = {name: tensor.contiguous() for name, tensor in tensors.items()}
        write_bytes(Path(folder) / FILE, safetensors.torch.save(content, {_FORMAT: json.dumps(about)}))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads the file, or says what is wrong with it."""
        try:
            with safetensors.safe_open(path, "pt") as file:
                about = json.loads((file.metadata() or {}).get(_FORMAT, "null"))
                if not isinstance(about, dict) or about.get("version") != _VERSION:
                    raise ValueError("it was not written by this ddu")
                return cls(
                    *(file.get_tensor(name) for name in ("inputs", "labels", "features")),
                    scores={name: file.get_tensor(f"scores.{name}") for name in about["scores"]},
                    gallery={
                        name: Group(file.get_tensor(f"gallery.{name}"), tuple(map(str, words)))
                        for name, words in about["gallery"].items()
                    },
                    detector=about.get("detector", ""),
                )
        except (safetensors.SafetensorError, InputError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(f"{path} cannot be read ({error})") from error


def load_examples(folder: FilePath, calibration: Calibration | None) -> Examples | None:
    """What is kept in the folder of a detector; None where nothing is.

    What is damaged or of another detector is not used either, with a warning.

    Args:
        folder: The folder.
        calibration: That of the detector.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    try:
        found = Examples.load(path)
        if found.detector == detector_digits(calibration):
            return found
        problem = f"{path} has examples of another detector"
    except ArtifactError as error:
        problem = str(error)
    warnings.warn(
        f"{problem}, and is not used: --keep-examples, or ddu.examples.keep_examples, writes it again.",
        DDUWarning,
        stacklevel=frames_to_the_caller(),
    )
    return None


def detector_digits(calibration: Calibration | None) -> str:
    """Twelve digits of the held-out scores: a detector of other weights, another fit or calibration has others."""
    scores = torch.zeros(0) if calibration is None else calibration.held_out.epistemic.cpu()
    return fingerprint(hashlib.sha256(scores.numpy().tobytes()).hexdigest())


def keep_examples(
    detector: BaseDetector,
    train: ArrayDataset,
    held_out: ArrayDataset,
    count: int,
    *,
    seed: int = 0,
    progress: bool | None = None,
) -> Examples:
    """Draws training examples, and held-out inputs for the gallery: typical, ambiguous, and the least known.

    Args:
        detector: Fitted and calibrated.
        train: What it was fitted to.
        held_out: What it was calibrated on.
        count: How many training examples to keep, and how many held-out inputs to choose from.
        seed: Decides which.
        progress: As of `BaseDetector.fit`.
    """
    check_count(count)
    tap, features, scores = penultimate(detector), [], []
    chosen = train.subset(_draw(train, count, seed))
    for inputs, _ in track(data.loader(chosen, 128), "examples", show=progress):
        features.append(tap(inputs).features.float().cpu())
        scores.append(detector.evidence(inputs).epistemic.float().cpu())
    return Examples(
        torch.from_numpy(_thumbnails(shown(chosen))),
        torch.from_numpy(chosen.labels).long(),
        torch.cat(features),
        scores={"training": torch.cat(scores)},
        gallery=_gallery(detector, held_out.subset(_draw(held_out, count, seed))),
        detector=detector_digits(detector.calibration),
    )


def check_count(count: int) -> None:
    """Refuses more examples than are kept."""
    if not 1 <= count <= MOST:
        raise InputError(f"Between 1 and {MOST:,} training examples can be kept. Got {count:,} instead.")


def penultimate(detector: BaseDetector) -> FeatureTap:
    """What gives the features that the head of a detector's network sees."""
    taps = detector.tap.taps if isinstance(detector.tap, ModelTap) else ()
    return taps[-1] if taps else FeatureTap(detector.model)


def shown(dataset: ArrayDataset) -> np.ndarray:
    """The inputs as the network sees them: images as bytes, (sample, height, width, channel), or vectors."""
    parts = [dataset.preprocessing.to_pixels(inputs) for inputs, _ in data.loader(dataset, 128)]
    return np.concatenate(parts)


def _draw(dataset: ArrayDataset, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(len(dataset))[:count]


def _thumbnails(inputs: np.ndarray) -> np.ndarray:
    if inputs.ndim != 4:
        return inputs
    scale = min(1.0, _SIDE / max(inputs.shape[1:3]))
    height, width = (max(1, round(scale * side)) for side in inputs.shape[1:3])
    return fitted(inputs, (inputs.shape[3], height, width))


def _gallery(detector: BaseDetector, held_out: ArrayDataset) -> dict[str, Group]:
    judged = Prediction.join(detector.predict(inputs) for inputs, _ in data.loader(held_out, 128))
    verdicts = np.asarray(judged.verdict)
    by_entropy, by_score = (-values.cpu().numpy() for values in (judged.aleatoric, judged.epistemic))  # largest first
    rows = {
        "typical": np.flatnonzero(verdicts == Verdict.IN_DISTRIBUTION),
        "ambiguous": _first(by_entropy, verdicts == Verdict.AMBIGUOUS),
        "least known": _first(by_score, verdicts != Verdict.INVALID),
    }
    names = held_out.info.classes
    groups = {name: held_out.subset(at[:_TRIED]) for name, at in rows.items() if len(at)}
    return {
        name: Group(torch.from_numpy(shown(group)), tuple(names[label] for label in group.labels))
        for name, group in groups.items()
    }


def _first(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """The rows among which to choose, in ascending order of their values."""
    (rows,) = np.nonzero(among)
    return rows[values[rows].argsort(kind="stable")]
