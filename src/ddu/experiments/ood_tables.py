"""The paper's tables of OoD detection, declared as comparisons, and how their claims are judged.

Each row of a table is a registered method on the kind of network that it wants; an ablation puts the same scores on
networks of every kind.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddu.detectors import PLAIN, SMOOTH, find_method
from ddu.errors import NotMeasuredError
from ddu.experiments.compare import Comparison, Contender, NetworkSetup
from ddu.experiments.detector_page import summarise
from ddu.experiments.reproduction import Judgement, mean_value, only_one
from ddu.files import FilePath
from ddu.results import Row, Table
from ddu.training import Recipe

DENSITY, ENTROPY, ENERGY = "ddu_paper", "softmax", "energy"
RIVALS = (ENTROPY, ENERGY, "duq", "sngp")
ENSEMBLES = ("ensemble_pe", "ensemble_mi")
SCORES = (*RIVALS, DENSITY, "ddu", *ENSEMBLES)
"""The lines of a table; `ddu`, our default, is not the paper's."""

ON_PAR = 0.01
"""An AUROC that is lower by less than this is on par."""


@dataclass(frozen=True)
class OodTable(Comparison):
    """A comparison whose page is that of its reproduction."""

    def write_page(self, folder: FilePath) -> list[Path]:
        """No figures: the paper has a table."""
        return []


def rivals(
    models: Iterable[str],
    recipes: Mapping[str, Recipe],
    *,
    members: int,
    scores: Sequence[str] = SCORES,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The networks and detectors of a comparison in which each score has the network that it wants.

    Args:
        models: The architectures.
        recipes: How each kind of network is trained; scores whose kind has no recipe are left out.
        members: How many networks an ensemble has.
        scores: Names of methods.
        options: For `create_model`.
    """
    networks: dict[str, NetworkSetup] = {}
    detectors = list[Contender]()
    for model in models:
        for score in scores:
            method = find_method(score)
            kind, name = method.network, f"{model}-{method.network.name}"
            if kind.name in recipes:
                networks[name] = NetworkSetup(model, recipes[kind.name], {**(options or {}), **kind.options})
                detectors.append(Contender(score, name, members=members if method.members > 1 else 1, name=score))
    return {"networks": networks, "detectors": tuple(detectors)}


def ablation(
    models: Iterable[str],
    recipe: Recipe,
    *,
    members: int,
    scores: Sequence[str] = (ENTROPY, ENERGY, DENSITY, "ddu"),
    smooth: Sequence[bool] = (False, True),
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The networks and detectors of a comparison of the same scores on networks with and without spectral norm.

    Args:
        models: The architectures.
        recipe: How all networks are trained.
        members: How many networks an ensemble of those without spectral norm has; 1 has no ensembles.
        scores: Names of methods.
        smooth: Without spectral norm, with it, or both.
        options: For `create_model`.
    """
    networks: dict[str, NetworkSetup] = {}
    detectors = list[Contender]()
    for model in models:
        for regularised in smooth:
            kind = SMOOTH if regularised else PLAIN
            name = f"{model}-{kind.name}"
            networks[name] = NetworkSetup(model, recipe, {**(options or {}), **kind.options})
            detectors += [Contender(score, name, name=score) for score in scores]
            if members > 1 and not regularised:
                detectors += [Contender(score, name, members=members, name=score) for score in ENSEMBLES]
    return {"networks": networks, "detectors": tuple(detectors)}


def ood_tables(rows: Sequence[Row]) -> list[Table]:
    """What the paper's tables have: accuracy, ECE and AUROC; corruptions as their mean at each severity."""
    return summarise(rows, ("accuracy", "ece", "auroc"))


def judge_ood(rows: Sequence[Row]) -> Judgement:
    """Whether the density is the best of single networks, and on par with the better score of the ensemble."""
    return _judge_density(rows, _on_par)


def judge_imagenet(rows: Sequence[Row]) -> Judgement:
    """Whether it is the best of single networks and ahead of the ensemble, but for VGG-16 with its straight layers."""
    return _judge_density(rows, _ahead)


def _judge_density(rows: Sequence[Row], judge_against: Callable[[str, float, float], tuple[str, bool]]) -> Judgement:
    """The density against the best rival, and against the better score of the ensemble where there is one."""
    parts: dict[str, bool] = {}
    for architecture in architectures(rows):
        own = [row for row in rows if architecture_of(row) == architecture]
        for ood in ood_sets(own):
            on = f"{architecture} against {ood}"
            density = mean_value(own, "auroc", detector=DENSITY, ood=ood)
            rival, best = _best(_found(own, RIVALS, ood), f"rival on {on}")
            parts[f"On {on}: density {density:.2%}, best rival ({rival}) {best:.2%}; asked: density ahead"] = (
                density > best
            )
            ensemble = max(_found(own, ENSEMBLES, ood).values(), default=None)
            if ensemble is not None:
                words, part = judge_against(architecture, density, ensemble)
                parts[
                    f"On {on}: density {density:.2%}, better score of the ensemble {ensemble:.2%}; asked: {words}"
                ] = part
    return Judgement.of(parts)


def _on_par(architecture: str, density: float, ensemble: float) -> tuple[str, bool]:
    return f"density no more than {ON_PAR:.0%} behind", density >= ensemble - ON_PAR


def _ahead(architecture: str, density: float, ensemble: float) -> tuple[str, bool]:
    if architecture.startswith("vgg"):
        return "density not ahead", density <= ensemble
    return "density ahead", density > ensemble


def judge_ablation(rows: Sequence[Row]) -> Judgement:
    """Whether residual connections and spectral norm make the density what it is, and residual connections most of it.

    Means over the OoD sets; VGG-16 has no residual connections.
    """
    networks = {row.network for row in rows}
    straight = {name for name in networks if name.startswith("vgg")}

    def one_of(names: set[str], what: str, *, sn: bool) -> str:
        words = f"{what} {'with' if sn else 'without'} spectral norm"
        return only_one((name for name in names if name.endswith("+sn") == sn), words)

    residual, residual_sn = (one_of(networks - straight, "residual network", sn=sn) for sn in (False, True))
    vgg, vgg_sn = (one_of(straight, "VGG-16", sn=sn) for sn in (False, True))
    oods = ood_sets(rows)

    def found(network: str, detector: str = DENSITY) -> float:
        return sum(mean_value(rows, "auroc", network=network, detector=detector, ood=ood) for ood in oods) / len(oods)

    full, sensitive, none, smooth = map(found, (residual_sn, residual, vgg, vgg_sn))
    ahead = [
        ood
        for ood in oods
        if mean_value(rows, "auroc", network=vgg, detector=DENSITY, ood=ood)
        > _best(_found([row for row in rows if row.network == vgg], ENSEMBLES, ood), f"ensemble on {ood}")[1]
    ]
    entropy, energy = found(residual_sn, ENTROPY), found(residual_sn, ENERGY)
    return Judgement.of(
        {
            f"Density of {residual_sn} {full:.2%}, of {vgg} {none:.2%}, of {vgg_sn} {smooth:.2%}; asked: the first "
            "ahead": full > max(none, smooth),
            f"OoD sets on which the density of {vgg} is ahead of its ensemble: {', '.join(ahead) or 'none'}; asked: "
            "none": not ahead,
            f"Spectral norm adds {full - sensitive:+.2%} to the density of {residual} ({sensitive:.2%}), residual "
            f"connections add {sensitive - none:+.2%} to that of {vgg} ({none:.2%}); asked: spectral norm adds, but "
            "less": 0 < full - sensitive < sensitive - none,
            f"On {residual_sn}: density {full:.2%}, entropy {entropy:.2%}, softmax density {energy:.2%}; asked: "
            "density ahead": full > max(entropy, energy),
        }
    )


def judge_corruptions(rows: Sequence[Row]) -> Judgement:
    """Whether the density finds corruptions best, at every severity, and strong ones more easily; means over all."""
    parts: dict[str, bool] = {}
    for architecture in architectures(rows):
        own = [row for row in rows if architecture_of(row) == architecture]
        by_severity = {
            name: [mean_value(own, "auroc", detector=name, severity=severity) for severity in severities(own)]
            for name in (*RIVALS, DENSITY, "ensemble_pe")
            if any(row.detector == name and row.severity is not None and row.value is not None for row in own)
        }
        density = only_one([by_severity.pop(DENSITY)] if DENSITY in by_severity else [], f"density on {architecture}")
        means = {name: sum(values) / len(values) for name, values in by_severity.items()}
        mean, ensemble = sum(density) / len(density), means.pop("ensemble_pe", None)
        on, (rival, best) = f"On {architecture}", _best(means, f"rival on {architecture}")
        parts[f"{on}: density {mean:.2%}, best rival ({rival}) {best:.2%}; asked: density ahead"] = mean > best
        behind = [
            f"{level}"
            for level, found, *others in zip(
                severities(own), density, *(by_severity[name] for name in means), strict=True
            )
            if found <= max(others)
        ]
        parts[
            f"{on}: severities at which a rival is ahead of the density: {', '.join(behind) or 'none'}; asked: none"
        ] = not behind
        if ensemble is not None:
            parts[
                f"{on}: density {mean:.2%}, entropy of the ensemble {ensemble:.2%}; asked: density no more than "
                f"{ON_PAR:.0%} behind"
            ] = mean >= ensemble - ON_PAR
        told = ", ".join(f"{value:.2%}" for value in density)
        parts[f"{on}: AUROC of the density by severity {told}; asked: it rises"] = density == sorted(density)
    return Judgement.of(parts)


def architecture_of(row: Row) -> str:
    """The network of a row, with spectral norm or without."""
    return row.network.partition("+")[0]


def architectures(rows: Iterable[Row]) -> list[str]:
    """All networks, with spectral norm or without, in the order of the rows."""
    return list(dict.fromkeys(map(architecture_of, rows)))


def ood_sets(rows: Iterable[Row]) -> list[str]:
    """All OoD sets in the order of the rows."""
    return list(dict.fromkeys(row.ood for row in rows if row.ood is not None))


def severities(rows: Iterable[Row]) -> list[int]:
    """All severities of corruptions, the least first."""
    return sorted({row.severity for row in rows if row.severity is not None})


def _best(found: Mapping[str, float], what: str) -> tuple[str, float]:
    """The highest of the values by name."""
    if not found:
        raise NotMeasuredError(f"No {what} has an AUROC.")
    return max(found.items(), key=lambda item: item[1])


def _found(rows: Sequence[Row], detectors: Iterable[str], ood: str) -> dict[str, float]:
    """The AUROC of each of these detectors that has one: a detector may have failed, or not be part of a table."""
    measured = {row.detector for row in rows if row.metric == "auroc" and row.ood == ood and row.value is not None}
    return {name: mean_value(rows, "auroc", detector=name, ood=ood) for name in detectors if name in measured}
