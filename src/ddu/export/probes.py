"""Inputs on which an exported graph has to agree with PyTorch: random, given, ambiguous, far out and degenerate.

They need not look like anything: whatever a network makes of them, both have to make the same of it.
"""

from collections.abc import Mapping

import numpy as np

Batch = dict[str, np.ndarray]

_COUNT = 24

# Given inputs that are looked at
_MOST = 256


def make_probes(
    example: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray] | None, seed: int = 0
) -> dict[str, Batch]:
    """Batches of inputs by kind, each by the names of the inputs.

    Args:
        example: Inputs of the right shapes, by name.
        given: Inputs of the user's, by name; None if there are none.
        seed: Decides what is drawn.
    """
    random = np.random.default_rng(seed)
    known = {name: values[:_MOST] for name, values in (given or example).items()}
    (first, *others) = known.values()
    if not others and first.dtype == np.uint8:
        (name,) = known
        found = {kind: {name: pixels} for kind, pixels in _images(first, random).items()}
    elif all(values.dtype.kind == "f" for values in known.values()):
        found = _floats(known, random)
    else:
        found = _tokens(known, random)
    return ({} if given is None else {"given": dict(known)}) | found


def smooth_images(count: int, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Images (sample, height, width, channel) of a few waves each, in bytes: more like photographs than noise is."""
    height, width, channels = shape
    y, x = np.linspace(0, 1, height)[:, None, None], np.linspace(0, 1, width)[None, :, None]
    angle, phase = (
        random.uniform(-9, 9, (2, count, 4, 1, 1, channels)),
        random.uniform(0, 7, (count, 4, 1, 1, channels)),
    )
    waves = np.sin(angle[0] * x + angle[1] * y + phase).mean(1)
    return (127.5 * (1 + waves)).round().astype(np.uint8)


def _images(known: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
    shape = known.shape[1:]
    smooth = smooth_images(_COUNT, shape, random)
    flat = np.stack([np.full(shape, value, np.uint8) for value in (0, 1, 127, 128, 254, 255)])
    point = np.zeros((1, *shape), np.uint8)
    point[0, shape[0] // 2, shape[1] // 2] = 255
    checks = (255 * (np.indices(shape[:2]).sum(0) % 2)).astype(np.uint8)[None, ..., None].repeat(shape[2], 3)
    return {
        "random": np.concatenate([random.integers(0, 256, (_COUNT, *shape), np.uint8), smooth]),
        "ambiguous": _halfway(known, random).round().astype(np.uint8),
        "far out": np.concatenate([255 - known[:_COUNT], np.where(smooth > 127, 255, 0).astype(np.uint8), checks]),
        "degenerate": np.concatenate([flat, point, 255 - point]),
    }


def _floats(known: Mapping[str, np.ndarray], random: np.random.Generator) -> dict[str, Batch]:
    found: dict[str, Batch] = {kind: {} for kind in ("random", "ambiguous", "far out", "degenerate")}
    for name, values in known.items():
        mean, std, shape = values.mean(0), values.std(0), (_COUNT, *values.shape[1:])
        found["random"][name] = mean + std * random.standard_normal(shape)
        found["ambiguous"][name] = _halfway(values, random)
        found["far out"][name] = mean + 10 * std * random.standard_normal(shape)
        zeros = np.zeros((5, *values.shape[1:]))
        zeros[1], zeros[2] = mean, 1
        if len(known) == 1:  # of several, NaN in one need not show
            zeros[3].flat[0], zeros[4].flat[-1] = np.nan, np.inf
        found["degenerate"][name] = zeros
    return {kind: {name: values.astype(np.float32) for name, values in batch.items()} for kind, batch in found.items()}


def _tokens(known: Mapping[str, np.ndarray], random: np.random.Generator) -> dict[str, Batch]:
    """Tokens among those that were given; of masks and types, which have few values, whole rows."""
    found: dict[str, Batch] = {kind: {} for kind in ("random", "ambiguous", "far out", "degenerate")}
    rows = random.integers(0, len(next(iter(known.values()))), (2, _COUNT))
    for name, values in known.items():
        one, other = values[rows[0]], values[rows[1]]
        if values.dtype.kind not in "iu" or values.ndim != 2 or len(np.unique(values)) <= 2:
            for kind in found:
                found[kind][name] = one
            continue
        half = values.shape[1] // 2
        found["random"][name] = random.choice(values.ravel(), one.shape)
        found["ambiguous"][name] = np.concatenate([one[:, :half], other[:, half:]], 1)
        found["far out"][name] = one[:, ::-1].copy()
        found["degenerate"][name] = one[:, :1].repeat(values.shape[1], 1)
    return found


def _halfway(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Averages of pairs."""
    rows = random.integers(0, len(values), (2, _COUNT))
    return values[rows].astype(np.float64).mean(0)
