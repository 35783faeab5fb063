"""Whatever judges raw inputs, opened by one name.

    source = open_source("runs/mnist")                           # a run that `ddu train` wrote
    source = open_source("detector")                             # one of `ddu fit`, around timm's or torchvision's
    source = open_source("my_models:make", detector="detector")  # any network, and the detector that was fitted to it
    source.predict(["digit.png"])

A folder is told by a file that it has; `KINDS` says which. A file may name a network of a library, but no code to run:
a detector around `module:function` is opened with that name.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddu import artifacts, data
from ddu.calibration import Calibration
from ddu.data import ArrayDataset, Preprocessing
from ddu.data.registry import Root
from ddu.detectors import BaseDetector, load
from ddu.errors import ArtifactError, InputError, NotSupportedError
from ddu.examples import Examples, load_examples
from ddu.features import LogitsTap
from ddu.files import FilePath
from ddu.networks import find_function, first_batch, is_of_library, open_network, refuse_pickles
from ddu.provenance import fingerprint
from ddu.resume import read_settings
from ddu.runs import Run, load_run
from ddu.types import Prediction

SOURCE, WEIGHTS = "source.json", "model.safetensors"

_GRAPH = "model.onnx"

KINDS = {
    SOURCE: "ddu.sources:open_fitted",
    "run.json": "ddu.sources:open_run",
    _GRAPH: "ddu.bundles:open_bundle",
}
"""The file that tells what a folder is, and the function of the folder that opens it; imported when it is needed."""


class Source(ABC):
    """Something that judges raw inputs.

    Attributes:
        name: What it was opened by.
        preprocessing: How a raw input becomes what the network sees; `preprocessing.shape` is that of one input.
        class_names: None where classes have numbers alone.
        fingerprint: Twelve digits; sources that may judge an input differently have different ones.
        description: What it is and what it was made from, as JSON: at least its `kind`, the `network` and the `data`.
    """

    def __init__(
        self,
        name: str,
        preprocessing: Preprocessing,
        class_names: tuple[str, ...] | None,
        fingerprint: str,
        description: Mapping[str, Any],
    ):
        self.name = name
        self.preprocessing = preprocessing
        self.class_names = class_names
        self.fingerprint = fingerprint
        self.description = description

    def prepare(self, raw: Any) -> Tensor:
        """Reads and decodes raw inputs to a batch for `judge`: the part of the work that threads may share.

        Args:
            raw: Whatever a `Preprocessing` takes: names of image files, images of Pillow's, arrays of pixels, vectors.
        """
        return self.preprocessing(raw)

    @abstractmethod
    def judge(self, inputs: Tensor) -> Prediction:
        """Judges a batch that `prepare` made; several of them joined along the first axis are one batch."""

    def predict(self, raw: Any) -> Prediction:
        """Judges raw inputs."""
        return self.judge(self.prepare(raw))

    def load_data(self, name: str, split: str, *, root: Root = None) -> ArrayDataset:
        """A data set with the classes of this source, as its network is shown it.

        Args:
            name: As for `ddu.data.load`.
            split: Such as "test"; of a set that has no such split, the first one.
            root: As for `ddu.data.load`.
        """
        splits = data.list_splits(name, root=root)
        samples = data.load(name, split if split in splits else splits[0], root=root)
        names = self.class_names
        if names is not None and samples.info.classes != names:
            raise InputError(
                f"{self.name} has the classes {', '.join(names[:5])} ({len(names)}), and {name} has "
                f"{', '.join(samples.info.classes[:5])} ({len(samples.info.classes)}): give data with the same classes."
            )
        return samples.shown_by(self.preprocessing)

    @property
    @abstractmethod
    def false_alarm_rate(self) -> float | None:
        """Share of in-distribution inputs that may be called out of distribution; None if it is not calibrated."""

    @property
    @abstractmethod
    def entropy_threshold(self) -> float | None:
        """Entropy above which an input in distribution is ambiguous; None calls nothing ambiguous."""

    @property
    @abstractmethod
    def calibration(self) -> Calibration | None:
        """What is known from held-out data; None if it is not calibrated, or if that was not kept."""

    @property
    def held_out_scores(self) -> Tensor | None:
        """The epistemic scores of the calibration, which drift is measured against; None where there is none."""
        return None if self.calibration is None else self.calibration.held_out.epistemic

    @property
    @abstractmethod
    def detector_folder(self) -> Path | None:
        """Where its detector was read from; None if it was not."""

    @cached_property
    def examples(self) -> Examples | None:
        """What is kept of the data beside the detector; None where nothing is."""
        return None if self.detector_folder is None else load_examples(self.detector_folder, self.calibration)

    @abstractmethod
    def set_false_alarm_rate(self, rate: float) -> None:
        """Judges by another rate from now on; needs no data."""


class DetectorSource(Source):
    """A detector in this process, with the preprocessing of its network.

    Attributes:
        detector: The detector.
        folder: Where it was read from; None if it was not.
    """

    def __init__(
        self,
        name: str,
        detector: BaseDetector,
        preprocessing: Preprocessing,
        fingerprint: str,
        description: Mapping[str, Any],
        folder: Path | None = None,
    ):
        super().__init__(name, preprocessing, detector.class_names, fingerprint, description)
        self.detector = detector
        self.folder = folder

    @property
    def detector_folder(self) -> Path | None:
        """The folder."""
        return self.folder

    def judge(self, inputs: Tensor) -> Prediction:
        """Judges a batch that `prepare` made."""
        return self.detector.predict(inputs)

    @property
    def false_alarm_rate(self) -> float | None:
        """As of the detector."""
        return self.detector.false_alarm_rate

    @property
    def entropy_threshold(self) -> float | None:
        """As of the detector."""
        return self.detector.entropy_threshold

    @property
    def calibration(self) -> Calibration | None:
        """As of the detector."""
        return self.detector.calibration

    def set_false_alarm_rate(self, rate: float) -> None:
        """Judges by another rate from now on."""
        self.detector.false_alarm_rate = rate


def open_source(name: FilePath, *, detector: FilePath | None = None) -> Source:
    """Opens whatever judges raw inputs.

    Args:
        name: The folder of a run, of a detector that `ddu fit` wrote around a network of timm or torchvision, or of an
            exported bundle; or, with `detector`, `module:function` as of `ddu.networks.open_network`.
        detector: The folder of a detector that was fitted to this network. The preprocessing is that of the folder if
            `ddu fit` wrote it, and else that of the function.
    """
    path = Path(name)
    refuse_pickles(path)
    if detector is not None:
        if path.is_dir():
            raise InputError(f"{name} is a folder: --detector is for a network, named as module:function.")
        return _around(str(name), Path(detector))
    if not path.is_dir():
        if is_of_library(str(name)):
            raise InputError(
                f"{name} has no weights and no detector: `ddu fit {name} --weights FILE --data DATA --output FOLDER` "
                "makes a folder with both, which is named instead."
            )
        if ":" in str(name):
            raise InputError(f"{name} is a network alone: add the folder of its detector with --detector.")
        raise InputError(f"There is no folder {name}: name a run, a fitted detector or a bundle; or module:function.")
    kind = next((kind for kind in KINDS if (path / kind).is_file()), None)
    if kind is not None:
        return find_function(KINDS[kind])(path)
    if (path / artifacts.FILE).is_file():
        raise InputError(
            f"{name} has a detector alone, and its network is not known: name that as module:function, with --detector "
            f"{name}."
        )
    within = sorted(str(file.parent) for kind in KINDS for file in path.glob(f"*/{kind}"))
    advice = f" Did you mean {' or '.join(within[:3])}?" if within else ""
    raise ArtifactError(f"There is nothing in {name} that judges inputs: it has none of {', '.join(KINDS)}.{advice}")


def open_run(folder: Path) -> DetectorSource:
    """The network of a finished run, and its detector."""
    run = load_run(folder)
    place = folder / "detector"
    description = {
        "kind": "run",
        "network": run.spec.label,
        "data": run.spec.data,
        "digest": run.digest,
        "samples": run.samples,
        "run": run.fingerprint,
        "metrics": dict(run.metrics),
    }
    digits = _digits(place / artifacts.FILE, run.preprocessing)
    return DetectorSource(str(folder), run.detector, run.preprocessing, digits, description, place)


def find_run(name: FilePath) -> Run:
    """The run in a folder, for what only a run can be asked; other sources are refused with what they can be asked."""
    path = Path(name)
    others = {SOURCE: "a detector of `ddu fit`", artifacts.FILE: "a detector alone", _GRAPH: "an exported bundle"}
    found = next((words for file, words in others.items() if (path / file).is_file()), None)
    if found is None and ":" in path.name and not path.exists():
        found = "a network"
    if found is not None:
        raise NotSupportedError(
            f"{name} is {found}, and a run of `ddu train` is needed: it alone knows its test set and how it was "
            f"trained. Ask `ddu report` or `ddu doctor` about {name}, with --data."
        )
    return load_run(path)


def open_fitted(folder: Path) -> DetectorSource:
    """A detector that `ddu fit` wrote, around a network of timm's or torchvision's."""
    content = _read(folder)
    name, options = content["network"]["name"], content["network"]["options"]
    if not is_of_library(name):
        raise NotSupportedError(
            f"{folder} was fitted around your own function {name}, and ddu runs no code that a file names: type "
            f"`{name} --detector {folder}` in place of `{folder}`."
        )
    network = open_network(name, weights=folder / WEIGHTS, options=options)
    return _joined(str(folder), folder, network.model, Preprocessing.from_json(content["preprocessing"]), content)


def _around(name: str, folder: Path) -> DetectorSource:
    """A network that is named, and the detector in a folder."""
    if is_of_library(name):
        raise InputError(f"{name} has its weights beside the detector that `ddu fit` wrote: open {folder} by itself.")
    if (folder / _GRAPH).is_file():
        raise InputError(f"{folder} is an exported bundle, which has its network: open {folder} by itself.")
    if not (folder / artifacts.FILE).is_file():
        raise _no_detector(folder)
    network = open_network(name)
    content = _read(folder) if (folder / SOURCE).is_file() else {"network": {"name": name}, "data": None}
    # What the detector was fitted with goes before what the network would like
    fitted_with = content.get("preprocessing")
    preprocessing = network.preprocessing if fitted_with is None else Preprocessing.from_json(fitted_with)
    if preprocessing is None:
        raise InputError(
            f"How {name} wants to be shown an input is unknown: return (network, preprocessing) from the function, "
            "with a ddu.data.Preprocessing or a transform of torchvision's or timm's, or make the detector with "
            "`ddu fit`."
        )
    source = _joined(name, folder, network.model, preprocessing, content)
    # What the function says of its inputs may be wrong, and what `ddu fit` wrote was tried
    if fitted_with is None:
        one = torch.zeros(1, *preprocessing.shape)
        first_batch(
            LogitsTap(network.model), one, name, way_out="Return the preprocessing with the shape that it takes."
        )
    return source


def _joined(
    name: str, folder: Path, model: Any, preprocessing: Preprocessing, content: Mapping[str, Any]
) -> DetectorSource:
    description = {"kind": "detector", **content, "network": content["network"]["name"]}
    digits = _digits(folder / artifacts.FILE, preprocessing)
    return DetectorSource(name, load(folder, model), preprocessing, digits, description, folder)


def _digits(detector: Path, preprocessing: Preprocessing) -> str:
    """A fingerprint of the detector's file, which has that of its network's weights, and of the preprocessing."""
    try:
        content = detector.read_bytes()
    except OSError as error:
        raise _no_detector(detector.parent) from error
    return fingerprint(hashlib.sha256(content).hexdigest(), preprocessing.to_json())


def _no_detector(folder: Path) -> ArtifactError:
    if not folder.is_dir():
        return ArtifactError(f"There is no folder {folder}: give the folder of a detector.")
    return ArtifactError(f"There is no detector in {folder}: it has no {artifacts.FILE}.")


def _read(folder: Path) -> dict[str, Any]:
    """The content of a source.json."""
    content = read_settings(folder / SOURCE, "detector")
    assert content is not None
    match content:
        case {"network": {"name": str(), "options": dict()}, "preprocessing": dict()}:
            return content
    raise ArtifactError(f"{folder / SOURCE} does not describe a detector of this ddu: fit it again.")
