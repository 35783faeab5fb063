"""Detectors: one protocol, one file each."""

import os

from torch import nn

from ddu.artifacts import load_artifact
from ddu.detectors._ddu import DDU as DDU
from ddu.errors import ArtifactError
from ddu.features import FeatureSource

__all__ = ["DDU", "load"]

_BY_NAME = {DDU.name: DDU}


def load(
    folder: str | os.PathLike[str], model: nn.Module, *, features: FeatureSource = None, strict: bool = True
) -> DDU:
    """Loads a detector that was saved with `save(folder)`.

    Args:
        folder: Where it was saved.
        model: The model that it was fitted to, with its weights.
        features: Where the features are; needed only if they came from a callable, which a file cannot hold.
        strict: Refuse a model whose weights are not those that the detector was fitted to; otherwise only warn.
    """
    content, tensors = load_artifact(folder)
    name = content.get("detector")
    if name not in _BY_NAME:
        raise ArtifactError(f"{folder} holds a detector {name!r}, and this ddu knows {', '.join(_BY_NAME)}.")
    try:
        return _BY_NAME[name].restore(content, tensors, model, features=features, strict=strict)
    except (KeyError, TypeError) as error:
        raise ArtifactError(
            f"{folder} does not hold what a {name} detector needs ({error!r}): save it again."
        ) from error
