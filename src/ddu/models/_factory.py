"""`create_model`: a network from its name and the options of the method, and the registry of those names."""

import difflib
import fnmatch
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from torch import nn

from ddu.errors import InputError
from ddu.layers import POWER_STEPS, GaussianProcessHead, RBFHead
from ddu.models._layers import Classifier, Stem, choose_layers

Head = Literal["linear", "duq", "sngp"]
Build = TypeVar("Build", bound=Callable[..., Classifier])

_HEADS: dict[str, Callable[..., nn.Module]] = {"duq": RBFHead, "sngp": GaussianProcessHead}


@dataclass(frozen=True)
class Architecture:
    """A registered network: the names it answers to, its class, and the function that builds it."""

    template: str  # "resnet18", or "wide_resnet{depth}_{widen}" with a number in each pair of braces
    listed: tuple[str, ...]
    network: type[Classifier]
    build: Callable[..., Classifier]

    def match(self, name: str) -> dict[str, int] | None:
        """The numbers in a name of this form, or None if the name has another form."""
        found = re.fullmatch(re.sub(r"{(\w+)}", r"(?P<\1>[1-9]\\d*)", self.template), name)
        return None if found is None else {key: int(number) for key, number in found.groupdict().items()}


_ARCHITECTURES: list[Architecture] = []


def register_model(
    network: type[Classifier], template: str | None = None, *, listed: tuple[str, ...] = ()
) -> Callable[[Build], Build]:
    """Registers the function that builds a network, by its own name or by a template.

    A template is a name such as "wide_resnet{depth}_{widen}". Its numbers are passed to the function by
    name. `list_models` shows the names in `listed`.
    """

    def register(build: Build) -> Build:
        name = template or build.__name__
        _ARCHITECTURES.append(Architecture(name, listed or (name,), network, build))
        return build

    return register


def find_model(name: str) -> tuple[Architecture, dict[str, int]]:
    """The architecture of a name, and the numbers in the name."""
    for architecture in _ARCHITECTURES:
        numbers = architecture.match(name)
        if numbers is not None:
            return architecture, numbers
    closest = _closest(name)
    hint = f" The closest names are {', '.join(map(repr, closest))};" if closest else ""
    raise InputError(f"There is no model {name!r}.{hint} list_models() gives them all.")


def list_models(pattern: str = "*") -> list[str]:
    """The names that `create_model` knows, sorted; `pattern` filters them with the wildcards of a shell.

    Wide ResNets, ResFFNs and FC-Nets also come in every other size: `wide_resnet16_4` works like the listed
    `wide_resnet28_10`.

    >>> list_models("resnet*")
    ['resnet110', 'resnet18', 'resnet50']
    """
    return sorted(name for one in _ARCHITECTURES for name in one.listed if fnmatch.fnmatchcase(name, pattern))


def create_model(
    name: str,
    *,
    num_classes: int = 10,
    in_channels: int | None = None,
    in_features: int | None = None,
    input_size: int | tuple[int, int] | None = None,
    stem: Stem | None = None,
    width: float = 1.0,
    spectral_norm: float | None = 3.0,
    sensitive: bool = True,
    spectral_batch_norm: bool = False,
    power_steps: int = POWER_STEPS,
    head: Head = "linear",
    head_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Classifier:
    """Creates an untrained network whose features are kept smooth and sensitive, ready for a density.

    The defaults are the method's: every hidden layer f has spectral norm ‖f‖ ≤ 3 and every residual block keeps its
    input, x' = g(x) + f(x), with a g that averages. `spectral_norm=None, sensitive=False` is the plain architecture.
    Ordinary batch-norm may scale up again what the convolutions bound, so the network is not bounded;
    `spectral_batch_norm=True` bounds batch-norm too.

    Args:
        name: One of `list_models()`, or another size of it such as "wide_resnet16_4".
        num_classes: The number of logits.
        in_channels: The size of the input's second axis: 1 for grey images, 3 for colour. By default 1 for LeNet and
            the "mnist" stem and 3 elsewhere. Networks for vectors treat it as `in_features`.
        in_features: The length of the vectors, for ResFFN and FC-Net only; 2 by default.
        input_size: The images' side, or (height, width). Only used to choose the stem: a network is not tied to it.
        stem: "mnist", "cifar" or "imagenet": how soon the image is made smaller. By default `input_size` decides
            ("mnist" below 32 pixels, "imagenet" from 128 on, "cifar" between); without it "mnist" for one channel, and
            otherwise the stem of the original: "imagenet" for `wide_resnet50_2`, "cifar" for the rest.
        width: Scales the channels of every layer; `resnet18` has 512 features, and 128 with `width=0.25`.
        spectral_norm: The largest spectral norm of a convolution or hidden linear layer, or None for ordinary layers.
        sensitive: Leaky ReLU (slope 0.01) instead of ReLU, average-pooled shortcuts instead of 1x1 convolutions.
        spectral_batch_norm: Also bounds batch-norm by `spectral_norm`.
        power_steps: Of every spectrally normalised layer, as in `ddu.layers.spectral_norm`.
        head: "linear"; "duq", a `ddu.layers.RBFHead`; or "sngp", a `ddu.layers.GaussianProcessHead`.
        head_options: Keyword arguments of that head.
        **options: Options of the family: `dropout` of wide ResNets (0.3), ResFFN and FC-Net (0).

    Returns:
        The network, in training mode, with `forward_features`, `forward_head` and `num_features`.

    Raises:
        InputError: An unknown name (the message has the closest ones) or an option that the network does not have.
        NotSupportedError: Spectral batch-norm without spectral norm.

    >>> model = create_model("resnet18", num_classes=10, in_channels=1, width=0.25)
    >>> model.num_features
    128
    >>> model.head
    Linear(in_features=128, out_features=10, bias=True)
    """
    architecture, numbers = find_model(name)
    if num_classes < 1:
        raise InputError(f"The 'num_classes' parameter must be at least 1. Got {num_classes} instead.")
    if stem is not None and stem not in get_args(Stem):
        raise InputError(f"The 'stem' parameter must be 'mnist', 'cifar' or 'imagenet'. Got {stem!r} instead.")

    if head not in get_args(Head):
        raise InputError(f"The 'head' parameter must be 'linear', 'duq' or 'sngp'. Got {head!r} instead.")
    for key in head_options or {}:
        known = _options_of(_HEADS[head]) if head in _HEADS else []
        if key not in known:
            raise InputError(
                f"A head of the kind {head!r} has no option {key!r}; it takes {', '.join(known) or 'none'}."
            )

    accepted = _options_of(architecture.network)
    if "in_features" in accepted and in_features is None:
        in_features, in_channels = in_channels, None
    if "stem" in accepted and stem is None:
        stem = _choose_stem(in_channels, input_size)
    if stem == "mnist" and in_channels is None:
        in_channels = 1

    given = {"in_channels": in_channels, "in_features": in_features, "stem": stem}
    options |= {key: value for key, value in given.items() if value is not None}
    for key in options:
        if key not in accepted:
            raise InputError(f"{name} has no option {key!r}; it takes {', '.join(accepted)}.")
    layers = choose_layers(
        spectral_norm=spectral_norm,
        sensitive=sensitive,
        spectral_batch_norm=spectral_batch_norm,
        power_steps=power_steps,
    )
    model = architecture.build(**numbers, num_classes=num_classes, width=width, layers=layers, **options)
    if head != "linear":
        model.head = _HEADS[head](model.num_features, num_classes, **head_options or {})
    return model


def takes_images(name: str) -> bool:
    """Whether the network of that name takes images; the others take vectors."""
    return "in_channels" in _options_of(find_model(name)[0].network)


def _options_of(network: Callable[..., nn.Module]) -> list[str]:
    """The keyword arguments of a network or head, without those that all networks share."""
    parameters = inspect.signature(network).parameters.values()
    shared = ("num_classes", "width", "layers")
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in shared]


def _choose_stem(in_channels: int | None, input_size: int | tuple[int, int] | None) -> Stem | None:
    """The stem by the input size, or else by the channels; None if neither decides."""
    if input_size is not None:
        side = input_size if isinstance(input_size, int) else min(input_size)
        return "mnist" if side < 32 else "cifar" if side < 128 else "imagenet"
    return "mnist" if in_channels == 1 else None


def _closest(name: str) -> list[str]:
    """At most three known names, closest first, compared without case and punctuation."""
    known = {_letters(candidate): candidate for candidate in list_models()}
    return [known[match] for match in difflib.get_close_matches(_letters(name), known, n=3, cutoff=0.5)]


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
