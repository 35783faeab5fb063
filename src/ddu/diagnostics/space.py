"""Checks of the feature space: how many directions it uses, how it follows the inputs, and how far layers stretch."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ddu.diagnostics.checkup import NEEDS_HELD_OUT, NEEDS_NETWORK, Checkup, not_asked
from ddu.diagnostics.findings import Finding
from ddu.diagnostics.lipschitz import local_ratios, pair_ratios, perturbations
from ddu.diagnostics.norms import layer_norms
from ddu.diagnostics.sample import Sample
from ddu.diagnostics.spectrum import dead_features, spectrum, within_classes

# A share of features that are dead, and of directions without variance, that is worth a word
_DEAD = 0.25
# A lower ratio below this share of the usual one is collapse, an upper one above this multiple is lack of smoothness
_LOW, _HIGH = 0.01, 10.0
# Estimates of a norm fall short by less than 2 %, so that one above its bound by more is not kept
_BEYOND = 1.05
_FEWEST, _BATCH = 8, 64

_SHRINK = "Use shrinkage, as the default density does: ddu.DDU(model); or add samples."
_REDUNDANT = "Leave them to shrinkage, as ddu.DDU(model) does, or project them away: density={'pca': 0.99}."


def check_classes(checkup: Checkup) -> Iterator[Finding]:
    """Have the classes' covariances all their directions?"""
    sample = checkup.train or checkup.held_out
    if sample is None or sample.features is None:
        yield not_asked("rank", *(NEEDS_HELD_OUT if sample is None else NEEDS_NETWORK))
        return
    layers = checkup.by_layer(sample.features)
    name, features = list(layers.items())[-1]
    fitted = _fitted_counts(checkup, sample)
    checkup.tables["classes"] = [
        _class_row(label, checkup.class_names[label], features[sample.labels == label], int(fitted[label]))
        for label in range(len(checkup.class_names))
    ]
    checkup.tables["layers"] = [
        {
            "layer": layer,
            "features": z.shape[1],
            "dead_features": dead_features(z),
            **spectrum(within_classes(z, sample.labels))._asdict(),
        }
        for layer, z in layers.items()
    ]
    yield _samples(checkup, fitted, features.shape[1])
    last = checkup.tables["layers"][-1]
    yield _rank(last, name, sample, checkup)
    yield _dead(last, name)
    effective = last["effective_dimension"]
    yield Finding(
        "ok" if effective >= 2 else "warning",
        "effective dimension",
        f"Within the classes, the {last['features']} features of the {name} vary as in {effective:.1f} independent "
        f"directions of equal variance; their condition number is {last['condition']:.2g}.",
        effective,
        None
        if effective >= 2
        else "Nearly all variance lies along one line: train less long, or judge earlier layers.",
    )


def _fitted_counts(checkup: Checkup, sample: Sample) -> Tensor:
    """Samples of each class that the density was fitted to; where that is not known, those that are given."""
    if checkup.score is not None and checkup.score.densities:
        return checkup.score.densities[0].counts_.cpu()
    return torch.bincount(sample.labels, minlength=len(checkup.class_names))


def _class_row(label: int, name: str, features: Tensor, fitted: int) -> dict[str, Any]:
    row: dict[str, Any] = {"class": label, "name": name, "samples": fitted, "looked_at": len(features)}
    if len(features) < 2:
        return row | {"rank": None, "condition": None, "effective_dimension": None, "dead_features": None}
    found = spectrum(features - features.mean(0))
    return row | found._asdict() | {"dead_features": dead_features(features)}


def _samples(checkup: Checkup, fitted: Tensor, width: int) -> Finding:
    few, least = int((fitted <= width).sum()), int(fitted.min())
    message = (
        f"The smallest class, {checkup.class_names[int(fitted.argmin())]}, has {least:,} samples for a covariance of "
        f"{width:,} features; {few} of {len(fitted)} classes have no more samples than features."
    )
    if not few:
        return Finding("ok", "samples", message, least)
    if checkup.score is not None and any(density.shrinkage is None for density in checkup.score.densities):
        return Finding("problem", "samples", f"{message} Their covariances are singular.", least, _SHRINK)
    return Finding("note", "samples", f"{message} Shrinkage fills in what they cannot say.", least)


def _rank(last: dict[str, Any], name: str, sample: Sample, checkup: Checkup) -> Finding:
    rank, width = last["rank"], last["features"]
    message = f"Within the classes, {len(sample):,} samples vary in {rank:,} of {width:,} directions of the {name}."
    possible = min(width, len(sample) - len(sample.labels.unique()))
    if rank >= width:
        return Finding("ok", "rank", message, rank)
    if rank >= possible:
        remedy = "Give the training data: more samples than features tell." if checkup.train is None else None
        return Finding("note", "rank", f"{message} So few samples cannot tell about more.", rank, remedy)
    unshrunk = checkup.score is not None and any(one.shrinkage is None for one in checkup.score.densities)
    severity = "warning" if unshrunk or width - rank > _DEAD * width else "note"
    return Finding(severity, "rank", f"{message} The others are constant or follow from these.", rank, _REDUNDANT)


def _dead(last: dict[str, Any], name: str) -> Finding:
    dead, width = last["dead_features"], last["features"]
    message = f"{dead:,} of {width:,} features of the {name} are the same for every input."
    if dead <= _DEAD * width:
        return Finding("ok", "dead features", message, dead)
    remedy = "They tell nothing: train with a smaller learning rate, or judge by an earlier layer, features=[...]."
    return Finding("warning", "dead features", message, dead, remedy)


def check_lipschitz(checkup: Checkup) -> Iterator[Finding]:
    """Do features follow the inputs, neither too little nor too much?"""
    held_out = checkup.held_out
    if held_out is None or held_out.features is None:
        yield not_asked("sensitivity", *(NEEDS_HELD_OUT if held_out is None else NEEDS_NETWORK))
        return
    inputs = held_out.inputs
    if inputs is None or len(inputs) < _FEWEST:
        yield not_asked("sensitivity", f"it needs {_FEWEST} inputs of floats.", "Give more held-out inputs.")
        return
    tap, moved = checkup.tap, perturbations(inputs)
    assert tap is not None
    before = checkup.by_layer(held_out.features[held_out.rows])
    after = checkup.by_layer(torch.cat([tap(part).features.float().cpu() for part in moved.split(_BATCH)]))
    rows = []
    for name, z in before.items():
        pairs = pair_ratios(inputs, z)
        local = local_ratios(inputs, z, moved, after[name]).over(pairs.median)
        relative = pairs.over(pairs.median)
        rows.append(
            {
                "layer": name,
                "usual_ratio": pairs.median,
                "pairs_lower": relative.lower,
                "pairs_upper": relative.upper,
                "local_lower": local.lower,
                "local_upper": local.upper,
            }
        )
    _add_columns(checkup, rows)
    yield from _bounds(rows[-1], len(inputs))


def _add_columns(checkup: Checkup, rows: list[dict[str, Any]]) -> None:
    """Adds to the rows of the layers, or makes them."""
    known = checkup.tables.setdefault("layers", [{"layer": row["layer"]} for row in rows])
    for row, more in zip(known, rows, strict=True):
        row |= more


def _bounds(row: dict[str, Any], inputs: int) -> Iterator[Finding]:
    lower = _least(row["pairs_lower"], row["local_lower"])
    upper = max(row["pairs_upper"], row["local_upper"])
    unit = f"times the usual of {inputs} held-out inputs (the {row['layer']}; pairs and small perturbations)"
    message = f"The 1 % lowest ratios of feature to input distance are below {lower:.3g} {unit}."
    if not lower >= _LOW:  # NaN: all inputs have the same features
        message += " Different inputs have nearly the same features."
        remedy = "Train with residual connections and spectral norm, ddu.create_model or ddu.surgery.regularise."
        yield Finding("warning", "sensitivity", message, lower, remedy)
    else:
        yield Finding("ok", "sensitivity", message, lower)
    message = f"The 1 % highest ratios of feature to input distance are above {upper:.3g} {unit}."
    if not upper <= _HIGH:
        message += " A small change of an input throws its features far away."
        remedy = "Bound the layers with spectral norm, ddu.surgery.regularise, and batch-norm with spectral_batch_norm."
        yield Finding("warning", "smoothness", message, upper, remedy)
    else:
        yield Finding("ok", "smoothness", message, upper)


def _least(*values: float) -> float:
    return math.nan if any(math.isnan(value) for value in values) else min(values)


def check_norms(checkup: Checkup) -> Iterator[Finding]:
    """How far does each layer stretch its inputs, and is its bound kept?"""
    if checkup.tap is None:
        yield not_asked("spectral norms", *NEEDS_NETWORK)
        return
    if checkup.held_out is None or checkup.held_out.inputs is None:
        yield not_asked("spectral norms", "it needs an input of floats, of the right size.", NEEDS_HELD_OUT[1])
        return
    norms = layer_norms(checkup.tap, checkup.held_out.inputs[:1])
    if not norms:
        yield not_asked("spectral norms", "no layer is linear or a convolution.", "Nothing needs to be done.")
        return
    checkup.tables["norms"] = [one._asdict() for one in norms]
    largest = max(norms, key=lambda one: one.norm)
    bounded = [one for one in norms if one.bound is not None]
    beyond = [one for one in bounded if one.norm > _BEYOND * (one.bound or 0)]
    message = (
        f"{len(bounded)} of {len(norms)} layers have spectral norm; the largest norm is {largest.norm:.3g}, of "
        f"{largest.layer}."
    )
    if beyond:
        worst = max(beyond, key=lambda one: one.norm / (one.bound or 1))
        message += f" {worst.layer} has a norm of {worst.norm:.3g}, and its bound is {worst.bound:g}."
        remedy = "Inputs of this size are not those of training: run a batch in training mode, or resize the inputs."
        yield Finding("warning", "spectral norms", message, largest.norm, remedy)
    else:
        yield Finding("ok" if bounded else "note", "spectral norms", message, largest.norm)
