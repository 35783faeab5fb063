"""The paper's protocols of active learning: the pool, the number of labels, the network, and the samples of a seed.

Different from the paper's public code, as the authors of the data set advise: the initial and the validation samples
are clean, even where the pool is not, and the initial samples have equally many of each class. The paper does not say
how networks are trained on CIFAR-10: here as on MNIST, with each label once per epoch, and crops and mirrored images.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import torch

from ddu import data
from ddu.data import ArrayDataset
from ddu.data.registry import Root
from ddu.errors import InputError
from ddu.messages import check_name
from ddu.provenance import fingerprint
from ddu.training import RECIPES, Recipe

Scale = Literal["paper", "cpu"]


@dataclass(frozen=True)
class Protocol:
    """Everything that decides a learning curve, but for the acquisition function and the seed.

    Attributes:
        data: The data: "mnist", "dirty_mnist", "cifar10", "digits" or "dirty_digits".
        initial: The number of labels to begin with, equally many of each class.
        per_round: The number of labels per round.
        until: The number of labels to stop at.
        network: A name of `ddu.list_models()`.
        options: For `create_model`.
        recipe: How a network is trained.
        validation: The number of clean samples that are held out to choose the epoch by.
        pool: The number of clean samples in the pool; None takes all that are left.
        ambiguous: The number of ambiguous samples in the pool.
        copies: Whether the pool may have several samples of one ambiguous image, each with a label of its own.
        ambiguous_start: Whether the initial samples are ambiguous, as nearly all are in the paper's public code.
        candidates: The number of samples of the pool to consider per round, drawn at random; None considers all.
        test: The number of clean test samples; None takes all.
        image_size: The side that images are scaled to; None leaves them as they are.
    """

    data: str
    initial: int = 20
    per_round: int = 5
    until: int = 300
    network: str = "resnet18"
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe = RECIPES["active_learning"]
    validation: int = 6000
    pool: int | None = None
    ambiguous: int = 0
    copies: bool = True
    ambiguous_start: bool = False
    candidates: int | None = None
    test: int | None = None
    image_size: int | None = None

    def settings(self) -> dict[str, Any]:
        """Everything that decides the points of a curve, as JSON has it; so not the end of the curve."""
        settings = json.loads(json.dumps(asdict(self)))
        del settings["until"]
        # Younger than the first rows, whose curves are those of protocols that leave them as they are
        usual = {"copies": True, "ambiguous_start": False}
        return {name: value for name, value in settings.items() if name not in usual or value != usual[name]}

    def with_images_of(self, least: int | None) -> Self:
        """The same with images that have at least this side, where images are scaled at all."""
        if self.image_size is None or least is None:
            return self
        return replace(self, image_size=max(self.image_size, least))

    def reductions(self) -> str | None:
        """How it differs from the paper's protocol for the same data, in words; None if it does not.

        The end of the curve does not count: the curve shows it.
        """
        paper = PROTOCOLS[self.data]
        changes = [*_changes(paper, self, but=("until", "recipe")), *_changes(paper.recipe, self.recipe)]
        return "; ".join(changes) or None


def _changes(there: Any, here: Any, but: tuple[str, ...] = ()) -> list[str]:
    pairs = [(one.name, getattr(there, one.name), getattr(here, one.name)) for one in fields(there)]
    return [
        f"{name} {_written(was, name)} -> {_written(now, name)}"
        for name, was, now in pairs
        if was != now and name not in but
    ]


def _written(value: Any, name: str) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={option}" for key, option in value.items()) or "default"
    if value is None:
        return "original" if name == "image_size" else "all"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


_CIFAR = RECIPES["active_learning"].with_changes(samples_per_epoch=None, augmentation="crop_flip")
_DIGITS = RECIPES["active_learning"].with_changes(epochs=10, samples_per_epoch=640, lr=3e-3, weight_decay=0.0)

PROTOCOLS: dict[str, Protocol] = {
    "mnist": Protocol("mnist"),
    "dirty_mnist": Protocol("dirty_mnist", pool=1000, ambiguous=60_000),
    "cifar10": Protocol("cifar10", 1000, 500, 20_000, recipe=_CIFAR, validation=5000),
    # Not the paper's: small enough for a first try. The digits are taken as vectors
    "digits": Protocol("digits", 20, 10, 150, "resffn2_64", recipe=_DIGITS, validation=100),
    "dirty_digits": Protocol(
        "dirty_digits", 20, 10, 150, "resffn2_64", recipe=_DIGITS, validation=100, pool=100, ambiguous=900
    ),
}

# A digit is as readable at 14 x 14 pixels, and costs a quarter
_SMALL: dict[str, Any] = {"options": {"width": 1 / 4}, "validation": 200, "candidates": 2000, "test": 2000}
_MNIST = _SMALL | {"image_size": 14}
_SHORT: dict[str, Any] = {"epochs": 4, "samples_per_epoch": 512, "lr": 1e-2, "batch_size": 32, "schedule": "one_cycle"}

# The changes of a scale to the protocol and to its recipe
_CPU: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mnist": (_MNIST, _SHORT),
    "dirty_mnist": (_MNIST, _SHORT),
    "cifar10": (
        _SMALL | {"validation": 500, "image_size": 16},
        {"epochs": 2, "lr": 5e-3, "batch_size": 128, "schedule": "one_cycle"},
    ),
    "digits": ({}, {}),
    "dirty_digits": ({}, {}),
}


def find_protocol(name: str, scale: Scale = "paper", **changes: Any) -> Protocol:
    """A protocol by the name of its data.

    Args:
        name: One of `PROTOCOLS`.
        scale: "paper"; or "cpu", the same with a smaller network, fewer candidates and shorter training, so that a
            curve takes minutes on two cores.
        **changes: Fields of the recipe or of the protocol to change.
    """
    check_name(name, PROTOCOLS, "There is no protocol for {name!r}")
    small, short = _CPU[name] if scale == "cpu" else ({}, {})
    own = {one.name for one in fields(Protocol)}
    protocol = replace(PROTOCOLS[name], **small | {key: value for key, value in changes.items() if key in own})
    recipe = protocol.recipe.with_changes(**short | {key: value for key, value in changes.items() if key not in own})
    if protocol.until < protocol.initial:
        raise InputError(
            f"The protocol for {name} starts with {protocol.initial:,} labels, so it cannot stop at "
            f"{protocol.until:,}: stop at {protocol.initial:,} or more."
        )
    over = (protocol.until - protocol.initial) % protocol.per_round
    if over:
        raise InputError(
            f"{protocol.initial} labels and then {protocol.per_round} per round do not add up to {protocol.until}: "
            f"stop at {protocol.until - over} or at {protocol.until - over + protocol.per_round}."
        )
    return replace(protocol, recipe=recipe)


@dataclass(frozen=True)
class Source:
    """All samples of a protocol, from which those of every seed are drawn.

    Attributes:
        train: Clean samples, and then ambiguous ones.
        test: Clean test samples.
        clean: How many of the training samples are clean.
    """

    train: ArrayDataset
    test: ArrayDataset
    clean: int

    @cached_property
    def digest(self) -> str:
        """A digest of the samples and labels."""
        return fingerprint(self.train.digest(), self.test.digest(), self.clean)


def read_source(protocol: Protocol, root: Root = None) -> Source:
    """Reads the data of a protocol.

    Args:
        protocol: The protocol.
        root: Where the data is; see `ddu.data.load`.
    """
    name = protocol.data
    if name == "dirty_mnist":
        # Both parts have noise: without it on one of them, noise would tell the parts apart
        clean = len(data.load("mnist", root=root))
        return Source(data.load(name, root=root), data.load("mnist", "test", root=root), clean)
    if name in ("digits", "dirty_digits"):
        train, test = (_vectors(data.load("digits", split)) for split in ("train", "test"))
        return Source(_with_mixtures(train, protocol.ambiguous), test, len(train))
    train = data.load(name, root=root)
    return Source(train, data.load(name, "test", root=root), len(train))


@dataclass(frozen=True)
class Sets:
    """The samples of one curve; none is in two of the first three.

    Attributes:
        labelled: The initial samples.
        validation: The samples to choose the epoch by.
        pool: The samples that may be acquired, with their labels, which the oracle tells.
        test: The samples that the accuracy is measured on.
        ambiguous: Whether each sample of the pool is ambiguous, (sample,).
        digest: Of all samples that they were drawn from.
    """

    labelled: ArrayDataset
    validation: ArrayDataset
    pool: ArrayDataset
    test: ArrayDataset
    ambiguous: np.ndarray
    digest: str


def draw_sets(protocol: Protocol, seed: int, source: Source) -> Sets:
    """The samples of one curve, which depend on the protocol and the seed, and not on the acquisition function."""
    everything, test = (_scaled(samples, protocol.image_size) for samples in (source.train, source.test))
    clean = source.clean
    random = np.random.default_rng(seed)
    free = random.permutation(clean)
    validation, free = free[: protocol.validation], free[protocol.validation :]
    ambiguous = np.arange(clean, len(everything))
    if not protocol.copies and everything.groups is not None:
        ambiguous = clean + np.unique(everything.groups[clean:], return_index=True)[1]
    doubtful = random.permutation(ambiguous)[: protocol.ambiguous]
    start = doubtful if protocol.ambiguous_start else free
    labelled = start[_balanced(everything.labels[start], protocol.initial, everything.info.num_classes)]
    free = np.setdiff1d(free, labelled, assume_unique=True)
    pool = free if protocol.pool is None else free[: protocol.pool]
    for what, wanted, found in (
        ("validation samples", protocol.validation, len(validation)),
        ("clean samples in the pool", protocol.pool or 1, len(pool)),
        ("ambiguous samples in the pool", protocol.ambiguous, len(doubtful)),
    ):
        if found < wanted:
            raise InputError(f"The protocol for {protocol.data} wants {wanted:,} {what}, and there are only {found:,}.")
    rows = np.setdiff1d(np.concatenate([pool, doubtful]), labelled)  # in ascending order
    tested = np.arange(len(test)) if protocol.test is None else np.sort(random.permutation(len(test))[: protocol.test])
    return Sets(
        labelled=everything.subset(labelled),
        validation=everything.subset(np.sort(validation)),
        pool=everything.subset(rows),
        test=test.subset(tested),
        ambiguous=rows >= clean,
        digest=source.digest,
    )


def _balanced(labels: np.ndarray, count: int, num_classes: int) -> np.ndarray:
    """Positions of the first `count` samples with equally many of each class, to within one."""
    order = np.argsort(labels, kind="stable")
    nth = np.empty(len(labels), dtype=np.int64)  # of its class
    starts = np.searchsorted(labels[order], labels[order])
    nth[order] = np.arange(len(labels)) - starts
    positions = np.lexsort((labels, nth))[:count]
    if count < num_classes or len(positions) < count or np.bincount(labels[positions]).min() < count // num_classes:
        raise InputError(
            f"{count} initial labels cannot be spread over {num_classes} classes of {len(labels)} samples."
        )
    return positions


def _scaled(samples: ArrayDataset, side: int | None) -> ArrayDataset:
    """Images of another size."""
    info = samples.info
    return samples if side is None else samples.like(replace(info, shape=(info.shape[0], side, side)))


def _with_mixtures(digits: ArrayDataset, count: int) -> ArrayDataset:
    """Digits, and then mixtures of two of them."""
    if not count:
        return digits
    mixed = data.mix_pairs(digits.inputs, digits.labels, count, torch.Generator().manual_seed(0))
    both = np.concatenate([digits.inputs, mixed.inputs])
    return ArrayDataset(both, np.concatenate([digits.labels, mixed.labels]), digits.info)


def _vectors(images: ArrayDataset) -> ArrayDataset:
    """Images as vectors, normalised."""
    pixels, _ = images.__getitems__(range(len(images)))
    vectors = pixels.flatten(1).numpy()
    return ArrayDataset(vectors, images.labels, replace(images.info, shape=vectors.shape[1:], mean=(), std=()))
