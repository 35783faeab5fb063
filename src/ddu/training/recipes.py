"""Recipes: how the paper's networks and those of its rivals were trained, as values.

Where the paper is silent: the weight decay, batch size and augmentation of CIFAR and the spectral norm of the two moons
come from the authors' public code; five epochs of warm-up for ImageNet are the usual choice.

DUQ is trained as in its authors' code. On Fashion-MNIST that code searches for the length scale and the weight of the
penalty; here they are those of CIFAR-10. SNGP is trained as in uncertainty-baselines on CIFAR; for the two moons it has
DDU's recipe, with a spectral norm and a length scale that suit its head.
"""

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, get_args, get_origin

from ddu.errors import InputError
from ddu.messages import check_name

Optimiser = Literal["sgd", "adam"]
Schedule = Literal["constant", "step", "cosine", "one_cycle"]
Augmentation = Literal["none", "crop_flip", "resized_crop_flip"]
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]

# One cycle: the share of the training in which the learning rate rises, and where it starts and ends
_RISE, _START, _END = 0.3, 1 / 25, 1e-4


@dataclass(frozen=True)
class Recipe:
    """Everything that training depends on besides the network, the data and the seed.

    Attributes:
        epochs: Passes over the training data.
        batch_size: Samples per step, over all devices together.
        optimiser: "sgd" or "adam".
        lr: The learning rate, before the schedule.
        momentum: The momentum of SGD.
        nesterov: Whether SGD uses Nesterov momentum.
        weight_decay: The L2 penalty of all parameters, added to the gradient.
        schedule: How the learning rate moves: "constant", "step" (times `gamma` at each of `milestones`), "cosine"
            (falls to 0), "one_cycle" (rises for 30 % of the time, then falls; the best choice for short trainings).
        milestones: The epochs at which "step" lowers the learning rate.
        gamma: The factor by which "step" lowers it.
        warmup_epochs: Epochs over which the learning rate rises linearly, before any schedule.
        warmup_factor: Where that rise starts, as a share of the learning rate.
        label_smoothing: Label smoothing of the cross-entropy. Off in the paper: it would blur the softmax entropy.
        gradient_penalty: The weight of DUQ's penalty on the gradient of its kernels.
        augmentation: Random changes to training images: "none", "crop_flip" (pad by 4 black pixels, crop, mirror) or
            "resized_crop_flip" (crop of random size and shape, resized, mirrored).
        drop_last: Skip the last batch of an epoch if it is not full.
        samples_per_epoch: Repeat or cut the training data to this many samples per epoch; None uses each sample once.
        validation_share: The share of the training data that is held out for validation and calibration.
        select: Keep the weights of the "last" epoch or of the "best": the one with the highest validation accuracy, or
            with the lowest validation loss where the objective has no class scores.
        precision: "32-true", "bf16-mixed", "16-mixed" or "auto": "bf16-mixed" on a CPU that multiplies bfloat16 itself,
            and "32-true" everywhere else.
        model: Options for `create_model` that belong to the recipe.
    """

    epochs: int
    batch_size: int = 128
    optimiser: Optimiser = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: Schedule = "step"
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    warmup_epochs: int = 0
    warmup_factor: float = 0.01
    label_smoothing: float = 0.0
    gradient_penalty: float = 0.75
    augmentation: Augmentation = "none"
    drop_last: bool = False
    samples_per_epoch: int | None = None
    validation_share: float = 0.1
    select: Literal["last", "best"] = "last"
    precision: Precision | Literal["auto"] = "32-true"
    model: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("lr", 0), ("weight_decay", 0), ("warmup_epochs", 0)):
            if not getattr(self, name) >= least:
                raise InputError(f"A recipe's {name} must be at least {least}. Got {getattr(self, name)!r} instead.")
        for one in fields(self):
            choices = get_args(one.type) if get_origin(one.type) is Literal else ()
            if choices and getattr(self, one.name) not in choices:
                raise InputError(
                    f"A recipe's {one.name} must be one of {', '.join(map(repr, choices))}. "
                    f"Got {getattr(self, one.name)!r} instead."
                )

    def with_changes(self, **changes: Any) -> Self:
        """The recipe with some fields changed; with other epochs, the milestones keep their share of the training.

        No milestone moves before the end of the first epoch: every training starts at its full learning rate.

        >>> RECIPES["cifar"].with_changes(epochs=35).milestones
        (15, 25)
        """
        known = [one.name for one in fields(self)]
        for name in changes:
            check_name(name, known, "A recipe has no field {name!r}")
        if "epochs" in changes and "milestones" not in changes:
            scale = changes["epochs"] / self.epochs
            changes["milestones"] = tuple(max(1, round(scale * milestone)) for milestone in self.milestones)
        return replace(self, **changes)

    def lr_factor(self, epoch: float) -> float:
        """The factor on the learning rate after `epoch` epochs, which may be a fraction.

        >>> RECIPES["cifar"].lr_factor(149.9), RECIPES["cifar"].lr_factor(150)
        (1.0, 0.1)
        """
        if epoch < self.warmup_epochs:
            return self.warmup_factor + (1 - self.warmup_factor) * epoch / self.warmup_epochs
        done = min(epoch / self.epochs, 1.0)
        if self.schedule == "step":
            return self.gamma ** sum(epoch >= milestone for milestone in self.milestones)
        if self.schedule == "cosine":
            return _cosine(1.0, 0.0, done)
        if self.schedule == "one_cycle":
            return (
                _cosine(_START, 1.0, done / _RISE) if done < _RISE else _cosine(1.0, _END, (done - _RISE) / (1 - _RISE))
            )
        return 1.0


def _cosine(start: float, end: float, share: float) -> float:
    """From `start` to `end` along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def _duq(**head_options: Any) -> dict[str, Any]:
    """Options of `create_model` for a DUQ network."""
    return {"head": "duq", "spectral_norm": None, "sensitive": False, "head_options": head_options}


_TWO_MOONS = Recipe(
    epochs=150, batch_size=64, optimiser="adam", lr=1e-3, weight_decay=0.0, schedule="constant", drop_last=True
)
_DUQ = Recipe(epochs=100, lr=0.05, milestones=(25, 50, 75), gamma=0.2, drop_last=True)

RECIPES: dict[str, Recipe] = {
    "mnist": Recipe(epochs=50, milestones=(25, 40)),
    "cifar": Recipe(epochs=350, milestones=(150, 250), augmentation="crop_flip"),
    "imagenet": Recipe(
        epochs=90,
        batch_size=256,
        weight_decay=1e-4,
        milestones=(30, 60),
        warmup_epochs=5,
        augmentation="resized_crop_flip",
        validation_share=0.02,
    ),
    "two_moons": replace(_TWO_MOONS, model={"spectral_norm": 0.65, "power_steps": 5}),
    "active_learning": Recipe(
        epochs=100,
        batch_size=64,
        optimiser="adam",
        lr=1e-3,
        schedule="constant",
        samples_per_epoch=5056,
        select="best",
    ),
    # Wide ResNets took 200 epochs, with drops at 60, 120 and 160
    "duq_cifar": replace(
        _DUQ, augmentation="crop_flip", model=_duq(length_scale=0.1, momentum=0.999, initial_count=13.0)
    ),
    "duq_fashion_mnist": replace(
        _DUQ,
        epochs=30,
        weight_decay=1e-4,
        milestones=(10, 20),
        model=_duq(embedding_size=256, length_scale=0.1, momentum=0.999, initial_count=12.0),
    ),
    "duq_two_moons": Recipe(
        epochs=30,
        batch_size=64,
        lr=0.01,
        weight_decay=1e-4,
        schedule="constant",
        gradient_penalty=1.0,
        drop_last=True,
        model=_duq(embedding_size=10, length_scale=0.3, momentum=0.99, initial_count=20.0),
    ),
    # 0.08 for a batch of 128, so twice that here; Keras adds l2 · w² with l2 = 3e-4, which is torch's decay of 6e-4.
    # The networks were wide ResNets with less dropout than DDU's: --option dropout=0.1
    "sngp_cifar": Recipe(
        epochs=250,
        batch_size=256,
        lr=0.16,
        nesterov=True,
        weight_decay=6e-4,
        milestones=(75, 150, 200),
        gamma=0.2,
        warmup_epochs=1,
        augmentation="crop_flip",
        model={"head": "sngp", "spectral_norm": 6.0, "sensitive": False},
    ),
    # Length scale and spectral norm are not published: the best of a grid of twelve, by the AUROC on the moons
    "sngp_two_moons": replace(
        _TWO_MOONS, model={"head": "sngp", "head_options": {"length_scale": 1.0}, "spectral_norm": 0.95}
    ),
    # Not from a paper: a few epochs on a CPU
    "quick": Recipe(epochs=5, lr=0.05, schedule="one_cycle"),
}


def find_recipe(name: str) -> Recipe:
    """A recipe by name."""
    check_name(name, RECIPES, "There is no recipe {name!r}")
    return RECIPES[name]


def parse_changes(assignments: list[str]) -> dict[str, Any]:
    """Changes to a recipe as they are written on a command line.

    >>> parse_changes(["epochs=3", "lr=0.05", "milestones=2,3", "schedule=cosine", "samples_per_epoch=none"])
    {'epochs': 3, 'lr': 0.05, 'milestones': (2, 3), 'schedule': 'cosine', 'samples_per_epoch': None}
    """
    types = typing.get_type_hints(Recipe)
    changes = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"A change to the recipe is written FIELD=VALUE. Got {assignment!r} instead.")
        if name == "model":
            raise InputError("The recipe's model options have flags of their own, such as --spectral-norm.")
        # An unknown field keeps its text: with_changes answers with the closest name
        changes[name] = _parse(name, text, types[name]) if name in types else text
    return changes


def _parse(name: str, text: str, kind: Any) -> Any:
    if type(None) in get_args(kind):
        if text.lower() == "none":
            return None
        kind = get_args(kind)[0]
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if get_origin(kind) is tuple:
            return tuple(int(part) for part in text.split(",") if part)
        return text if get_origin(kind) is Literal else kind(text)
    except (ValueError, KeyError) as error:
        wanted = {int: "an integer", float: "a number", bool: "true or false"}.get(kind, "integers with commas between")
        raise InputError(f"The recipe's {name} must be {wanted}. Got {text!r} instead.") from error
