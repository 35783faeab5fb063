"""What a comparison compares: data, networks, detectors and seeds, as a value and as a file.

data: mnist                # in distribution
ood: [fashion_mnist]       # out of distribution; cifar10_c:fog is all severities of a corruption, cifar10_c all of all
seeds: [0]                 # every network is trained once for each
model: resnet18            # of all networks, with
options: {width: 0.25}     # options of ddu.create_model, and
recipe: {name: quick, epochs: 3}
limit: 10000               # training samples; by default all
false_alarm_rate: 0.01     # what detectors are calibrated for
networks:                  # besides ddu, softmax, duq and sngp, or instead of them
  bent: {method: ddu, options: {spectral_norm: null}}
  duq: {recipe: {gradient_penalty: 0.1}}
detectors:
  - ddu                    # on the network that is trained for it
  - ddu: {network: bent, density: {covariance: shared}, name: ddu_shared}
  - ensemble_mi: {members: 3}
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from torch import nn

from ddu.comparison._catalogue import find_kind
from ddu.comparison._ood import expand
from ddu.detectors import BaseDetector
from ddu.errors import InputError
from ddu.extras import require
from ddu.messages import check_name
from ddu.runs import METHODS, RunConfig, find_method
from ddu.training import Recipe, find_recipe, parse_changes

# Seeds of an ensemble's members lie so far apart: 0, 1000, 2000, ... for the seed 0
_MEMBER_STRIDE = 1000


@dataclass(frozen=True)
class NetworkConfig:
    """A network of a comparison.

    Attributes:
        model: Its architecture, a name of `ddu.list_models()`.
        recipe: How it is trained.
        options: For `create_model`.
        label: What rows call it; by default as `network_label` does.
    """

    model: str
    recipe: Recipe
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None


@dataclass(frozen=True)
class Entry:
    """A detector of a comparison.

    Attributes:
        detector: Its kind, such as "ddu".
        network: The name of the network that it is put around.
        options: Of the detector.
        members: How many networks it takes, trained alike from different seeds.
        name: What rows call it.
    """

    detector: str
    network: str
    options: Mapping[str, Any] = field(default_factory=dict)
    members: int = 1
    name: str = ""

    @classmethod
    def parse(cls, written: object) -> Self:
        """A detector as it stands in a file: its kind, or its kind and options.

        >>> Entry.parse({"ddu": {"density": {"covariance": "shared"}}}).name
        'ddu covariance=shared'
        """
        kind_name, options = next(iter(written.items())) if isinstance(written, Mapping) and written else (written, {})
        if not isinstance(kind_name, str) or not isinstance(options, Mapping):
            raise InputError(f"A detector is written NAME, or NAME: {{OPTION: VALUE}}. Got {written!r} instead.")
        if isinstance(written, Mapping) and len(written) > 1:
            raise InputError(f"Each detector is an item of its own, with a dash. Got {', '.join(written)} in one.")
        kind, options = find_kind(kind_name), dict(options)
        if kind.options is not None:
            known = [*kind.options, "network", "name", *["members"] * (kind.members > 1)]
            for option in options:
                check_name(option, known, f"The detector {kind_name!r} has no option {{name!r}}")
        network = options.pop("network", kind.method)
        for option, value in {"network": network, "name": options.get("name", "")}.items():
            if not isinstance(value, str):
                raise InputError(f"The {option} of {kind_name} must be a word. Got {value!r} instead.")
        members = options.pop("members", kind.members) if kind.members > 1 else 1
        if not isinstance(members, int) or members < min(kind.members, 2):
            raise InputError(f"The members of {kind_name} must be an integer of at least 2. Got {members!r} instead.")
        name = options.pop("name", None) or " ".join([kind_name, *_described(options)])
        return cls(kind_name, network, options, members, name)

    def make(self, model: nn.Module | Sequence[nn.Module]) -> BaseDetector:
        """The detector around a network, or around members."""
        return find_kind(self.detector).make(model, **self.options)


@dataclass(frozen=True)
class Comparison:
    """Detectors x OoD sets x seeds.

    Attributes:
        data: The training data, a name of `ddu.data.list_data()`.
        ood: The out-of-distribution sets.
        networks: The networks that detectors ask for, by name.
        detectors: The detectors, in the order of the table.
        seeds: Every network is trained once for each.
        limit: Use only so many training samples; None uses all.
        false_alarm_rate: What detectors are calibrated for.
    """

    data: str
    ood: tuple[str, ...]
    networks: Mapping[str, NetworkConfig]
    detectors: tuple[Entry, ...]
    seeds: tuple[int, ...] = (0,)
    limit: int | None = None
    false_alarm_rate: float = 0.01

    def __post_init__(self) -> None:
        for entry in self.detectors:
            check_name(entry.network, self.networks, _no_network(entry))
        called = Counter((entry.name, self.label(entry)) for entry in self.detectors)
        (name, network), times = called.most_common(1)[0]
        if times > 1:
            raise InputError(
                f"Two detectors are called {name} on {network}: give one of them a name, or its network a label."
            )
        shares = {network.recipe.validation_share for network in self.networks.values()}
        if len(shares) > 1:
            raise InputError(
                f"All networks hold out the same data, and these recipes have {_listed(shares)} as validation_share: "
                "set it in the recipe of the whole comparison."
            )

    @classmethod
    def parse(cls, content: object) -> Self:
        """A comparison as it stands in a file."""
        if not isinstance(content, Mapping):
            raise InputError(f"A comparison is a mapping such as `data: mnist`. Got {content!r} instead.")
        for key in content:
            check_name(key, _CHECKS, "A comparison has no key {name!r}")
        for key in ("data", "ood", "model", "detectors"):
            if key not in content:
                raise InputError(f"A comparison needs the key {key!r}.")
        for key, value in content.items():
            accepts, words = _CHECKS[key]
            if not accepts(value):
                raise InputError(f"The {key} of a comparison must be {words}. Got {value!r} instead.")
        detectors = tuple(map(Entry.parse, content["detectors"]))
        for entry in detectors:
            check_name(entry.network, {**METHODS, **content.get("networks", {})}, _no_network(entry))
        return cls(
            data=content["data"],
            ood=expand(content["ood"]),
            networks=_parse_networks(content, {entry.network for entry in detectors}),
            detectors=detectors,
            seeds=tuple(content.get("seeds", cls.seeds)),
            limit=content.get("limit", cls.limit),
            false_alarm_rate=content.get("false_alarm_rate", cls.false_alarm_rate),
        )

    def run_config(self, network: str, seed: int, member: int = 0) -> RunConfig:
        """How a network is trained for a seed; members after the first have seeds of their own, and its split."""
        asked = self.networks[network]
        return RunConfig(
            model=asked.model,
            data=self.data,
            recipe=asked.recipe,
            seed=seed + _MEMBER_STRIDE * member,
            limit=self.limit,
            false_alarm_rate=self.false_alarm_rate,
            options=asked.options,
            split_seed=seed if member else None,
        )

    def label(self, entry: Entry) -> str:
        """What rows call the network of a detector."""
        return self.networks[entry.network].label or network_label(self.run_config(entry.network, 0))

    def to_json(self) -> dict[str, Any]:
        """Everything that decides the values, as JSON."""
        return json.loads(json.dumps(asdict(self)))


def read_comparison(path: str | os.PathLike[str]) -> Comparison:
    """Reads a comparison from a YAML file."""
    yaml = require("yaml", extra="compare", purpose="Reading a comparison")
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {error}") from error
    return Comparison.parse(content)


def network_label(config: RunConfig) -> str:
    """The network of a run as rows call it: its architecture, its width, and what keeps it smooth and sensitive.

    >>> from ddu.training import RECIPES
    >>> network_label(RunConfig("resnet18", "mnist", RECIPES["quick"], options={"width": 0.25}))
    'resnet18 x0.25+sn'
    >>> network_label(RunConfig("resnet18", "mnist", RECIPES["quick"], options=METHODS["softmax"]))
    'resnet18'
    """
    options = {"width": 1.0, "spectral_norm": 3.0, "sensitive": True, "head": "linear"}
    options |= {**config.recipe.model, **config.options}
    width = "" if options["width"] == 1 else f" x{options['width']:g}"
    smooth, sensitive = options["spectral_norm"] is not None, options["sensitive"]
    # In the paper the two go together where the head is linear; what departs from it says so
    usual = options["head"] != "linear" or smooth == sensitive
    alone = "" if usual else " (sensitive)" if sensitive else " (not sensitive)"
    return f"{config.model}{width}{'+sn' if smooth else ''}{alone}"


def _no_network(entry: Entry) -> str:
    return f"{entry.name} asks for a network {{name!r}}, and there is none"


def _parse_networks(content: Mapping[str, Any], wanted: set[str]) -> dict[str, NetworkConfig]:
    """The networks that are written, and those of the methods that detectors ask for."""
    written: Mapping[str, Any] = content.get("networks", {})
    recipe = _parse_recipe(content.get("recipe", "quick"), None)
    networks = {}
    for name in [*written, *(method for method in METHODS if method in wanted and method not in written)]:
        asked = written.get(name) or {}
        keys = ("method", *(one.name for one in fields(NetworkConfig)))
        if not isinstance(asked, Mapping):
            raise InputError(f"The network {name!r} must be a mapping with {', '.join(keys)}. Got {asked!r} instead.")
        for key, value in asked.items():
            check_name(key, keys, f"The network {name!r} has no key {{name!r}}")
            accepts, words = _CHECKS.get(key, (lambda value: isinstance(value, str), "a word"))
            if not accepts(value):
                raise InputError(f"The {key} of the network {name!r} must be {words}. Got {value!r} instead.")
        method = find_method(asked.get("method", name if name in METHODS else "ddu"))
        networks[name] = NetworkConfig(
            model=asked.get("model", content["model"]),
            recipe=_parse_recipe(asked.get("recipe", {}), recipe),
            options={**content.get("options", {}), **method, **asked.get("options", {})},
            label=asked.get("label"),
        )
    return networks


def _parse_recipe(written: object, base: Recipe | None) -> Recipe:
    """A recipe by name, or changes to one: to the one that is named or, without a name, to `base`."""
    changes = {"name": written} if isinstance(written, str) else written
    if not isinstance(changes, Mapping) or (base is None and "name" not in changes):
        raise InputError(f"A recipe is written NAME, or {{name: NAME, FIELD: VALUE}}. Got {written!r} instead.")
    recipe = find_recipe(changes["name"]) if "name" in changes else base
    assert recipe is not None
    assignments = [f"{name}={_as_text(value)}" for name, value in changes.items() if name != "name"]
    return recipe.with_changes(**parse_changes(assignments))


def _as_text(value: object) -> str:
    """As on a command line."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _described(options: Mapping[str, Any]) -> list[str]:
    """Options in words; those of a nested mapping stand for themselves."""
    words = []
    for name, value in options.items():
        words += _described(value) if isinstance(value, Mapping) else [f"{name}={value}"]
    return words


def _listed(values: set[float]) -> str:
    return " and ".join(map(str, sorted(values)))


def _is_list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and bool(value) and all(isinstance(item, kind) for item in value)


# What each key of a file may hold, and how to say so
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "data": (lambda value: isinstance(value, str), "the name of a data set"),
    "ood": (_is_list_of(str), "a list of data sets"),
    "seeds": (lambda value: _is_list_of(int)(value) and min(value) >= 0, "a list of integers of at least 0"),
    "model": (lambda value: isinstance(value, str), "the name of a network"),
    "options": (lambda value: isinstance(value, Mapping), "a mapping of options of ddu.create_model"),
    "recipe": (lambda value: isinstance(value, str | Mapping), "a recipe's name, or a mapping with name and changes"),
    "limit": (lambda value: isinstance(value, int) and value > 0, "a positive integer"),
    "false_alarm_rate": (lambda value: isinstance(value, float) and 0 < value < 1, "a number between 0 and 1"),
    "networks": (lambda value: isinstance(value, Mapping), "a mapping of names to networks"),
    "detectors": (lambda value: isinstance(value, list) and bool(value), "a list of detectors"),
}
