"""Deep ensembles (Lakshminarayanan et al., "Simple and scalable predictive uncertainty estimation", 2017).

Different from the original: the members' probabilities are averaged first and then get one temperature, not each member
its own.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from ddu.artifacts import load_artifact
from ddu.detectors.base import BaseDetector, Evidence
from ddu.detectors.saved import INPUTS, KEPT
from ddu.errors import ArtifactError, InputError
from ddu.features import FeatureBatch, LogitsTap, unwrapped
from ddu.features.forward import check_logits
from ddu.measures import expected_entropy, log_mean_softmax, mutual_information, predictive_entropy

Score = Literal["mutual_information", "predictive_entropy", "expected_entropy"]


class Decomposition(NamedTuple):
    """predictive_entropy = expected_entropy + mutual_information, in nats, each (batch,)."""

    predictive_entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor


def join_members(batches: Sequence[FeatureBatch]) -> FeatureBatch:
    """What each member makes of the same inputs, as one batch: that of `EnsembleTap`."""
    for batch in batches:
        check_logits(batch.logits)  # their mixture no longer shows it
    outputs = [batch.logits.float() for batch in batches]
    logits = torch.stack([output.to(outputs[0].device) for output in outputs])
    return FeatureBatch(logits.transpose(0, 1).flatten(1), log_mean_softmax(logits), batches[0].labels)


class EnsembleTap:
    """Runs every member; in the batch, the features are the members' logits and the logits those of their mixture.

    The members run one after the other: on a CPU, one vectorised call (`torch.func`) is no faster (`python -m
    benchmarks ensembles`).
    """

    def __init__(self, members: nn.ModuleList):
        self.model: nn.Module = members
        self.taps = [LogitsTap(member) for member in members]

    def __call__(self, inputs: Any) -> FeatureBatch:
        if isinstance(inputs, FeatureBatch):
            return inputs
        return join_members([tap(inputs) for tap in self.taps])

    def member_logits(self, batch: FeatureBatch) -> Tensor:
        """The members' logits in a batch, (member, batch, class)."""
        return batch.features.unflatten(1, (len(self.taps), -1)).transpose(0, 1)

    def __repr__(self) -> str:
        return f"EnsembleTap({len(self.taps)} x {type(self.taps[0].model).__name__})"


class Ensemble(BaseDetector):
    """Scores inputs by how much networks that were trained alike disagree.

    The probabilities are the mean of the members', and the aleatoric uncertainty is their entropy, as in the paper:
    `decompose` takes the disagreement out of it. There is nothing to fit. The scores are those of the logits as they
    are: the temperature, which `calibrate` sets, only changes the probabilities.

    `save` writes the members' weights too; `load_members` reads them into networks, and `ddu.load(folder, members)` the
    ensemble.

    Args:
        models: The members: classifiers that return logits for the same classes.
        score: "mutual_information", the disagreement alone; "predictive_entropy", the entropy of the mean, which is
            also high where all members find an input ambiguous; or "expected_entropy", the part that is ambiguity.
        class_names: Names for the classes, for printing.

    >>> models = [nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)]
    >>> parts = Ensemble(models).decompose(torch.randn(5, 2))
    >>> torch.allclose(parts.predictive_entropy, parts.expected_entropy + parts.mutual_information)
    True
    """

    name = "ensemble"
    needs_fit = False
    tap: EnsembleTap

    def __init__(
        self,
        models: Sequence[nn.Module] | nn.ModuleList,
        *,
        score: Score = "mutual_information",
        class_names: Sequence[str] | None = None,
    ):
        if score not in get_args(Score):
            raise InputError(
                "The 'score' parameter of Ensemble must be 'mutual_information', 'predictive_entropy' or "
                f"'expected_entropy'. Got {score!r} instead."
            )
        super().__init__(EnsembleTap(as_members(models)), class_names)
        self.score: Score = score

    def decompose(self, x: Any) -> Decomposition:
        """The entropy of the mean prediction, and its parts: that of the members, and their disagreement."""
        return self._decompose(self.tap(x))

    def _evidence(self, batch: FeatureBatch) -> Evidence:
        return Evidence(batch.logits, getattr(self._decompose(batch), self.score))

    def _decompose(self, batch: FeatureBatch) -> Decomposition:
        # In double precision: where members agree, the mutual information is a small difference of large numbers
        logits = self.tap.member_logits(batch).double()
        parts = predictive_entropy(logits), expected_entropy(logits), mutual_information(logits)
        return Decomposition(*(part.float() for part in parts))

    def _options(self) -> dict[str, Any]:
        return {"score": self.score}

    def _tensors(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}


def as_members(models: Sequence[nn.Module] | nn.ModuleList) -> nn.ModuleList:
    """Networks as one module, whose weights are those of all of them."""
    members = list(models) if isinstance(models, Sequence | nn.ModuleList) else []
    if len(members) < 2 or not all(isinstance(member, nn.Module) for member in members):
        raise InputError("An ensemble needs a list of at least two torch.nn.Modules.")
    return nn.ModuleList(unwrapped(member) for member in members)


def load_members(folder: str | os.PathLike[str], make_model: Callable[[], nn.Module]) -> list[nn.Module]:
    """The members of an ensemble that was saved in `folder`, with their weights.

    Args:
        folder: Where the ensemble was saved.
        make_model: Makes a network of the members' architecture, for instance `lambda: ddu.create_model("resnet18")`.

    Returns:
        The members: `ddu.load(folder, members)` is the ensemble.
    """
    content, tensors = load_artifact(folder)
    if content["detector"] != Ensemble.name:
        raise ArtifactError(f"{folder} holds a detector {content['detector']!r}, which has no members to load.")
    weights: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith((KEPT, INPUTS)):
            continue
        member, _, own_name = name.partition(".")
        if not re.fullmatch("[0-9]{1,9}", member):
            raise ArtifactError(
                f"{folder} holds a tensor {name!r}, which belongs to no member: save the ensemble again."
            )
        weights.setdefault(int(member), {})[own_name] = tensor
    models = []
    for member, state in sorted(weights.items()):
        model = make_model()
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise ArtifactError(f"The members in {folder} are not of this architecture: {error}") from error
        bad = [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]
        if bad:
            raise ArtifactError(
                f"The weight {bad[0]!r} of member {member} in {folder} is not finite: save the ensemble again."
            )
        models.append(model)
    return models
