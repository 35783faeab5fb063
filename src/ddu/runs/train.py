"""Training a run: a network, the detector of its method, and a test of both, in one folder."""

import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from ddu import data
from ddu.data import ArrayDataset
from ddu.detectors import BaseDetector, find_method
from ddu.errors import ArtifactError, InputError
from ddu.features import FeatureBatch
from ddu.files import write_bytes, write_json
from ddu.models import Classifier
from ddu.results import classification_metrics, false_alarm_metrics
from ddu.resume import one_at_a_time, read_settings, refuse_changes
from ddu.runs.folder import (
    DETECTOR,
    METRICS,
    RUN,
    SPLITS,
    WEIGHTS,
    Run,
    RunData,
    data_digest,
    description,
    load_run,
)
from ddu.runs.spec import RunSpec
from ddu.training import fit, is_main_process


def train_run(
    spec: RunSpec,
    output: str | os.PathLike[str],
    *,
    data_root: str | os.PathLike[str] | None = None,
    command: str = "",
    devices: int | None = None,
    accelerator: str = "auto",
    workers: int = 0,
    progress: bool | None = None,
    on_progress: Callable[[float, str], None] | None = None,
) -> Run | None:
    """Trains a network, fits and calibrates the detector of its method, tests both, and writes all to a folder.

    A run that was interrupted is resumed, and a finished one is returned as it is. Whatever is wrong with the data, the
    model or the folder is found before the first epoch.

    Args:
        spec: What to run.
        output: The folder: a new or empty one, or that of the same run.
        data_root: Where the data is; see `ddu.data.load`.
        command: The command to record with the run.
        devices: As in `ddu.training.fit`, like the rest.
        accelerator: The same.
        workers: The same.
        progress: The same.
        on_progress: The same.

    Returns:
        The run; None in the helping processes of a training on several devices.
    """
    folder = Path(output)
    with one_at_a_time(folder) if is_main_process() else nullcontext():
        begun = read_settings(folder / RUN, "run")
        if begun is not None:
            refuse_changes(f"The run in {folder}", _part(begun, "spec", folder), spec.to_json())
        everything, test = data.load_parts(spec.data, root=data_root, skip_bad=spec.skip_bad)
        rows = split_rows(spec, everything)
        samples, digest = sum(map(len, rows.values())), data_digest(everything, test)
        settings = description(spec, everything.info, digest, samples, command)
        if begun is not None:
            for name in ("digest", "data"):  # samples and labels; shape, classes and normalisation
                were, are = ({f"data {name}": _part(one, name, folder)} for one in (begun, settings))
                refuse_changes(f"The run in {folder}", were, json.loads(json.dumps(are)))
            if (folder / METRICS).is_file():
                return load_run(folder)
        model = spec.make_model(everything.info)
        sets = RunData(everything.subset(rows["train"]), everything.subset(rows["validation"]), test)
        check_samples(spec, model, sets)
        if is_main_process():
            write_json(folder / RUN, settings)
            data.save_splits(folder / SPLITS, everything, **rows)
        training = fit(
            model,
            sets.train,
            sets.validation,
            recipe=spec.recipe,
            output=folder,
            seed=spec.seed,
            devices=devices,
            accelerator=accelerator,
            workers=workers,
            progress=progress,
            on_progress=on_progress,
        )
        if not training.is_main:
            return None
        write_bytes(folder / WEIGHTS, safetensors.torch.save(model.cpu().state_dict()))
        metrics = {"epoch": training.epoch, "seconds": training.seconds}
        if spec.method is not None:
            detector = make_detector(spec, model, everything.info.classes)
            detector.fit(data.loader(sets.train, workers=workers), progress=progress)
            detector.calibrate(data.loader(sets.validation, workers=workers), spec.false_alarm_rate, progress=progress)
            detector.save(folder / DETECTOR)
            metrics = {**_test(detector, sets.test), **metrics}
        write_json(folder / METRICS, metrics)
        return load_run(folder)


def is_finished(spec: RunSpec, folder: Path) -> bool:
    """Whether a folder has this run, finished; another run in it is refused."""
    begun = read_settings(folder / RUN, "run")
    if begun is None:
        return False
    refuse_changes(f"The run in {folder}", _part(begun, "spec", folder), spec.to_json())
    return (folder / METRICS).is_file()


def _part(content: dict[str, Any], name: str, folder: Path) -> Any:
    if name not in content:
        raise ArtifactError(
            f"{folder / RUN} has no {name!r}, so it was not written by this ddu: choose another folder."
        )
    return content[name]


def make_detector(spec: RunSpec, model: Classifier, class_names: tuple[str, ...] | None = None) -> BaseDetector:
    """The detector of the run's method around its network; not fitted yet."""
    assert spec.method is not None
    method = find_method(spec.method)
    if method.members > 1:
        raise InputError(
            f"{method.name} needs {method.members} networks, and a run trains one: `ddu compare` trains several."
        )
    detector = method.make(model, class_names=class_names)
    if not detector.can_save:
        raise InputError(f"{method.name} cannot be saved, so it cannot be trained for: use it in `ddu evaluate`.")
    return detector


def split_rows(spec: RunSpec, everything: ArrayDataset) -> dict[str, np.ndarray]:
    """The rows to train on, and those to hold out."""
    seed = spec.seed if spec.split_seed is None else spec.split_seed
    train, validation = data.split(everything, spec.recipe.validation_share, seed=seed)
    if spec.limit is not None:
        chosen = data.draw(everything, spec.limit, seed=seed)
        train, validation = (np.intersect1d(part, chosen) for part in (train, validation))
    return {"train": train, "validation": validation}


def check_samples(spec: RunSpec, model: Classifier, sets: RunData) -> None:
    """Fits and calibrates a detector on noise with the labels of a run, and shows the network a test sample.

    So whatever labels, counts or shapes would make these fail after the training, they fail now.
    """
    for purpose, part in (("train on", sets.train), ("hold out", sets.validation), ("test on", sets.test)):
        if not len(part):
            limit = "" if spec.limit is None else f" with a limit of {spec.limit:,}"
            raise InputError(f"{spec.data} has no samples to {purpose}{limit}: add samples, or raise the limit.")
    if spec.method is None:
        return
    detector = make_detector(spec, model, sets.train.info.classes)
    num_classes = detector.tap(sets.test.__getitems__([0])[0]).logits.shape[1]
    with warnings.catch_warnings(action="ignore"):  # of noise
        detector.fit(_noise(sets.train.labels, num_classes), progress=False)
        detector.calibrate(_noise(sets.validation.labels, num_classes), spec.false_alarm_rate, progress=False)


def _noise(labels: np.ndarray, num_classes: int, rows: int = 512) -> Iterator[FeatureBatch]:
    """Batches with these labels, one random feature, and logits that prefer no class."""
    generator = torch.Generator().manual_seed(0)
    for part in torch.from_numpy(labels).split(rows):
        yield FeatureBatch(torch.randn(len(part), 1, generator=generator), torch.zeros(len(part), num_classes), part)


def _test(detector: BaseDetector, test: ArrayDataset) -> dict[str, float]:
    """How the network and its detector do on test data."""
    rows = [(*detector.evidence(inputs), labels) for inputs, labels in data.loader(test)]
    logits, epistemic, labels = (torch.cat(column) for column in zip(*rows, strict=True))
    assert detector.epistemic_threshold is not None
    predictions = classification_metrics(logits, labels, detector.temperature)
    alarms = false_alarm_metrics(epistemic, detector.epistemic_threshold)
    return {
        **{f"test_{name}": predictions[name] for name in ("accuracy", "nll", "ece")},
        "test_false_alarm_rate": alarms["false_alarm_rate"],
        "temperature": detector.temperature,
    }
