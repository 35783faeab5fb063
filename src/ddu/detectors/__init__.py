"""Detectors: one protocol, one file each, and the registry of methods that names them."""

import os
from collections.abc import Sequence

from torch import nn

from ddu.artifacts import load_artifact
from ddu.detectors.base import BaseDetector as BaseDetector
from ddu.detectors.ddu import DDU as DDU
from ddu.detectors.duq import DUQ as DUQ
from ddu.detectors.energy import Energy as Energy
from ddu.detectors.ensemble import Ensemble as Ensemble
from ddu.detectors.ensemble import as_members
from ddu.detectors.ensemble import join_members as join_members
from ddu.detectors.ensemble import load_members as load_members
from ddu.detectors.interface import AbstractDetector as AbstractDetector
from ddu.detectors.interface import Evidence as Evidence
from ddu.detectors.interface import join_evidence as join_evidence
from ddu.detectors.mahalanobis import Mahalanobis as Mahalanobis
from ddu.detectors.pytorch_ood import as_pytorch_ood as as_pytorch_ood
from ddu.detectors.pytorch_ood import from_pytorch_ood as from_pytorch_ood
from ddu.detectors.pytorch_ood import list_pytorch_ood as list_pytorch_ood
from ddu.detectors.registry import METHODS as METHODS
from ddu.detectors.registry import PLAIN as PLAIN
from ddu.detectors.registry import SMOOTH as SMOOTH
from ddu.detectors.registry import Method as Method
from ddu.detectors.registry import NetworkKind as NetworkKind
from ddu.detectors.registry import detector_classes
from ddu.detectors.registry import find_method as find_method
from ddu.detectors.registry import find_network_kind as find_network_kind
from ddu.detectors.registry import list_methods as list_methods
from ddu.detectors.registry import method_for_head as method_for_head
from ddu.detectors.registry import network_kinds as network_kinds
from ddu.detectors.registry import register as register
from ddu.detectors.saved import restore_detector
from ddu.detectors.sngp import SNGP as SNGP
from ddu.detectors.softmax import Softmax as Softmax
from ddu.errors import ArtifactError, InputError, LayerError, NotSupportedError
from ddu.features import FeatureSource

__all__ = [
    "DDU",
    "DUQ",
    "METHODS",
    "PLAIN",
    "SMOOTH",
    "SNGP",
    "AbstractDetector",
    "BaseDetector",
    "Energy",
    "Ensemble",
    "Evidence",
    "Mahalanobis",
    "Method",
    "NetworkKind",
    "Softmax",
    "as_pytorch_ood",
    "find_method",
    "find_network_kind",
    "from_pytorch_ood",
    "join_evidence",
    "join_members",
    "list_methods",
    "list_pytorch_ood",
    "load",
    "load_members",
    "method_for_head",
    "network_kinds",
    "register",
]


def load(
    folder: str | os.PathLike[str],
    model: nn.Module | Sequence[nn.Module],
    *,
    features: FeatureSource = None,
    strict: bool = True,
) -> BaseDetector:
    """Loads a detector that was saved with `save(folder)`.

    Args:
        folder: Where it was saved.
        model: The model that it was fitted to, with its weights; of an ensemble, its members.
        features: Where the features are; needed only if they came from a callable, which a file cannot hold.
        strict: Refuse a model whose weights are not those that the detector was fitted to; otherwise only warn.

    Returns:
        The detector, of the class that was saved.
    """
    content, tensors = load_artifact(folder)
    name, classes = content["detector"], detector_classes()
    if not isinstance(name, str) or name not in classes:
        raise ArtifactError(f"{folder} holds a detector {name!r}, and this ddu knows {', '.join(classes)}.")
    network = model if isinstance(model, nn.Module) else as_members(model)
    if features is not None:
        if classes[name] is not DDU:
            raise InputError(f"{folder} holds a detector {name!r}, which has no features= to replace.")
        DDU(network, features=features)  # or an error that is not the file's
    replaced = {} if features is None else {"features": features}
    try:
        return restore_detector(classes[name], content, tensors, network, strict=strict, **replaced)
    except LayerError:  # it takes the caller to find a layer in the model
        raise
    except (InputError, NotSupportedError) as error:
        raise ArtifactError(f"{folder} does not hold a {name} detector that works. {error} Save it again.") from error
