"""The folder of a run: what is in it, and how it is read.

run.json           the specification, the data and its preprocessing, the command, versions and commit
splits.npz         which training samples were trained on, and which were held out
last.ckpt, previous.ckpt, best.ckpt, history.csv, tensorboard/
model.safetensors  the trained weights
detector/          the fitted and calibrated detector
metrics.json       written last: a run that has it is finished

The folder alone is enough to judge raw images; the data set is not needed.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch

from ddu import data, provenance
from ddu.data import ArrayDataset, DataInfo, Preprocessing
from ddu.detectors import BaseDetector, load
from ddu.errors import ArtifactError
from ddu.models import Classifier
from ddu.resume import read_settings
from ddu.runs.spec import RunSpec
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

    def load_data(self, *, root: str | os.PathLike[str] | None = None) -> RunData:
        """The sets of the run, split as they were; other samples than those of the run are refused."""
        everything, test = data.load_parts(self.spec.data, root=root, skip_bad=self.spec.skip_bad)
        if data_digest(everything, test) != self.digest:
            raise ArtifactError(
                f"{self.spec.data} has other samples or labels now than the run in {self.folder} was trained with: "
                "restore them, or train again in another folder."
            )
        rows = data.load_splits(self.folder / SPLITS, everything)
        return RunData(everything.subset(rows["train"]), everything.subset(rows["validation"]), test)


def load_run(folder: str | os.PathLike[str]) -> Run:
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
