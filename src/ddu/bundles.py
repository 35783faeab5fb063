"""An exported detector, opened: onnxruntime runs its graph, and no network code is needed.

bundle = Bundle("bundle/")
bundle.predict("digit.png")
bundle.push_to_hub("me/digits")
bundle = from_hub("me/digits")
"""

import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from ddu import provenance
from ddu.artifacts import load_artifact
from ddu.calibration import Calibration
from ddu.conformal import check_share
from ddu.data import Preprocessing
from ddu.detectors import BaseDetector, load
from ddu.detectors.saved import KEPT
from ddu.errors import ArtifactError, InputError, MissingExtraError, NotSupportedError
from ddu.export import BUNDLE, DETECTOR, FORMAT_VERSION, GRAPH, WEIGHTS, file_digest, open_session
from ddu.files import FilePath
from ddu.messages import require
from ddu.sources import Source
from ddu.types import Prediction, Verdict

# Inputs per run of the graph
_BATCH = 64


class Bundle(Source):
    """A folder that `ddu export` or `detector.export` wrote; its graph judges raw inputs.

    Args:
        folder: The folder.
        threads: Threads of one run; by default as many as there are cores.

    Attributes:
        folder: The folder.
        content: What bundle.json says.
    """

    def __init__(self, folder: FilePath, *, threads: int | None = None):
        self.folder = Path(folder)
        self.content = _read(self.folder)
        try:
            self._session = open_session(str(self.folder / GRAPH), threads)
        except MissingExtraError:
            raise
        except Exception as error:  # of no public type
            raise ArtifactError(f"onnxruntime cannot read {self.folder / GRAPH}: {error}") from error
        self._entropy_threshold: float | None = self.content["entropy_threshold"]
        self._rate: float = self.content["false_alarm_rate"]
        self._parts: list[str] | None = self.content["parts"]
        names, preprocessing = self.content["class_names"], self.content["preprocessing"]
        super().__init__(
            str(folder),
            # None where the graph takes what the network takes: `predict` then takes that as well
            preprocessing and Preprocessing.from_json(preprocessing),
            None if names is None else tuple(names),
            provenance.fingerprint(self.content["files"][GRAPH]),
            {"network": self.content["network"], "data": None, **self.content["description"], "kind": "bundle"},
        )

    def prepare(self, raw: Any) -> Any:
        """Reads and decodes raw images to bytes at the network's size; what the network takes stays as it is."""
        if self.preprocessing is None:
            return raw
        return (
            torch.from_numpy(self.preprocessing.to_bytes(raw))
            if self.preprocessing.is_image
            else self.preprocessing(raw)
        )

    def judge(self, inputs: Any) -> Prediction:
        """Judges a batch that `prepare` made: a tensor or array, or a mapping or tuple of them."""
        batch = self._named(inputs)
        count = len(next(iter(batch.values())))
        if not count:
            raise InputError("There are no inputs: the batch is empty.")
        parts = ({name: values[i : i + _BATCH] for name, values in batch.items()} for i in range(0, count, _BATCH))
        return Prediction.join([self._judge(part) for part in parts])

    @property
    def false_alarm_rate(self) -> float:
        """p-values up to this are out of distribution."""
        return self._rate

    @property
    def entropy_threshold(self) -> float | None:
        """Entropy above which an input in distribution is ambiguous; None calls nothing ambiguous. Can be set."""
        return self._entropy_threshold

    @entropy_threshold.setter
    def entropy_threshold(self, threshold: float | None) -> None:
        self._entropy_threshold = threshold

    @property
    def calibration(self) -> Calibration | None:
        """What the detector beside the graph knows from held-out data, at the rate that is set; None if it is gone."""
        exported = self._exported
        if exported is None or self._rate == self.content["false_alarm_rate"]:
            return exported
        return replace(exported, false_alarm_rate=self._rate, confidence=None, error_rate=None)

    @cached_property
    def _exported(self) -> Calibration | None:
        if not self.detector_folder.is_dir():
            return None
        content, tensors = load_artifact(self.detector_folder)
        kept = {name.removeprefix(KEPT): tensor for name, tensor in tensors.items() if name.startswith(KEPT)}
        return Calibration.restore(content["calibration"], kept)

    @property
    def detector_folder(self) -> Path:
        """The detector beside the graph, and the examples of `ddu export --with-examples`."""
        return self.folder / DETECTOR

    def set_false_alarm_rate(self, rate: float) -> None:
        """Judges by another rate from now on."""
        check_share("false-alarm rate", rate)
        least = self.content["least_p_value"]
        if rate < least:
            raise InputError(
                f"The smallest p-value of this bundle is {least:.4g}, so that a false-alarm rate of {rate:g} would "
                "flag nothing: calibrate on more held-out inputs, or ask for more."
            )
        self._rate = float(rate)

    def load_detector(self, model: nn.Module) -> BaseDetector:
        """The detector itself, around a network of the class that was exported, which is given its weights."""
        model.load_state_dict(safetensors.torch.load_file(self.folder / WEIGHTS))
        return load(self.folder / DETECTOR, model.eval())

    def push_to_hub(self, name: str, *, private: bool = False, message: str = "Upload a ddu bundle") -> str:
        """Uploads the folder to a repository of the Hugging Face Hub, which is made if need be.

        Args:
            name: Of the repository, user/name.
            private: Whether a new repository is private.
            message: Of the commit.

        Returns:
            The address of the commit.
        """
        hub = require("huggingface_hub", extra="export", purpose="The Hugging Face Hub").HfApi()
        hub.create_repo(name, private=private, exist_ok=True)
        return hub.upload_folder(repo_id=name, folder_path=self.folder, commit_message=message).commit_url

    def _named(self, inputs: Any) -> dict[str, np.ndarray]:
        """Inputs by name, in the type that the graph takes."""
        wanted: dict[str, Any] = self.content["inputs"]
        if isinstance(inputs, dict):
            found = inputs
        else:
            values = inputs if isinstance(inputs, tuple) else (inputs,)
            found = dict(zip(wanted, values, strict=False))
        if set(found) != set(wanted) or not all(isinstance(value, Tensor | np.ndarray) for value in found.values()):
            raise InputError(
                f"This bundle takes {', '.join(wanted)}, arrays or tensors. Got {', '.join(map(str, found))}."
            )
        arrays = {name: _as_array(found[name], one["dtype"]) for name, one in wanted.items()}
        for name, array in arrays.items():
            shape = wanted[name]["shape"]
            if array.ndim != len(shape):
                raise InputError(f"The input {name!r} must have the shape {tuple(shape)}. Got {array.shape} instead.")
        return arrays

    def _judge(self, batch: dict[str, np.ndarray]) -> Prediction:
        thresholds = {"false_alarm_rate": self._rate, "entropy_threshold": self.entropy_threshold}
        given = {name: np.array(np.inf if one is None else one, np.float64) for name, one in thresholds.items()}
        outputs = self.content["outputs"]
        try:
            found = self._session.run(outputs, batch | given)
        except Exception as error:
            raise InputError(f"{self.folder / GRAPH} does not take these inputs: {error}") from error
        tensors: dict[str, Any] = {name: torch.from_numpy(values) for name, values in zip(outputs, found, strict=True)}
        codes, parts = tensors.pop("verdict").numpy(), tensors.pop("parts", None)
        prediction = Prediction(
            **tensors,
            log_density=-tensors["epistemic"] if self.content["is_log_density"] else None,
            parts=None if parts is None else dict(zip(self._parts or (), parts.T, strict=True)),
            verdict=np.array([Verdict(one) for one in self.content["verdicts"]], dtype=object)[codes],
            class_names=self.class_names,
            least_p_value=self.content["least_p_value"],
        )
        bad = np.asarray(prediction.verdict) == Verdict.INVALID
        if not bad.any():
            return prediction
        (first, *others) = batch.values()
        given_bad = (
            ~np.isfinite(first.reshape(len(first), -1)).all(1) if not others and first.dtype.kind == "f" else ~bad
        )
        reason = np.where(given_bad, "it has NaN or infinity", "its features or logits are NaN or infinite")
        return prediction.with_invalid(np.where(bad, reason, "").astype(object))


def open_bundle(folder: FilePath) -> Bundle:
    """A bundle as a source of `ddu.sources`, which takes raw inputs."""
    bundle = Bundle(folder)
    if bundle.preprocessing is None:
        wanted = ", ".join(bundle.content["inputs"])
        raise NotSupportedError(
            f"The graph in {folder} takes {wanted} as the network does, and no raw inputs: use "
            "ddu.bundles.Bundle(folder).predict, or export it with a preprocessing."
        )
    return bundle


def from_hub(name: str, *, revision: str | None = None, threads: int | None = None) -> Bundle:
    """A bundle from a repository of the Hugging Face Hub, which is downloaded to the hub's cache.

    Args:
        name: Of the repository, user/name.
        revision: A branch, tag or commit.
        threads: As of `Bundle`.
    """
    hub = require("huggingface_hub", extra="export", purpose="The Hugging Face Hub")
    return Bundle(hub.snapshot_download(name, revision=revision), threads=threads)


def _read(folder: Path) -> dict[str, Any]:
    """What bundle.json says, once the graph is known to be the one that it describes."""
    try:
        content = json.loads((folder / BUNDLE).read_text(encoding="utf-8"))
        digest = file_digest(folder / GRAPH)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(f"There is no exported detector in {folder}: `ddu export` writes one. ({error})") from error
    except ValueError as error:
        raise ArtifactError(f"{folder / BUNDLE} is damaged ({error}): copy it again, or export again.") from error
    match content:
        case {"format": "ddu-bundle", "format_version": int(version)}:
            pass
        case _:
            raise ArtifactError(f"{folder / BUNDLE} does not describe an exported detector.")
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"{folder / BUNDLE} has format version {version}, and this ddu reads {FORMAT_VERSION}: export again, or "
            "install the ddu that wrote it."
        )
    missing = [name for name in _ENTRIES if name not in content]
    if missing:
        raise ArtifactError(f"{folder / BUNDLE} has no {', '.join(missing)}: export again.")
    if content["files"].get(GRAPH) != digest:
        raise ArtifactError(
            f"{folder / GRAPH} is not the graph that {BUNDLE} describes: its checksum differs. Copy both again, or "
            "export again."
        )
    return content


_ENTRIES = (
    "class_names",
    "description",
    "entropy_threshold",
    "false_alarm_rate",
    "files",
    "inputs",
    "is_log_density",
    "least_p_value",
    "network",
    "outputs",
    "parts",
    "preprocessing",
    "verdicts",
)


def _as_array(value: Tensor | np.ndarray, dtype: str) -> np.ndarray:
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
    if np.dtype(dtype).kind in "iu" and array.dtype.kind == "f":
        raise InputError(f"This bundle takes {dtype}. Got {array.dtype} instead: convert the inputs first.")
    return np.ascontiguousarray(array, dtype=dtype)
