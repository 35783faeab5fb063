"""A comparison as a YAML file.

data: mnist                # in distribution
ood: [fashion_mnist]       # out of distribution; cifar10_c:fog is all severities of a corruption, cifar10_c all of all
seeds: [0]                 # every network is trained once per seed
model: resnet18            # of all networks, with
options: {width: 0.25}     # options of ddu.create_model, and
recipe: {name: quick, epochs: 3}
limit: 10000               # training samples; by default all
false_alarm_rate: 0.01     # that detectors are calibrated for
networks:                  # besides ddu, softmax, duq and sngp, or instead of them
  bent: {method: ddu, options: {spectral_norm: null}}
  duq: {recipe: {gradient_penalty: 0.1}}
detectors:
  - ddu                    # on the network that is trained for it
  - ddu: {network: bent, density: {covariance: shared}, name: ddu_shared}
  - ensemble_mi: {members: 3}
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ddu.detectors import SMOOTH, find_method, network_kinds
from ddu.errors import InputError
from ddu.experiments.compare import Comparison, Contender, NetworkSetup
from ddu.experiments.trained import expand
from ddu.files import FilePath
from ddu.messages import check_name, require
from ddu.training import Recipe, find_recipe, parse_changes


def read_comparison(path: FilePath) -> Comparison:
    """Reads a comparison from a YAML file."""
    yaml = require("yaml", extra="compare", purpose="Reading a comparison")
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {error}") from error
    return parse_comparison(content)


def parse_comparison(content: object) -> Comparison:
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
    detectors = tuple(map(parse_contender, content["detectors"]))
    for contender in detectors:
        contender.check_network({**network_kinds(), **content.get("networks", {})})
    return Comparison(
        data=content["data"],
        ood=expand(content["ood"]),
        networks=_parse_networks(content, {contender.network for contender in detectors}),
        detectors=detectors,
        seeds=tuple(content.get("seeds", Comparison.seeds)),
        limit=content.get("limit", Comparison.limit),
        false_alarm_rate=content.get("false_alarm_rate", Comparison.false_alarm_rate),
    )


def parse_contender(written: object) -> Contender:
    """A detector as it stands in a file: the name of its method, or the name and options.

    >>> parse_contender({"ddu": {"density": {"covariance": "shared"}}}).name
    'ddu covariance=shared'
    """
    name, options = next(iter(written.items())) if isinstance(written, Mapping) and written else (written, {})
    if not isinstance(name, str) or not isinstance(options, Mapping):
        raise InputError(f"A detector is written NAME, or NAME: {{OPTION: VALUE}}. Got {written!r} instead.")
    if isinstance(written, Mapping) and len(written) > 1:
        raise InputError(f"Each detector is an item of its own, with a dash. Got {', '.join(written)} in one.")
    method, options = find_method(name), dict(options)
    if method.free_options is not None:
        known = [*method.free_options, "network", "name", *["members"] * (method.members > 1)]
        for option in options:
            check_name(option, known, f"The detector {name!r} has no option {{name!r}}")
    network = options.pop("network", method.network.name)
    for option, value in {"network": network, "name": options.get("name", "")}.items():
        if not isinstance(value, str):
            raise InputError(f"The {option} of {name} must be text. Got {value!r} instead.")
    members = options.pop("members", method.members) if method.members > 1 else 1
    if not isinstance(members, int) or members < min(method.members, 2):
        raise InputError(f"The members of {name} must be an integer of at least 2. Got {members!r} instead.")
    label = options.pop("name", None) or " ".join([name, *_described(options)])
    return Contender(name, network, options, members, label)


def _parse_networks(content: Mapping[str, Any], wanted: set[str]) -> dict[str, NetworkSetup]:
    """The networks in the file, and the kinds of networks that detectors ask for besides."""
    written: Mapping[str, Any] = content.get("networks", {})
    recipe = _parse_recipe(content.get("recipe", "quick"), None)
    networks, kinds = {}, network_kinds()
    for name in [*written, *(kind for kind in kinds if kind in wanted and kind not in written)]:
        asked = written.get(name) or {}
        keys = ("method", *(one.name for one in fields(NetworkSetup)))
        if not isinstance(asked, Mapping):
            raise InputError(f"The network {name!r} must be a mapping with {', '.join(keys)}. Got {asked!r} instead.")
        for key, value in asked.items():
            check_name(key, keys, f"The network {name!r} has no key {{name!r}}")
            accepts, words = _CHECKS.get(key, (lambda value: isinstance(value, str), "text"))
            if not accepts(value):
                raise InputError(f"The {key} of the network {name!r} must be {words}. Got {value!r} instead.")
        kind = find_method(asked["method"]).network if "method" in asked else kinds.get(name, SMOOTH)
        networks[name] = NetworkSetup(
            model=asked.get("model", content["model"]),
            recipe=_parse_recipe(asked.get("recipe", {}), recipe),
            options={**content.get("options", {}), **kind.options, **asked.get("options", {})},
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
