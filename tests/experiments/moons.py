"""A comparison of a few seconds: the two moons against points all around them."""

from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from ddu.experiments import Comparison, parse_comparison
from ddu.results import Row


def write_plane(folder: Path) -> str:
    """Points of the plane, mostly far from the moons, as a set that has a name."""
    return write_points(folder / "plane.npz", np.random.default_rng(0).uniform(-4, 4, (500, 2)))


def write_points(path: Path, points: np.ndarray) -> str:
    """Points as a set that has a name."""
    np.savez(path, x=points.astype(np.float32), y=np.zeros(len(points), dtype=np.int64))
    return f"npz:{path}"


def moons(ood: str, detectors: list[Any], **changes: Any) -> Comparison:
    """A comparison on the two moons, of networks that hardly learn anything."""
    content = {"data": "two_moons", "ood": [ood], "model": "resffn2_16", "limit": 1500, "detectors": detectors}
    return parse_comparison(content | {"recipe": {"name": "two_moons", "epochs": 1}} | changes)


# What depends on the clock and on what else the machine does
COSTS = ("training_seconds", "seconds_per_thousand", "megabytes_per_thousand")


def lasting(rows: list[Row]) -> list[tuple[Any, ...]]:
    """What the same comparison has to give again."""
    return [(*astuple(row.key), row.value, row.status, row.error) for row in rows if row.metric not in COSTS]
