"""The specification of a run: everything that decides its result."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Self

import torch

from ddu.data import DataInfo
from ddu.errors import InputError
from ddu.models import Classifier, create_model, takes_images
from ddu.provenance import fingerprint
from ddu.training import RECIPES, Recipe


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides the result of a run, but for the samples.

    Attributes:
        model: A name of `ddu.list_models()`.
        data: A name of `ddu.data.list_data()`.
        recipe: How to train.
        method: The registered method whose detector is fitted; None trains the network alone.
        seed: Decides the split, the initial weights and the training.
        limit: Use at most this many samples of the training split, drawn at random in whole groups; None uses all.
            About `recipe.validation_share` of them are held out, and the rest is trained on.
        false_alarm_rate: The rate that the detector is calibrated for.
        options: For `create_model`; they win over those of the recipe.
        split_seed: Decides the split instead of the seed: members of an ensemble share the held-out samples.
        skip_bad: Leave out images that cannot be read; see `ddu.data.load`.
    """

    model: str
    data: str
    recipe: Recipe
    method: str | None = "ddu"
    seed: int = 0
    limit: int | None = None
    false_alarm_rate: float = 0.01
    options: Mapping[str, Any] = field(default_factory=dict)
    split_seed: int | None = None
    skip_bad: bool = False

    def to_json(self) -> dict[str, Any]:
        """The specification as JSON has it."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        known: dict[str, Any] = {one.name: content[one.name] for one in fields(cls) if one.name in content}
        recipe = known["recipe"]
        known["recipe"] = Recipe(**(recipe | {"milestones": tuple(recipe["milestones"])}))
        return cls(**known)

    def fingerprint(self, digest: str) -> str:
        """Twelve digits that runs share only if nothing that decides their results differs, but for the seed.

        Args:
            digest: Of the samples and labels.
        """
        decisive = self.to_json()
        del decisive["seed"]  # has a column of its own in a row
        if self.split_seed in (None, self.seed):
            del decisive["split_seed"]
        return fingerprint(decisive, digest)

    @property
    def label(self) -> str:
        """The network as rows call it."""
        return network_label(self.model, {**self.recipe.model, **self.options})

    @property
    def head(self) -> str:
        """The head of the network."""
        return {**self.recipe.model, **self.options}.get("head", "linear")

    def make_model(self, info: DataInfo) -> Classifier:
        """The network with its initial weights, which depend on the seed alone."""
        if takes_images(self.model) and not info.is_image:
            raise InputError(
                f"{self.model} takes images, and an input of {self.data} has {info.shape[0]} numbers: choose a network "
                "for vectors, such as resffn4_128."
            )
        if not takes_images(self.model) and info.is_image:
            raise InputError(
                f"{self.model} takes vectors, and {self.data} has images: choose a network such as resnet18."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return create_model(self.model, **{**input_options(info), **self.recipe.model, **self.options})

    def reductions(self, samples: int) -> str | None:
        """How the run is smaller than the paper's on the same data, in words.

        Args:
            samples: The number of samples that are trained on or held out.

        Returns:
            None if nothing is reduced, or the paper has no run on this data.

        >>> RunSpec("resnet18", "mnist", RECIPES["mnist"].with_changes(epochs=1)).reductions(1000)
        'samples 60,000 -> 1,000; epochs 50 -> 1'
        """
        paper = PAPER_SETUPS.get(self.data)
        if paper is None:
            return None
        width = {**self.recipe.model, **self.options}.get("width", 1.0)
        recipes = [RECIPES[name] for name in paper.recipes]
        published = next((one for one in recipes if one.model.get("head", "linear") == self.head), recipes[0])
        pairs = [
            ("samples", paper.samples, samples),
            ("width", 1, width),
            ("epochs", published.epochs, self.recipe.epochs),
            ("samples per epoch", samples, self.recipe.samples_per_epoch or samples),
        ]
        return "; ".join(f"{name} {was:,} -> {now:,}" for name, was, now in pairs if now < was) or None


class PaperSetup(NamedTuple):
    """How much the paper trains on a data set: the number of samples, and its recipe before those of its rivals."""

    samples: int
    recipes: tuple[str, ...]


PAPER_SETUPS = {
    "mnist": PaperSetup(60_000, ("mnist",)),
    "dirty_mnist": PaperSetup(120_000, ("mnist",)),
    "cifar10": PaperSetup(50_000, ("cifar", "duq_cifar", "sngp_cifar")),
    "cifar100": PaperSetup(50_000, ("cifar", "duq_cifar", "sngp_cifar")),
    "imagenet": PaperSetup(1_281_167, ("imagenet",)),
    "two_moons": PaperSetup(2_000, ("two_moons", "duq_two_moons", "sngp_two_moons")),
}


def network_label(model: str, options: Mapping[str, Any]) -> str:
    """A network as rows call it: its architecture, its width, and what keeps it smooth and sensitive.

    >>> network_label("resnet18", {"width": 0.25})
    'resnet18 x0.25+sn'
    >>> network_label("resnet18", {"spectral_norm": None, "sensitive": False})
    'resnet18'
    """
    given = {"width": 1.0, "spectral_norm": 3.0, "sensitive": True, "head": "linear", **options}
    width = "" if given["width"] == 1 else f" x{given['width']:g}"
    smooth, sensitive = given["spectral_norm"] is not None, given["sensitive"]
    # In the paper the two go together where the head is linear; a label says where they do not
    usual = given["head"] != "linear" or smooth == sensitive
    alone = "" if usual else " (sensitive)" if sensitive else " (not sensitive)"
    return f"{model}{width}{'+sn' if smooth else ''}{alone}"


def input_options(info: DataInfo) -> dict[str, Any]:
    """The options of `create_model` that follow from the data."""
    if info.is_image:
        channels, height, width = info.shape
        return {"num_classes": info.num_classes, "in_channels": channels, "input_size": (height, width)}
    return {"num_classes": info.num_classes, "in_features": info.shape[0]}
