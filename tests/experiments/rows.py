"""Rows as experiments would measure them, for tests of what is made of them."""

from typing import Any

from ddu.results import Row


def row(detector: str, value: float, metric: str = "auroc", **facts: Any) -> Row:
    """A row of seed 0 on resnet18 and mnist, unless the facts say otherwise."""
    common: dict[str, Any] = {"network": "resnet18", "data": "mnist", "seed": 0, "run": "12ab"}
    return Row(detector=detector, metric=metric, value=value, **{**common, **facts})
