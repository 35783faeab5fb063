"""The folder of an exported detector.

model.onnx         the graph, which needs neither ddu nor torch
model.pt2          the same graph for torch.export.load
bundle.json        what the graph takes and gives, rates and thresholds, how well it agrees, checksums
detector/          the detector, for ddu.load with the network
model.safetensors  the weights of the network
README.md          the model card
"""

import hashlib
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from ddu.artifacts import model_fingerprint
from ddu.data import Preprocessing
from ddu.errors import InputError
from ddu.export.card import make_card
from ddu.export.graph import INPUT, PIXELS, RATE, THRESHOLD, VERDICTS, Exportable, Graph, named_inputs
from ddu.export.parity import Parity, check
from ddu.export.probes import Batch, make_probes, smooth_images
from ddu.features import unwrapped
from ddu.files import FilePath, refuse_existing, whole_folder
from ddu.messages import require
from ddu.provenance import versions
from ddu.types import Prediction

GRAPH, PROGRAM, BUNDLE, DETECTOR, WEIGHTS, CARD = (
    "model.onnx",
    "model.pt2",
    "bundle.json",
    "detector",
    "model.safetensors",
    "README.md",
)
FORMAT, FORMAT_VERSION = "ddu-bundle", 1

_EXAMPLES = 4


def export(
    detector: Exportable,
    folder: FilePath,
    inputs: Any = None,
    *,
    preprocessing: Preprocessing | None = None,
    description: Mapping[str, Any] | None = None,
) -> dict[str, Parity]:
    """Writes a calibrated detector as a graph that needs neither ddu nor torch, checked against PyTorch first.

    Args:
        detector: Fitted and calibrated.
        folder: A new or empty folder. It appears whole, or not at all.
        inputs: At least two inputs on which the graph is checked, held-out ones if you can: a batch as `predict` takes
            it, or with a preprocessing raw images or vectors as that takes them. With a preprocessing they may be
            left out.
        preprocessing: How raw inputs become the network's: of images it becomes part of the graph, which takes bytes
            (batch, height, width, channel) at the network's size. None is a graph that takes what `predict` takes.
        description: What the model card says of the network and its data, as JSON: `network`, `data`, `metrics`.

    Returns:
        How well the graph agrees with PyTorch, by kind of inputs.

    Raises:
        ExportError: The network cannot be exported, or the graph disagrees. Nothing is written then.
    """
    refuse_existing(Path(folder))
    given, keywords = _given(detector, inputs, preprocessing)
    example = _example(given, preprocessing)
    graph = Graph(detector, example, preprocessing, keywords=keywords)
    content = _content(detector, graph, preprocessing, description)
    program = graph.program()
    data = graph.onnx(program, {name: content[name] for name in _METADATA})
    session = open_session(data)

    def run(batch: Batch) -> dict[str, np.ndarray]:
        return dict(zip(graph.outputs, session.run(graph.outputs, batch), strict=True))

    def judge(batch: Batch) -> Prediction:
        if graph.is_image:
            assert preprocessing is not None
            return detector.predict(preprocessing.of_arrays(batch[PIXELS]))
        tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
        return detector.predict(
            tensors if keywords else next(iter(tensors.values())) if len(tensors) == 1 else tuple(tensors.values())
        )

    arrays = None if given is None else {name: value.numpy() for name, value in given.items()}
    probes = make_probes({name: value.numpy() for name, value in example.items()}, arrays)
    assert detector.calibration is not None
    parity = check(run, judge, probes, detector.calibration)
    content["parity"] = {kind: one.to_json() for kind, one in parity.items()}

    with whole_folder(Path(folder)) as new:
        (new / GRAPH).write_bytes(data)
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        (new / PROGRAM).write_bytes(buffer.getvalue())
        weights = {name: value.cpu().contiguous() for name, value in unwrapped(detector.model).state_dict().items()}
        (new / WEIGHTS).write_bytes(safetensors.torch.save({name: value.clone() for name, value in weights.items()}))
        detector.save(new / DETECTOR)
        (new / CARD).write_text(make_card(content), encoding="utf-8")
        content["files"] = {name: file_digest(new / name) for name in (GRAPH, PROGRAM, WEIGHTS)}
        (new / BUNDLE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return parity


# What of bundle.json the graph itself has
_METADATA = (
    "class_names",
    "verdicts",
    "parts",
    "preprocessing",
    "false_alarm_rate",
    "entropy_threshold",
    "temperature",
    "calibration",
    "detector",
    "fingerprint",
    "versions",
)


def open_session(graph: bytes | str, threads: int | None = None) -> Any:
    """A session of onnxruntime on the CPU, for a graph or the name of its file."""
    runtime = require("onnxruntime", extra="export", purpose="Running an exported detector")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # it warns of thresholds that can be overridden
    options.intra_op_num_threads = threads or 0
    return runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _given(
    detector: Exportable, inputs: Any, preprocessing: Preprocessing | None
) -> tuple[dict[str, Tensor] | None, bool]:
    """The user's inputs by name, as the graph takes them."""
    if inputs is None:
        if preprocessing is None:
            raise InputError("A graph has the shape of its inputs: give some, detector.export(folder, inputs).")
        return None, False
    if preprocessing is not None and preprocessing.is_image:
        return {PIXELS: torch.from_numpy(preprocessing.to_bytes(inputs))}, False
    if preprocessing is not None:
        return {INPUT: preprocessing(inputs)}, False
    named, keywords = named_inputs(detector, inputs)
    rows = {name: len(value) for name, value in named.items()}
    if len(set(rows.values())) != 1 or min(rows.values()) < 2:
        counted = ", ".join(f"{count} of {name!r}" for name, count in rows.items())
        raise InputError(f"An export needs at least 2 inputs, the same number of each. Got {counted}.")
    return named, keywords


def _example(given: dict[str, Tensor] | None, preprocessing: Preprocessing | None) -> dict[str, Tensor]:
    """A few inputs to follow the network with."""
    if given is not None and len(next(iter(given.values()))) > 1:
        return {name: value[:_EXAMPLES].clone() for name, value in given.items()}
    assert preprocessing is not None
    random = np.random.default_rng(0)
    if not preprocessing.is_image:
        return {INPUT: torch.from_numpy(random.standard_normal((_EXAMPLES, *preprocessing.shape)).astype(np.float32))}
    channels, *size = preprocessing.shape
    return {PIXELS: torch.from_numpy(smooth_images(_EXAMPLES, (*size, channels), random))}


def _content(
    detector: Exportable, graph: Graph, preprocessing: Preprocessing | None, description: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What bundle.json says."""
    calibration = detector.calibration
    assert calibration is not None
    threshold = graph.defaults[THRESHOLD]
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "detector": detector.name,
        "network": type(unwrapped(detector.model)).__name__,
        "fingerprint": model_fingerprint(detector.model),
        "versions": versions("onnx", "onnxscript", "onnxruntime"),
        "inputs": {
            name: {"dtype": str(value.dtype).removeprefix("torch."), "shape": ["batch", *value.shape[1:]]}
            for name, value in graph.example.items()
        },
        "outputs": graph.outputs,
        "preprocessing": None if preprocessing is None else preprocessing.to_json(),
        "num_classes": graph.num_classes,
        "class_names": detector.class_names,
        "verdicts": list(VERDICTS),
        "parts": detector.part_names,
        "is_log_density": detector.has_density,
        RATE: graph.defaults[RATE],
        THRESHOLD: None if math.isinf(threshold) else threshold,
        "temperature": calibration.temperature,
        "least_p_value": calibration.least_p_value,
        "calibration": calibration.settings() | {"held_out": len(calibration.held_out)},
        "description": dict(description or {}),
    }
