"""A run in its folder: trained into it, and read from it.

run.json           the specification, the data and its preprocessing, the command, versions and commit
splits.npz         which training samples were trained on, and which were held out
last.ckpt, previous.ckpt, best.ckpt, history.csv, tensorboard/
model.safetensors  the trained weights
detector/          the fitted and calibrated detector, and examples of the data if they are kept
metrics.json       written last: a run that has it is finished

The folder alone is enough to judge raw images; the data set is not needed.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch

from ddu import data, provenance
from ddu.data import ArrayDataset, DataInfo, Preprocessing
from ddu.data.registry import Root
from ddu.detectors import DDU, BaseDetector, find_method, join_evidence, load
from ddu.detectors.labels import check_coverage
from ddu.errors import ArtifactError, InputError
from ddu.examples import check_count, keep_examples, load_examples
from ddu.features import FeatureBatch
from ddu.files import FilePath, write_bytes, write_json
from ddu.models import Classifier
from ddu.results import classification_metrics, false_alarm_metrics
from ddu.resume import one_at_a_time, read_settings, refuse_changes
from ddu.runs.spec import RunSpec
from ddu.training import fit, is_main_process, read_history
from ddu.training.loop import settled_precision
from ddu.types import Prediction

RUN, SPLITS, WEIGHTS, DETECTOR, METRICS = ("run.json", "splits.npz", "model.safetensors", "detector", "metrics.json")


class RunData(NamedTuple):
    """The samples that a run trains on, holds out for validation and calibration, and is tested on."""

    train: ArrayDataset
    validation: ArrayDataset
    test: ArrayDataset


@dataclass(frozen=True)
class Run:
    """A finished run in a folder.

    Attributes:
        folder: Where it is.
        spec: What was run.
        info: The data: its classes, and the shape and normalisation of the inputs.
        digest: Of the samples and labels.
        samples: How many samples were trained on, and how many were held out.
        metrics: How the network and its detector did on test data.
    """

    folder: Path
    spec: RunSpec
    info: DataInfo
    digest: str
    samples: int
    metrics: Mapping[str, float]

    @property
    def fingerprint(self) -> str:
        """What rows of this run have in the column `run`."""
        return self.spec.fingerprint(self.digest)

    @property
    def reductions(self) -> str | None:
        """How the run is smaller than the paper's; None if it is not."""
        return self.spec.reductions(self.samples)

    @property
    def preprocessing(self) -> Preprocessing:
        """How a raw image becomes the input of the network."""
        return self.info.preprocessing

    @property
    def history(self) -> list[dict[str, float]]:
        """The training, epoch by epoch, as in `ddu.training.Training`; empty if the file is gone."""
        return read_history(self.folder)

    @property
    def origin(self) -> dict[str, Any]:
        """What it was made with: `command`, `versions` and `commit`."""
        content = read_settings(self.folder / RUN, "run") or {}
        return {name: content.get(name) for name in ("command", "versions", "commit")}

    @cached_property
    def detector(self) -> BaseDetector:
        """The fitted and calibrated detector around the trained network."""
        if self.spec.method is None:
            raise ArtifactError(f"The run in {self.folder} trained a network alone: it has no detector.")
        return load(self.folder / DETECTOR, self.load_model())

    def predict(self, inputs: Any) -> Prediction:
        """Judges raw images: file names, images of Pillow's, or arrays of pixels; see `ddu.data.Preprocessing`.

        Vectors are taken as they are.
        """
        return self.detector.predict(self.preprocessing(inputs))

    def load_model(self) -> Classifier:
        """The trained network, in evaluation mode."""
        model = self.spec.make_model(self.info)
        model.load_state_dict(safetensors.torch.load_file(self.folder / WEIGHTS))
        return model.eval()

    def load_data(self, *, root: Root = None) -> RunData:
        """The sets of the run, split as they were; other samples than those of the run are refused."""
        skip_bad = self.spec.skip_bad
        return load_sets(self.spec.data, self.folder, self.digest, what="run", root=root, skip_bad=skip_bad)


def load_sets(name: str, folder: Path, digest: str, *, what: str, root: Root, skip_bad: bool = False) -> RunData:
    """The sets of a run, or of `what` else was trained into a folder, split as they were; other samples are refused."""
    everything, test = data.load_parts(name, root=root, skip_bad=skip_bad)
    if data_digest(everything, test) != digest:
        raise ArtifactError(
            f"{name} has other samples or labels now than the {what} in {folder} was trained with: restore them, or "
            "train again in another folder."
        )
    rows = data.load_splits(folder / SPLITS, everything)
    return RunData(everything.subset(rows["train"]), everything.subset(rows["validation"]), test)


def load_run(folder: FilePath) -> Run:
    """Reads the folder of a finished run."""
    folder = Path(folder)
    for name in (RUN, METRICS):
        if not (folder / name).is_file():
            raise ArtifactError(f"There is no finished run in {folder}: it has no {name}. `ddu train` writes one.")
    content = read_settings(folder / RUN, "run")
    try:
        assert content is not None
        info: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in content["data"].items()
        }
        spec, metrics = RunSpec.from_json(content["spec"]), json.loads((folder / METRICS).read_text())
        return Run(folder, spec, DataInfo(**info), content["digest"], content["samples"], metrics)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{folder / RUN} does not describe a run of this ddu: {error!r}.") from error


def description(spec: RunSpec, info: DataInfo, digest: str, samples: int, command: str) -> dict[str, Any]:
    """The content of run.json."""
    return {
        "spec": spec.to_json(),
        "data": asdict(info),
        "digest": digest,
        "samples": samples,
        "fingerprint": spec.fingerprint(digest),
        "command": command,
        "versions": provenance.versions("lightning", "torchvision", "safetensors"),
        "commit": provenance.commit(),
    }


def data_digest(*parts: ArrayDataset) -> str:
    """A digest of the samples and labels of several sets."""
    return provenance.fingerprint([part.digest() for part in parts])


def train_run(
    spec: RunSpec,
    output: FilePath,
    *,
    data_root: Root = None,
    command: str = "",
    devices: int | None = None,
    accelerator: str = "auto",
    workers: int = 0,
    progress: bool | None = None,
    on_progress: Callable[[float, str], None] | None = None,
    examples: int | None = None,
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
        examples: Keep so many training examples beside the detector, for the page of the server: see `ddu.examples`. A
            finished run can be given them later.

    Returns:
        The run; None in the helping processes of a training on several devices.
    """
    folder = Path(output)
    if examples is not None:
        check_count(examples)
    with one_at_a_time(folder) if is_main_process() else nullcontext():
        begun = read_settings(folder / RUN, "run")
        if begun is not None:
            refuse_changes(f"The run in {folder}", _part(begun, "spec", folder), spec.to_json())
        everything, test = data.load_parts(spec.data, root=data_root, skip_bad=spec.skip_bad)
        rows = split_rows(spec, everything)
        samples, digest = sum(map(len, rows.values())), data_digest(everything, test)
        settings = description(spec, everything.info, digest, samples, command)
        # A training that was interrupted is resumed in the precision that it began in, on any processor
        begun_in = None if begun is None else begun.get("precision")
        settings["precision"] = precision = begun_in or settled_precision(spec.recipe.precision, accelerator)
        if begun is not None:
            for name in ("digest", "data"):  # samples and labels; shape, classes and normalisation
                were, are = ({f"data {name}": _part(one, name, folder)} for one in (begun, settings))
                refuse_changes(f"The run in {folder}", were, json.loads(json.dumps(are)))
        sets = RunData(everything.subset(rows["train"]), everything.subset(rows["validation"]), test)
        if begun is not None and (folder / METRICS).is_file():
            run = load_run(folder)
            if spec.method is not None and is_main_process():
                _keep_examples(run.detector, sets, folder, examples, spec.seed, progress)
            return run
        model = spec.make_model(everything.info)
        check_samples(spec, model, sets)
        if is_main_process():
            write_json(folder / RUN, settings)
            data.save_splits(folder / SPLITS, everything, **rows)
        training = fit(
            model,
            sets.train,
            sets.validation,
            recipe=spec.recipe.with_changes(precision=precision),
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
            held_out = data.loader(sets.validation, workers=workers)
            # What a rival does not see is for comparisons to say
            probes = isinstance(detector, DDU)
            detector.calibrate(held_out, spec.false_alarm_rate, probes=probes, progress=progress)
            detector.save(folder / DETECTOR)
            _keep_examples(detector, sets, folder, examples, spec.seed, progress)
            metrics = {**_test(detector, sets.test), **metrics}
        write_json(folder / METRICS, metrics)
        return load_run(folder)


def _keep_examples(
    detector: BaseDetector, sets: RunData, folder: Path, count: int | None, seed: int, progress: bool | None
) -> None:
    if count is not None and load_examples(folder / DETECTOR, detector.calibration) is None:
        kept = keep_examples(detector, sets.train, sets.validation, count, seed=seed, progress=progress)
        kept.save(folder / DETECTOR)


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
    sample = detector.tap(sets.test.__getitems__([0])[0])
    detector.check_class_names(sample.logits.shape[1])
    if detector.needs_every_class:
        check_classes(sets.train, sample.logits.shape[1], spec.limit)
    with warnings.catch_warnings(action="ignore"):  # of noise
        detector.fit(_noise(_few_of_each(sets.train.labels), sample), progress=False)
        detector.calibrate(_noise(sets.validation.labels, sample), spec.false_alarm_rate, progress=False)


def check_classes(train: ArrayDataset, num_classes: int, limit: int | None) -> None:
    """Refuses training samples that leave a class of the network out; `limit` is how many were asked for."""
    fewer = "" if limit is None else f", or raise the limit of {limit:,}"
    counts = torch.bincount(torch.from_numpy(train.labels), minlength=num_classes)
    check_coverage(counts, way_out=f"Add samples of every class{fewer}.")


def _few_of_each(labels: np.ndarray, most: int = 32) -> np.ndarray:
    """At most so many labels of each class: what too few samples would break, these do as well."""
    return np.concatenate([labels[labels == label][:most] for label in np.unique(labels)])


def _noise(labels: np.ndarray, sample: FeatureBatch, rows: int = 512) -> Iterator[FeatureBatch]:
    """Batches with these labels, random features like those of a sample, and logits that prefer no class."""
    generator = torch.Generator().manual_seed(0)
    for part in torch.from_numpy(labels).split(rows):
        features = torch.randn(len(part), sample.features.shape[1], generator=generator)
        yield FeatureBatch(features, torch.zeros(len(part), sample.logits.shape[1]), part)


def _test(detector: BaseDetector, test: ArrayDataset) -> dict[str, float]:
    """How the network and its detector do on test data."""
    found, labels = zip(*((detector.evidence(inputs), labels) for inputs, labels in data.loader(test)), strict=True)
    (logits, epistemic, _), labels = join_evidence(found), torch.cat(labels)
    assert detector.epistemic_threshold is not None
    predictions = classification_metrics(logits, labels, detector.temperature)
    alarms = false_alarm_metrics(epistemic, detector.epistemic_threshold)
    return {
        **{f"test_{name}": predictions[name] for name in ("accuracy", "nll", "ece")},
        "test_false_alarm_rate": alarms["false_alarm_rate"],
        "temperature": detector.temperature,
    }
