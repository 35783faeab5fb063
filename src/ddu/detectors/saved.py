"""The saved form of a detector: JSON and tensors by name, and the detector that they make again."""

import inspect
import os
import warnings
from typing import Any, TypeVar

from torch import Tensor, nn

from ddu.artifacts import model_fingerprint, save_artifact
from ddu.calibration import Calibration
from ddu.detectors.inputs import Channels
from ddu.detectors.interface import AbstractDetector
from ddu.errors import ArtifactError, DDUWarning, InputError
from ddu.messages import check_entries

DetectorT = TypeVar("DetectorT", bound=AbstractDetector)

KEPT, INPUTS = "calibration.", "inputs."
"""In a file, the names of what a calibration keeps begin so, and those of what is known of the inputs."""


def save_detector(detector: AbstractDetector, folder: str | os.PathLike[str], learned: dict[str, Tensor]) -> None:
    """Writes a fitted detector and what it learned to a folder."""
    calibration = detector.calibration
    content = {
        "detector": detector.name,
        "class_names": detector.class_names,
        "options": detector._options(),
        "calibration": calibration.settings() if calibration else None,
        "model": {
            "class": type(detector.model).__name__,
            "fingerprint": detector._fingerprint or model_fingerprint(detector.model),
        },
    }
    save_artifact(folder, content, learned | kept_tensors(detector))


def kept_tensors(detector: AbstractDetector) -> dict[str, Tensor]:
    """What the calibration keeps and what is known of the inputs, by the names in a file."""
    kept = detector.calibration.held_out.tensors() if detector.calibration else {}
    inputs = detector._inputs.channels.tensors()
    return {INPUTS + name: tensor for name, tensor in inputs.items()} | {KEPT + name: kept[name] for name in kept}


def restore_detector(
    cls: type[DetectorT],
    content: dict[str, Any],
    tensors: dict[str, Tensor],
    model: nn.Module,
    *,
    strict: bool = True,
    **replaced: Any,
) -> DetectorT:
    """A detector from what `save_detector` wrote, with some of its options replaced."""
    names, calibration, saved = content["class_names"], content["calibration"], content["model"]
    own = [name for name in inspect.signature(cls).parameters if name not in ("model", "models", "class_names")]
    options = content["options"]
    if "classes" in own and isinstance(options, dict):  # older files have none
        options = {"classes": None} | options
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
            raise ArtifactError(
                f"{message} If only the precision or layout differs, ddu.load(folder, model, strict=False) in Python "
                "loads it with a warning."
            )
        warnings.warn(message, DDUWarning, stacklevel=3)
    channels = Channels.restore(inputs)
    detector = cls._rebuild(model, options | replaced, learned)
    detector.class_names = None if names is None else tuple(names)
    detector.calibration = calibrated
    detector._fingerprint = saved["fingerprint"]
    detector._inputs.channels = channels
    return detector


def _by_prefix(tensors: dict[str, Tensor], *prefixes: str) -> list[dict[str, Tensor]]:
    """Tensors by the beginning of their names, which is taken away; the last are those that begin otherwise."""
    groups = [{n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)} for prefix in prefixes]
    return [*groups, {n: t for n, t in tensors.items() if not n.startswith(prefixes)}]
