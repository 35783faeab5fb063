"""The paper's experiments as values: what is in the pool, how many labels, which networks, which acquisition.

Different from the paper's public code, as the data set's own authors advise: the initial and the validation samples are
clean, also where the pool is not; and the initial samples have as many of each class. The paper leaves open how
networks are trained on CIFAR-10: here as on MNIST, with each label once an epoch, and crops and mirrored images.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from ddu import data
from ddu.active._acquisition import Acquisition, Diverse, LeaveOutFar, PowerSampling, Random, Top
from ddu.active._candidates import AnyDetector
from ddu.active._learner import ActiveLearner
from ddu.active._training import by_recipe
from ddu.data import ArrayDataset
from ddu.detectors import DDU, DUQ, SNGP, Ensemble, Softmax
from ddu.errors import InputError
from ddu.messages import check_name
from ddu.models import create_model
from ddu.runs import input_options
from ddu.training import RECIPES, Recipe

Scale = Literal["paper", "cpu"]


@dataclass(frozen=True)
class Protocol:
    """Everything that an experiment depends on besides the acquisition and the seed.

    Attributes:
        data: What is learned: "mnist", "dirty_mnist", "cifar10", "digits" or "dirty_digits".
        initial: Labels to begin with, as many of each class.
        per_round: Labels a round.
        until: Labels to stop at.
        network: A name of `ddu.list_models()`.
        options: For `create_model`.
        recipe: How a network is trained.
        validation: Clean samples held out to choose the epoch by.
        pool: Clean samples in the pool; None takes all that are left.
        ambiguous: Ambiguous samples in the pool.
        candidates: Samples of the pool that are considered in a round, drawn at random; None considers all.
        test: Clean test samples; None takes all.
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
    candidates: int | None = None
    test: int | None = None
    image_size: int | None = None

    def reductions(self) -> str | None:
        """How it differs from the paper's protocol for the same data, in words; None if it does not.

        Where a curve ends is not part of it: the curve shows that.
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

# What a scale changes of the protocol, and of its recipe
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
    over = (protocol.until - protocol.initial) % protocol.per_round
    if over:
        raise InputError(
            f"{protocol.initial} labels and then {protocol.per_round} a round do not come to {protocol.until}: stop at "
            f"{protocol.until - over} or at {protocol.until - over + protocol.per_round}."
        )
    return replace(protocol, recipe=recipe)


# What is compared

PLAIN = {"spectral_norm": None, "sensitive": False}
SMOOTH: dict[str, Any] = {}


@dataclass(frozen=True)
class Method:
    """What is trained in a round, and what is asked of it.

    Attributes:
        detector: Makes a detector of a trained network, or of a list of them.
        acquisition: What chooses.
        options: For `create_model`: `PLAIN`, or `SMOOTH`, which is its default.
        members: How many networks are trained.
        network: Another network than the protocol's.
        image_size: The side that images must have at least, for that network.
    """

    detector: Callable[[Any], AnyDetector]
    acquisition: Acquisition = field(default_factory=Top)
    options: Mapping[str, Any] = field(default_factory=lambda: PLAIN)
    members: int = 1
    network: str | None = None
    image_size: int | None = None

    def adapt(self, protocol: Protocol) -> Protocol:
        """The protocol, with images that are large enough for the network."""
        if protocol.image_size is None or self.image_size is None:
            return protocol
        return replace(protocol, image_size=max(protocol.image_size, self.image_size))


# Of the centroids' moving averages: with CIFAR-10's, 0.999, they would hardly move in the few steps of a round
_DUQ_MOMENTUM = 0.99
_PREDICTIVE_ENTROPY = partial(Ensemble, score="predictive_entropy")

METHODS: dict[str, Method] = {
    "random": Method(Softmax, Random()),
    "entropy": Method(Softmax),
    "density": Method(DDU, options=SMOOTH),
    "density_diverse": Method(DDU, Diverse(), options=SMOOTH),
    "density_power": Method(DDU, PowerSampling(by="rank"), options=SMOOTH),
    "density_vgg": Method(DDU, network="vgg16", image_size=16),
    "ensemble_pe": Method(_PREDICTIVE_ENTROPY, members=3),
    "ensemble_mi": Method(Ensemble, members=3),
    "ensemble_mi_power": Method(Ensemble, PowerSampling(by="score"), members=3),
    "sngp": Method(SNGP, options=RECIPES["sngp_cifar"].model),
    "duq": Method(DUQ, options={**PLAIN, "head": "duq", "head_options": {"momentum": _DUQ_MOMENTUM}}),
}


def find_method(name: str, leave_out_above: float | None = None) -> Method:
    """A method by name.

    Args:
        name: One of `METHODS`.
        leave_out_above: Leave out the candidates above this quantile of epistemic uncertainty.
    """
    check_name(name, METHODS, "There is no acquisition {name!r}")
    method = METHODS[name]
    if leave_out_above is not None:
        return replace(method, acquisition=LeaveOutFar(method.acquisition, quantile=leave_out_above))
    return method


# The samples


@dataclass(frozen=True)
class Sets:
    """The samples of one run; none is in two of the first three.

    Attributes:
        labelled: Those to begin with.
        validation: Those to choose the epoch by.
        pool: Those that may be acquired, with the labels that they will turn out to have.
        test: Those that the accuracy is measured on.
        ambiguous: Which samples of the pool are ambiguous, (sample,).
    """

    labelled: ArrayDataset
    validation: ArrayDataset
    pool: ArrayDataset
    test: ArrayDataset
    ambiguous: np.ndarray


def draw_sets(protocol: Protocol, seed: int, root: str | os.PathLike[str] | None = None) -> Sets:
    """The samples of one run, which depend on the protocol and the seed, and not on the method."""
    everything, test, clean = _read(protocol, root)
    everything, test = (_scaled(samples, protocol.image_size) for samples in (everything, test))
    random = np.random.default_rng(seed)
    free = random.permutation(clean)
    validation, free = free[: protocol.validation], free[protocol.validation :]
    labelled = _balanced(everything.labels[free], protocol.initial, everything.info.num_classes)
    labelled, free = free[labelled], np.delete(free, labelled)
    pool = free if protocol.pool is None else free[: protocol.pool]
    doubtful = random.permutation(np.arange(clean, len(everything)))[: protocol.ambiguous]
    for what, wanted, found in (
        ("validation samples", protocol.validation, len(validation)),
        ("clean samples in the pool", protocol.pool or 1, len(pool)),
        ("ambiguous samples in the pool", protocol.ambiguous, len(doubtful)),
    ):
        if found < wanted:
            raise InputError(f"The protocol for {protocol.data} wants {wanted:,} {what}, and there are {found:,}.")
    rows = np.sort(np.concatenate([pool, doubtful]))
    tested = np.arange(len(test)) if protocol.test is None else np.sort(random.permutation(len(test))[: protocol.test])
    return Sets(
        labelled=everything.subset(labelled),
        validation=everything.subset(np.sort(validation)),
        pool=everything.subset(rows),
        test=test.subset(tested),
        ambiguous=rows >= clean,
    )


def _balanced(labels: np.ndarray, count: int, num_classes: int) -> np.ndarray:
    """Positions of the first `count` samples with as many of each class, to within one."""
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


def _read(protocol: Protocol, root: str | os.PathLike[str] | None) -> tuple[ArrayDataset, ArrayDataset, int]:
    """Training samples, test samples, and how many of the training samples, the first ones, are clean."""
    name = protocol.data
    if name == "dirty_mnist":
        # Noise is on both parts of it, or noise would tell them apart
        return data.load(name, root=root), data.load("mnist", "test", root=root), len(data.load("mnist", root=root))
    if name in ("digits", "dirty_digits"):
        train, test = (_vectors(data.load("digits", split)) for split in ("train", "test"))
        return _with_mixtures(train, protocol.ambiguous), test, len(train)
    train = data.load(name, root=root)
    return train, data.load(name, "test", root=root), len(train)


def _with_mixtures(digits: ArrayDataset, count: int) -> ArrayDataset:
    """Digits, and then mixtures of two of them."""
    inputs, labels = torch.from_numpy(digits.inputs), torch.from_numpy(digits.labels)
    mixed = data.ambiguous_digits(inputs[:, None, None], labels, count, torch.Generator().manual_seed(0))
    both = torch.cat([inputs, mixed.images[:, 0, 0]]).numpy()
    return ArrayDataset(both, torch.cat([labels, mixed.labels]).numpy(), digits.info)


def _vectors(images: ArrayDataset) -> ArrayDataset:
    """Images as vectors, normalised."""
    pixels, _ = images.__getitems__(range(len(images)))
    vectors = pixels.flatten(1).numpy()
    return ArrayDataset(vectors, images.labels, replace(images.info, shape=vectors.shape[1:], mean=(), std=()))


def make_learner(
    protocol: Protocol,
    method: Method,
    sets: Sets,
    seed: int,
    *,
    progress: bool | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> ActiveLearner:
    """The learner of one run."""
    options = {**input_options(sets.pool.info), **protocol.options, **method.options}
    return ActiveLearner(
        model_factory=partial(create_model, method.network or protocol.network, **options),
        detector=method.detector,
        pool=sets.pool,
        labelled=sets.labelled,
        oracle=lambda indices: sets.pool.labels[indices],
        acquisition=method.acquisition,
        members=method.members,
        validation=sets.validation,
        test=sets.test,
        trainer=by_recipe(protocol.recipe),
        per_round=protocol.per_round,
        candidates=protocol.candidates,
        seed=seed,
        progress=progress,
        on_stage=on_stage,
    )
