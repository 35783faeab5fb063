"""A run: one network trained on one set, with its detector, in a folder that says how it was made.

config.json        model, data, recipe, seed, the command and the versions
splits.npz         which training samples were trained on, and which were held out
last.ckpt, previous.ckpt, best.ckpt, history.csv, tensorboard/
model.safetensors  the trained weights
detector/          the fitted and calibrated detector
metrics.json       written last: its presence means that the run is finished
"""

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors.torch
import torch

from ddu import data
from ddu.data import ArrayDataset, DataInfo
from ddu.detectors import DDU, DUQ, SNGP, BaseDetector, load
from ddu.errors import ArtifactError, InputError
from ddu.evaluation import classification_metrics, false_alarm_metrics
from ddu.features import FeatureBatch
from ddu.files import holds_files, versions, write_bytes, write_json
from ddu.layers import GaussianProcessHead, RBFHead
from ddu.messages import check_name
from ddu.models import Classifier, create_model, takes_images
from ddu.training import Recipe, Training, check_writable, fit, is_main_process

CONFIG, SPLITS, WEIGHTS, DETECTOR, METRICS = (
    "config.json",
    "splits.npz",
    "model.safetensors",
    "detector",
    "metrics.json",
)

_PLAIN = {"spectral_norm": None, "sensitive": False}

METHODS: dict[str, dict[str, Any]] = {
    "ddu": {},
    "softmax": _PLAIN,
    "duq": {"head": "duq", **_PLAIN},
    "sngp": {"head": "sngp", "sensitive": False},
}
"""What a network can be trained for: the options of `create_model` that make it so."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run gives.

    Attributes:
        model: A name of `ddu.list_models()`.
        data: A name of `ddu.data.list_data()`.
        recipe: How to train.
        seed: Decides the split, the initial weights and the training.
        limit: Use at most so many samples of the training split, drawn at random in whole groups; None uses all. They
            are both what is trained on and what is held out, which is about `recipe.validation_share` of them.
        false_alarm_rate: What the detector is calibrated for.
        options: For `create_model`; they win over the recipe's own.
        split_seed: Decides the split in place of the seed: members of an ensemble share what is held out.
        skip_bad: Leave out images that cannot be read; see `ddu.data.load`.
    """

    model: str
    data: str
    recipe: Recipe
    seed: int = 0
    limit: int | None = None
    false_alarm_rate: float = 0.01
    options: Mapping[str, Any] = field(default_factory=dict)
    split_seed: int | None = None
    skip_bad: bool = False

    def to_json(self) -> dict[str, Any]:
        """The configuration as JSON has it."""
        return json.loads(json.dumps(asdict(self)))

    @property
    def fingerprint(self) -> str:
        """Twelve digits that runs share only if nothing that decides their results differs."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:12]

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        known: dict[str, Any] = {one.name: content[one.name] for one in fields(cls) if one.name in content}
        recipe = known["recipe"]
        known["recipe"] = Recipe(**(recipe | {"milestones": tuple(recipe["milestones"])}))
        return cls(**known)

    def make_model(self, inputs: Mapping[str, Any]) -> Classifier:
        """The network with its initial weights, which depend on the seed alone.

        Args:
            inputs: What `create_model` has to know of the data, as `input_options` gives it.
        """
        if takes_images(self.model) and "in_features" in inputs:
            raise InputError(
                f"{self.model} takes images, and {self.data} has {inputs['in_features']} numbers an input: choose a "
                "network for vectors, such as resffn4_128."
            )
        if not takes_images(self.model) and "in_channels" in inputs:
            raise InputError(
                f"{self.model} takes vectors, and {self.data} has images: choose a network such as resnet18."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return create_model(self.model, **{**inputs, **self.recipe.model, **self.options})


@dataclass(frozen=True)
class Run:
    """A finished run in a folder.

    Attributes:
        folder: Where it is.
        config: What was run.
        inputs: What the network has to know of the data; the data itself is not needed to load it.
        metrics: How the network and its detector did on test data.
    """

    folder: Path
    config: RunConfig
    inputs: Mapping[str, Any]
    metrics: dict[str, float]

    def load_model(self) -> Classifier:
        """The trained network, in evaluation mode."""
        model = self.config.make_model(self.inputs)
        model.load_state_dict(safetensors.torch.load_file(self.folder / WEIGHTS))
        return model.eval()

    def load_detector(self) -> BaseDetector:
        """The fitted and calibrated detector around the trained network."""
        return load(self.folder / DETECTOR, self.load_model())

    def load_data(self, *, root: str | os.PathLike[str] | None = None) -> "RunData":
        """The sets of the run, split as they were."""
        everything, test = data.load_parts(self.config.data, root=root, skip_bad=self.config.skip_bad)
        parts = {
            name: everything.subset(rows) for name, rows in data.load_splits(self.folder / SPLITS, everything).items()
        }
        return RunData(**parts, test=test)


@dataclass(frozen=True)
class RunData:
    """What a run trains on, what it holds out for validation and calibration, and what it is tested on."""

    train: ArrayDataset
    validation: ArrayDataset
    test: ArrayDataset


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Reads the folder of a finished run."""
    folder = Path(folder)
    for name in (CONFIG, METRICS):
        if not (folder / name).is_file():
            raise ArtifactError(f"There is no finished run in {folder}: it has no {name}. `ddu train` writes one.")
    config, metrics = (json.loads((folder / name).read_text()) for name in (CONFIG, METRICS))
    return Run(folder, RunConfig.from_json(config["run"]), config["inputs"], metrics)


def train_run(
    config: RunConfig,
    output: str | os.PathLike[str],
    *,
    data_root: str | os.PathLike[str] | None = None,
    command: str = "",
    devices: int | None = None,
    accelerator: str = "auto",
    workers: int = 0,
    progress: bool | None = None,
) -> Run | None:
    """Trains a network, fits and calibrates its detector, tests both, and leaves everything in a folder.

    A run that was interrupted goes on where it was; a finished one is returned as it is. Whatever can be wrong with the
    data, the model or the folder is found before the first epoch.

    Args:
        config: What to run.
        output: The folder: a new or empty one, or that of the same run.
        data_root: Where the data is; see `ddu.data.load`.
        command: What to write down as the command that made the run.
        devices: As in `ddu.training.fit`, like the rest.
        accelerator: The same.
        workers: The same.
        progress: The same.

    Returns:
        The run; None in the helping processes of a training on several devices.
    """
    folder = Path(output)
    if is_finished(folder, config):
        return load_run(folder)
    check_writable(folder)
    inputs = input_options(data.info(config.data, root=data_root))
    model = config.make_model(inputs)
    everything, test = data.load_parts(config.data, root=data_root, skip_bad=config.skip_bad)
    parts = _split(config, everything)
    sets = RunData(**{name: everything.subset(rows) for name, rows in parts.items()}, test=test)
    _rehearse(make_detector(model, everything.info.classes), sets, config)
    if is_main_process():
        provenance = {"command": command, "versions": versions("lightning", "torchvision", "safetensors")}
        write_json(folder / CONFIG, {"run": config.to_json(), "inputs": inputs, **provenance})
        data.save_splits(folder / SPLITS, everything, **parts)
    training = fit(
        model,
        sets.train,
        sets.validation,
        recipe=config.recipe,
        output=folder,
        seed=config.seed,
        devices=devices,
        accelerator=accelerator,
        workers=workers,
        progress=progress,
    )
    if not training.is_main:
        return None
    write_bytes(folder / WEIGHTS, safetensors.torch.save(model.cpu().state_dict()))
    batches = {name: data.loader(getattr(sets, name), workers=workers) for name in ("train", "validation")}
    detector = make_detector(model, sets.train.info.classes).fit(batches["train"], progress=progress)
    detector.calibrate(batches["validation"], config.false_alarm_rate, progress=progress)
    detector.save(folder / DETECTOR)
    write_json(folder / METRICS, _metrics(training, detector, sets.test))
    return load_run(folder)


def find_method(name: str) -> dict[str, Any]:
    """The options of `create_model` for a method by name."""
    check_name(name, METHODS, "There is no method {name!r}")
    return METHODS[name]


def make_detector(model: Classifier, class_names: Sequence[str] | None = None) -> BaseDetector:
    """The detector that a network was trained for: its head says which."""
    if isinstance(model.head, RBFHead):
        return DUQ(model, class_names=class_names)
    if isinstance(model.head, GaussianProcessHead):
        return SNGP(model, class_names=class_names)
    return DDU(model, class_names=class_names)


def input_options(info: DataInfo) -> dict[str, Any]:
    """Options of `create_model` that follow from the data."""
    if info.is_image:
        channels, height, width = info.shape
        return {"num_classes": info.num_classes, "in_channels": channels, "input_size": (height, width)}
    return {"num_classes": info.num_classes, "in_features": info.shape[0]}


def is_finished(folder: Path, config: RunConfig) -> bool:
    """Whether a folder holds this run, finished; another run in it is an error."""
    path = folder / CONFIG
    if not path.is_file():
        if holds_files(folder):
            raise InputError(f"{folder} holds files that are not a run's: choose another folder.")
        return False
    there, here = json.loads(path.read_text())["run"], config.to_json()
    for name, was, now in differences(there, here):
        raise InputError(f"The run in {folder} has {name}={was}, and this one {name}={now}: choose another folder.")
    return (folder / METRICS).is_file()


def differences(there: dict[str, Any], here: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Names and both values of what differs, in nested dictionaries too."""
    found = []
    for name in {**there, **here}:
        was, now = there.get(name), here.get(name)
        if isinstance(was, dict) and isinstance(now, dict):
            found += differences(was, now)
        elif was != now:
            found.append((name, was, now))
    return found


def _split(config: RunConfig, everything: ArrayDataset) -> dict[str, np.ndarray]:
    """The rows to train on, and those held out."""
    seed = config.seed if config.split_seed is None else config.split_seed
    train, validation = data.split(everything, config.recipe.validation_share, seed=seed)
    if config.limit is not None:
        chosen = data.draw(everything, config.limit, seed=seed)
        train, validation = (np.intersect1d(part, chosen) for part in (train, validation))
    return {"train": train, "validation": validation}


def _rehearse(detector: BaseDetector, sets: RunData, config: RunConfig) -> None:
    """Fits and calibrates a detector on noise with the labels of a run, and shows the network a test sample.

    So whatever labels, counts or shapes will make these refuse after the training, they refuse now.
    """
    for purpose, part in (("train on", sets.train), ("hold out", sets.validation), ("test on", sets.test)):
        if not len(part):
            limit = "" if config.limit is None else f" with a limit of {config.limit:,}"
            raise InputError(f"{config.data} has no samples to {purpose}{limit}: add samples, or raise the limit.")
    num_classes = detector.tap(sets.test.__getitems__([0])[0]).logits.shape[1]
    with warnings.catch_warnings(action="ignore"):  # of noise
        detector.fit(_noise(sets.train.labels, num_classes), progress=False)
        detector.calibrate(_noise(sets.validation.labels, num_classes), config.false_alarm_rate, progress=False)


def _noise(labels: np.ndarray, num_classes: int, rows: int = 512) -> Iterator[FeatureBatch]:
    """Batches with these labels, one random feature, and logits that prefer no class."""
    generator = torch.Generator().manual_seed(0)
    for part in torch.from_numpy(labels).split(rows):
        yield FeatureBatch(torch.randn(len(part), 1, generator=generator), torch.zeros(len(part), num_classes), part)


def _metrics(training: Training, detector: BaseDetector, test: ArrayDataset) -> dict[str, float]:
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
        "epoch": training.epoch,
        "seconds": training.seconds,
    }
