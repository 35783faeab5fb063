"""The pairs of a network and training data, and the detectors, of the quality protocol."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ddu.detectors import BaseDetector, find_method, from_pytorch_ood, list_pytorch_ood
from ddu.errors import DDUError
from ddu.experiments.pretrained import HeadSpec
from ddu.experiments.training_pool import NETWORKS
from ddu.runs import RunSpec
from ddu.training import Recipe

DEFAULT = "ddu"
"""The detector that is judged."""

WITHOUT_ENERGY = "ddu without energy"
"""The same without the part that is no density: what the energy adds, or, on a poor classifier, takes away."""

UNCORRUPTED = "cifar10_c:none:0"
"""The images that are corrupted, as they are: what the accuracy under corruptions is compared with."""

Half = Literal["choose", "confirm"]
Kind = Literal["near", "far", "degenerate"]

_PHOTOS = ("cifar10", "cifar100", "tiny_imagenet")
_IMAGES = ("mnist", "fashion_mnist", "svhn", *_PHOTOS)
FOUND_ALWAYS = ("flat", "black", "white", "noise")
DEGENERATE = (*FOUND_ALWAYS, "shuffled_patches", "inverted", "repeated_row")

_THEIRS = "pytorch-ood "


def ood_kinds(known: str) -> dict[str, Kind]:
    """The OoD sets of a network by the data that it was trained on: every other one, and degenerate images.

    Photographs are near to photographs of other things, and queries out of scope to those in it. All else is far.

    >>> [name for name, kind in ood_kinds("cifar10").items() if kind == "near"]
    ['cifar100', 'tiny_imagenet']
    """
    if known == "clinc150":
        return {"clinc150_oos": "near"}
    own = "svhn" if known == "svhn_6k" else known
    near = _PHOTOS if own in _PHOTOS else ()
    kinds: dict[str, Kind] = {name: "near" if name in near else "far" for name in _IMAGES if name != own}
    degenerate: dict[str, Kind] = dict.fromkeys(DEGENERATE, "degenerate")
    return kinds | degenerate


@dataclass(frozen=True)
class Candidate:
    """A detector of the protocol.

    Attributes:
        name: What rows call it.
        method: A registered method, or "pytorch-ood NAME".
        options: Of the detector.
    """

    name: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_theirs(self) -> bool:
        """Whether it is a detector of pytorch-ood."""
        return self.method.startswith(_THEIRS)

    def make(self, model: nn.Module) -> BaseDetector:
        """The detector around a network."""
        if self.is_theirs:
            return from_pytorch_ood(self.method.removeprefix(_THEIRS), model, **self.options)
        return find_method(self.method).make(model, **self.options)


OURS = (
    Candidate(DEFAULT, "ddu"),
    Candidate(WITHOUT_ENERGY, "ddu", {"energy": False}),
    Candidate("ddu_paper", "ddu_paper"),
    *(Candidate(name, name) for name in ("softmax", "energy", "mahalanobis", "relative_mahalanobis")),
)


@cache
def theirs() -> tuple[tuple[Candidate, ...], dict[str, str]]:
    """The detectors of pytorch-ood that score what one forward pass gives; and the others, with the reason."""
    candidates, reasons = list[Candidate](), dict[str, str]()
    for name in list_pytorch_ood():
        candidate = Candidate(f"{_THEIRS}{name}", f"{_THEIRS}{name}")
        try:
            runs_itself = candidate.make(nn.Sequential(nn.Linear(2, 2))).needs_inputs
        except DDUError as error:
            reasons[name] = str(error)
            continue
        if runs_itself:
            reasons[name] = f"{name} runs the network itself, several times or with gradients."
        else:
            candidates.append(candidate)
    return tuple(candidates), reasons


@dataclass(frozen=True)
class Pair:
    """A network and its training data.

    Attributes:
        name: What its files are called.
        half: Whether the default may be chosen by it, or is only confirmed on it.
        network: How the network is trained, or what gets a new head; the seed is replaced by each of `seeds`.
        seeds: The network is trained once per seed.
        limit: The most inputs of the test set and of every OoD set that are asked about.
        corrupted: How many test images are shown under every corruption of CIFAR-10-C.
        ood: The OoD sets, and of which kind each is; None for those of `ood_kinds`.
    """

    name: str
    half: Half
    network: RunSpec | HeadSpec
    seeds: tuple[int, ...] = (0, 1, 2)
    limit: int = 2000
    corrupted: int = 0
    ood: Mapping[str, Kind] | None = None

    @property
    def data(self) -> str:
        """The training data."""
        return self.network.data

    def spec(self, seed: int) -> RunSpec | HeadSpec:
        """How the network of a seed is trained."""
        return replace(self.network, seed=seed)

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """The OoD sets, and of which kind each is."""
        return ood_kinds(self.data) if self.ood is None else self.ood

    def sets(self, kind: Kind) -> list[str]:
        """The OoD sets of a kind."""
        return [name for name, one in self.kinds.items() if one == kind]

    def folder(self, root: Path, seed: int) -> Path:
        """Where the network of a seed is kept."""
        return root / NETWORKS / f"{self.name}-seed{seed}"


_SHORT = Recipe(epochs=4, lr=0.1, schedule="one_cycle")
_FEW = replace(_SHORT, epochs=10, batch_size=64)  # 4,050 or 5,400 images an epoch
_PLAIN = {"spectral_norm": None, "sensitive": False}


def _run(model: str, data: str, recipe: Recipe, limit: int | None = 20_000, **options: Any) -> RunSpec:
    return RunSpec(model, data, recipe, method=None, limit=limit, options=options)


PAIRS = (
    Pair(
        "resnet18-sn-cifar10",
        "choose",
        _run("resnet18", "cifar10", replace(_SHORT, epochs=12, augmentation="crop_flip"), width=0.25),
        seeds=(0,),
        corrupted=500,
    ),
    Pair("vgg16-fashion", "choose", _run("vgg16", "fashion_mnist", replace(_SHORT, lr=0.05), width=0.25, **_PLAIN)),
    Pair("densenet-svhn", "choose", _run("densenet121", "svhn_6k", _FEW, None, width=0.125, **_PLAIN)),
    Pair("efficientnet-cifar100", "choose", HeadSpec("efficientnet_lite0", "cifar100", limit=8500), (0,), 1000),
    Pair("resnet18-mnist", "confirm", _run("resnet18", "mnist", replace(_SHORT, epochs=3), width=0.25, **_PLAIN)),
    Pair("wrn-sn-fashion", "confirm", _run("wide_resnet16_2", "fashion_mnist", _FEW, 6000)),
    Pair("resnet18-sn-svhn", "confirm", _run("resnet18", "svhn_6k", _FEW, None, width=0.25)),
    Pair("mobilenet-cifar10", "confirm", HeadSpec("mobilenet_v2", "cifar10", limit=6000), (0,), 1000),
    Pair("minilm-clinc150", "confirm", HeadSpec("minilm", "clinc150"), (0,)),
)
"""The default is chosen on the first half, and confirmed on the second."""
