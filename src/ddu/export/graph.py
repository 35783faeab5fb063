"""A detector as one module of fixed steps: inputs, network, score, calibration, verdict; in ONNX and for torch.export.

    inputs, false_alarm_rate, entropy_threshold
        -> probs, label, aleatoric, epistemic, parts, p_value, candidates, verdict

Images are bytes (batch, height, width, channel) at the size of the network. Whitening and ranks are buffers, so that
there are matrix products, comparisons and sums alone.
"""

import copy
import json
import math
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ddu.calibration import Calibration
from ddu.data import Preprocessing
from ddu.errors import ExportError, InputError, NotFittedError, NotSupportedError
from ddu.features import FeatureBatch, FeatureTap, ModelTap, unwrapped
from ddu.features.forward import arguments
from ddu.layers import bake
from ddu.messages import require
from ddu.types import Prediction, Verdict

VERDICTS = tuple(verdict.value for verdict in Verdict)
"""What the numbers of the output `verdict` mean."""

PIXELS, INPUT = "pixels", "input"
RATE, THRESHOLD = "false_alarm_rate", "entropy_threshold"

_CODES = {verdict: code for code, verdict in enumerate(Verdict)}

# Protocol buffers hold no more
_LARGEST = 2**31 - 1


class Exportable(Protocol):
    """What is needed of a detector."""

    name: ClassVar[str]
    class_names: tuple[str, ...] | None
    calibration: Calibration | None
    classes: tuple[int, ...] | None

    @property
    def model(self) -> nn.Module: ...
    @property
    def tap(self) -> Any: ...
    @property
    def has_density(self) -> bool: ...
    @property
    def part_names(self) -> list[str] | None: ...

    def graph(self) -> nn.Module:
        """Its score as a module of features and logits."""
        ...

    def predict(self, x: Any) -> Prediction:
        """Judges a batch."""
        ...

    def save(self, folder: Any) -> None:
        """Writes what was learned."""
        ...


class Ranks(nn.Module):
    """p-values: where a score stands among held-out ones, of all or of its predicted class.

    Sorted scores are cut into blocks of about √n: how many blocks end below a score says in which block it is, and a
    second count where in it. So a batch needs 2√n comparisons per input instead of n.
    """

    ends: Tensor
    blocks: Tensor
    samples: Tensor
    group: Tensor

    def __init__(self, calibration: Calibration, num_classes: int):
        super().__init__()
        groups = calibration.groups
        size = math.isqrt(max(map(len, groups.values())) - 1) + 1
        table = torch.full((len(groups), size * size), torch.inf, dtype=torch.float64)
        group = torch.zeros(num_classes, dtype=torch.int64)
        for index, (label, scores) in enumerate(groups.items()):
            table[index, : len(scores)] = scores
            if label is not None:
                group[label] = index
        blocks = table.view(len(groups), size, size)
        self.size = size
        # One more where the threshold is conformal: the input itself
        self.extra = int(calibration.threshold == "conformal")
        self.register_buffer("ends", blocks[:, :, -1].contiguous())
        self.register_buffer("blocks", blocks.reshape(-1, size).clone())
        self.register_buffer("samples", torch.tensor([len(scores) for scores in groups.values()]))
        self.register_buffer("group", group)

    def forward(self, epistemic: Tensor, label: Tensor) -> Tensor:
        """The p-values, (batch,), in double precision."""
        score, group = epistemic.double()[:, None], self.group[label]
        block = (self.ends[group] < score).long().sum(1).clamp(max=self.size - 1)
        below = block * self.size + (self.blocks[group * self.size + block] < score).long().sum(1)
        samples = self.samples[group]
        return (samples - below + self.extra).double() / (samples + self.extra).double()


class Graph(nn.Module):
    """All that a calibrated detector does to a batch, as one module that can be exported.

    The network is a copy on the CPU, in single precision and in evaluation mode, with spectral norms folded in.

    Args:
        detector: Fitted and calibrated.
        example: A batch of at least two inputs by name, as `forward` takes them.
        preprocessing: Turns bytes into the network's input; None if the inputs are what the network takes.
        keywords: Whether the network takes its inputs by name.

    Attributes:
        outputs: The names of what it returns.
    """

    def __init__(
        self,
        detector: Exportable,
        example: Mapping[str, Tensor],
        preprocessing: Preprocessing | None = None,
        *,
        keywords: bool = False,
    ):
        super().__init__()
        calibration = detector.calibration
        if calibration is None:
            raise NotFittedError(
                f"This {type(detector).__name__} detector is not calibrated yet, and a graph gives verdicts. Call "
                "calibrate first."
            )
        if calibration.confidence is not None and calibration.per_class:
            raise NotSupportedError(
                "A rate that holds per class and with a confidence is another p-value for each class, and a graph has "
                "one: calibrate with per_class=False or confidence=None."
            )
        self.tap = copy.copy(_checked_tap(detector))
        self.network = bake(copy.deepcopy(unwrapped(detector.model)).cpu().float().eval()).requires_grad_(False)
        self.score = detector.graph()
        self.keywords, self.example = keywords, dict(example)
        self.classes = None if detector.classes is None else list(detector.classes)
        self.temperature, self.candidate_level = calibration.temperature, calibration.candidate_level
        self.has_parts = detector.part_names is not None
        self.is_image = preprocessing is not None and preprocessing.is_image
        for name in ("mean", "std"):
            values = getattr(preprocessing, name) if preprocessing is not None and preprocessing.is_image else ()
            self.register_buffer(name, 255 * torch.tensor(values)[:, None, None])
        with torch.no_grad():
            self.num_classes = self._seen(self.example).logits.shape[1]
        self.ranks = Ranks(calibration, self.num_classes)
        threshold = calibration.entropy_threshold
        self.defaults = {RATE: calibration.p_value_threshold, THRESHOLD: math.inf if threshold is None else threshold}
        names = ["probs", "label", "aleatoric", "epistemic", "parts", "p_value", "candidates", "verdict"]
        absent = {"parts": not self.has_parts, "candidates": self.candidate_level is None}
        self.outputs = [name for name in names if not absent.get(name)]
        self.requires_grad_(False)

    def forward(
        self, inputs: dict[str, Tensor], false_alarm_rate: Tensor, entropy_threshold: Tensor
    ) -> dict[str, Tensor]:
        """Judges a batch.

        Args:
            inputs: By name; the first axis is the batch.
            false_alarm_rate: p-values up to this are out of distribution; a double.
            entropy_threshold: Entropies above this are ambiguous, in distribution; a double.
        """
        batch = self._seen(inputs)
        features, logits = batch.features, batch.logits
        valid = _is_finite(features) & _is_finite(logits)
        (first, *others) = inputs.values()
        if not others and first.is_floating_point():
            valid = valid & _is_finite(first)
        # As for the detector, such rows are zeros until the end, where they are NaN
        features, logits = (torch.where(valid[:, None], value, 0.0) for value in (features, logits))
        terms = self.score(features, logits)
        epistemic = terms.sum(1)
        log_probs = torch.log_softmax(logits / self.temperature, dim=1)
        probs = log_probs.exp()
        aleatoric = -(probs * log_probs).sum(1)
        label = probs.argmax(1)
        p_value = self.ranks(epistemic, label)
        ambiguous = (aleatoric.double() > entropy_threshold).long()
        verdict = torch.where(p_value <= false_alarm_rate, _CODES[Verdict.OUT_OF_DISTRIBUTION], ambiguous)
        found = {
            "probs": torch.where(valid[:, None], probs, torch.nan),
            "label": torch.where(valid, label, -1),
            "aleatoric": torch.where(valid, aleatoric, torch.nan),
            "epistemic": torch.where(valid, epistemic, torch.nan),
            "parts": torch.where(valid[:, None], terms, torch.nan),
            "p_value": torch.where(valid, p_value, torch.nan),
            "verdict": torch.where(valid, verdict, _CODES[Verdict.INVALID]),
        }
        if self.candidate_level is not None:
            likeliest = torch.arange(self.num_classes) == label[:, None]
            found["candidates"] = ((probs.double() >= self.candidate_level) | likeliest) & valid[:, None]
        return {name: found[name] for name in self.outputs}

    def _seen(self, inputs: Mapping[str, Tensor]) -> FeatureBatch:
        """Features of a batch, and the logits of the classes that are kept."""
        batch = self._passed(inputs)
        return batch if self.classes is None else batch._replace(logits=batch.logits[:, self.classes])

    def _passed(self, inputs: Mapping[str, Tensor]) -> FeatureBatch:
        if self.is_image:
            (pixels,) = inputs.values()
            mean, std = self.get_buffer("mean"), self.get_buffer("std")
            return self.tap.traced(self.network, (pixels.permute(0, 3, 1, 2).float() - mean) / std)
        if self.keywords:
            return self.tap.traced(self.network, **inputs)
        return self.tap.traced(self.network, *inputs.values())

    def program(self) -> torch.export.ExportedProgram:
        """The graph as `torch.export` has it, for batches of any size, and where the network allows, any length."""
        batch = torch.export.Dim("batch")
        shapes: dict[str, Any] = {name: {0: batch} for name in self.example}
        if all(_is_text(value) for value in self.example.values()):
            shapes = {name: {0: batch, 1: torch.export.Dim.AUTO} for name in self.example}
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            try:
                program = torch.export.export(
                    self.eval(),
                    (self.example, *(torch.tensor(self.defaults[name], dtype=torch.float64) for name in _THRESHOLDS)),
                    dynamic_shapes=(shapes, None, None),
                    strict=False,
                )
            except Exception as error:  # whatever torch finds in a network that it cannot follow
                raise ExportError(_cannot(self.network, "torch.export", error)) from error
        for node in program.graph.nodes:  # the names of files of this machine
            node.meta.pop("stack_trace", None)
        return program

    def onnx(self, program: torch.export.ExportedProgram, metadata: Mapping[str, Any]) -> bytes:
        """The same as ONNX, with thresholds that need not be given, and the metadata as JSON by name."""
        for module in ("onnx", "onnxscript"):
            require(module, extra="export", purpose="Exporting to ONNX")
        import onnx

        with warnings.catch_warnings(action="ignore"):
            try:
                found = torch.onnx.export(
                    program,
                    input_names=[*self.example, *_THRESHOLDS],
                    output_names=self.outputs,
                    dynamo=True,
                    verbose=False,
                )
            except Exception as error:
                raise ExportError(_cannot(self.network, "torch.onnx", error)) from error
        assert found is not None
        model = found.model_proto
        # An input that has an initializer of the same name need not be given
        for name in _THRESHOLDS:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(self.defaults[name]), name))
        _name_batch(model.graph)
        for node in model.graph.node:  # where in PyTorch it comes from
            del node.metadata_props[:]
            node.doc_string = ""
        for key, value in metadata.items():
            model.metadata_props.add(key=key, value=json.dumps(value))
        if model.ByteSize() > _LARGEST:
            raise ExportError(
                f"The graph has {model.ByteSize() / 1e9:.1f} GB, and an ONNX file holds 2 GB: fit with "
                "density={'covariance': 'shared'} or 'low_rank'."
            )
        onnx.checker.check_model(model)
        return model.SerializeToString()


_THRESHOLDS = (RATE, THRESHOLD)


def named_inputs(detector: Exportable, inputs: Any) -> tuple[dict[str, Tensor], bool]:
    """Inputs as `predict` takes them by name, on the CPU, and whether the network takes them by these names."""
    args, keywords = arguments(unwrapped(detector.model), inputs)
    if keywords:
        values = keywords
    elif isinstance(inputs, Mapping):
        values = dict(zip(inputs, args, strict=True))
    else:
        names = [INPUT] if len(args) == 1 else [f"{INPUT}_{index}" for index in range(len(args))]
        values = dict(zip(names, args, strict=True))
    for name, value in values.items():
        if not isinstance(value, Tensor) or not value.ndim:
            raise InputError(f"An exported graph takes tensors, and the input {name!r} is a {type(value).__name__}.")
    as_given = {
        name: value.cpu().float() if value.is_floating_point() else value.cpu() for name, value in values.items()
    }
    return as_given, bool(keywords)


def _checked_tap(detector: Exportable) -> ModelTap:
    tap = detector.tap
    if not isinstance(tap, ModelTap):
        raise NotSupportedError(f"{type(detector).__name__} runs several networks, and a graph has one.")
    if any(isinstance(one, FeatureTap) and one.found.kind == "callable" for one in tap.taps):
        raise NotSupportedError(
            "The features come from a callable, which cannot be followed: name a layer instead, features='...'."
        )
    return tap


def _is_finite(values: Tensor) -> Tensor:
    """Which rows have neither NaN nor infinity, (batch,); NaN is below nothing."""
    return (values.abs() <= torch.finfo(values.dtype).max).flatten(1).all(1)


def _is_text(value: Tensor) -> bool:
    return not value.is_floating_point() and value.ndim == 2


def _name_batch(graph: Any) -> None:
    """Calls the first axis of inputs and outputs "batch"."""
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == symbol:
                dim.dim_param = "batch"


def _cannot(network: nn.Module, tool: str, error: Exception) -> str:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"The {type(network).__name__} cannot be exported: {tool} says {reason!r}. Nothing was written."
