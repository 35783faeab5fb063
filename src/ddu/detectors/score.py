"""A score is a sum of parts: how unusual each layer of the network is for an input.

    score(x) = Σ_p max((u_p(x) - centre_p) / scale_p, -1)

u_p is minus the log-density of one view of one layer's features, or the energy of the logits. A part that is sure of an
input counts for no more than -1, so that no other part is outvoted: far out, a network's logits are huge and its energy
is as low as can be. The paper's score is one part, not standardised: minus the log-density of the penultimate features.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from ddu.density import GaussianDensity, check_labels, check_state
from ddu.errors import FeatureError, InputError, LabelError
from ddu.measures import energy
from ddu.messages import check_name

View = Literal["raw", "shares"]

# A part is divided by the distance from its median to this quantile of held-out data, of a normal variable 1.645 σ
_UPPER = 0.95
_NORMAL_UPPER = 1.6448536269514722

# Of single precision, in which parts are scored
_ROUNDING = 1e-6

# The least that a standardised part contributes: as far below the median as the quantile above lies above it
_LEAST = -1.0


def raw(z: Tensor) -> Tensor:
    """The features as they are."""
    return z


def shares(z: Tensor) -> Tensor:
    """Where a feature vector points and how large it is, kept apart: ±√(|z_i| / Σ|z|) and log Σ|z|, (sample, d + 1).

    Small features lie at the centre of raw ones, near everything; here they have a size of their own. The root makes
    shares, which have a long tail, more nearly Gaussian; negative features keep their sign.

    >>> shares(torch.tensor([[9.0, 0.0, 16.0]]))
    tensor([[0.6000, 0.0000, 0.8000, 3.2189]])
    """
    size = z.abs().sum(1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)  # a silent layer has no log
    return torch.cat([z.sign() * (z.abs() / size).sqrt(), size.log()], 1)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {"raw": raw, "shares": shares}
assert tuple(VIEWS) == get_args(View)


class Part:
    """One term of a score: minus the log-density of a view of one layer's features, or the energy of the logits.

    Args:
        name: What it looks at, for people.
        layer: Which of the layers it looks at.
        density: Is fitted to the view; None is the energy of the logits.
        view: How the features are looked at: "raw" or "shares".
    """

    def __init__(self, name: str, layer: int = 0, density: GaussianDensity | None = None, view: View = "raw"):
        self.name, self.layer, self.density, self.view = name, layer, density, view
        # Of the energies: how many, their mean, and the sum of squares about it
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def update(
        self, features: Tensor, logits: Tensor, labels: Tensor, expected_samples: int | None, reserved: int = 0
    ) -> None:
        """Learns from samples of the training data, of which there will be so many in all, where that is known.

        The other parts are going to need `reserved` bytes of the memory that is available now.
        """
        if self.density is None:
            self._add(energy(logits.cpu().double()))
        else:
            z = self.seen(features)
            self.density.update(z, labels, expected_samples=expected_samples, reserved=reserved)

    def merge(self, other: "Part") -> None:
        """Adds the samples that the same part has seen elsewhere."""
        if self.density is not None and other.density is not None:
            self.density.merge(other.density)
        self._merge(other._count, other._mean, other._squares)

    def value(self, features: Tensor, logits: Tensor) -> Tensor:
        """What is standardised, (sample,); larger is more unknown."""
        if self.density is None:
            return energy(logits.float())
        z, relative = self.seen(features), self.density.background
        return -(self.density.relative_log_density(z) if relative else self.density.log_density(z))

    def expected(self) -> tuple[float, float]:
        """The mean and the deviation of its value on the training distribution, without asking data for them.

        Minus the log-density of a point from a Gaussian of d features is its entropy plus half of a centred χ² variable
        with d degrees of freedom, of variance d / 2. A relative one, whose background takes away some of both, has the
        difference of the entropies, and varies by no more than that. An energy is as it was on the training data.
        """
        if self.density is not None:
            background = self.density.background_entropy_ if self.density.background else 0.0
            return self.density.entropy_ - background, math.sqrt(self.density.dim_ / 2)
        return self._mean, math.sqrt(self._squares / max(self._count - 1, 1))

    def _add(self, energies: Tensor) -> None:
        if len(energies):
            mean = energies.mean()
            self._merge(len(energies), float(mean), float((energies - mean).square().sum()))

    def _merge(self, samples: int, mean: float, squares: float) -> None:
        """Adds to the moments of the energies, by the formula of `ClassMoments`."""
        count, delta = self._count + samples, mean - self._mean
        if samples:
            self._squares += squares + delta**2 * self._count * samples / count
            self._mean += delta * samples / count
        self._count = count

    def seen(self, features: Tensor) -> Tensor:
        """The view of a layer's features."""
        # Half precision has too few digits for shares
        half = features.dtype in (torch.float16, torch.bfloat16)
        return VIEWS[self.view](features.float() if half else features)


class Score:
    """A sum of parts, each standardised: first by what can be expected of it, then by held-out data.

    A density alone is not standardised, so that the score is minus a log-density.

    Args:
        parts: The parts.
        widths: The number of features of each layer; in a batch they stand side by side.

    Attributes:
        centre: Is subtracted from each part, a number for each.
        scale: Divides what is left, a number for each.
    """

    def __init__(self, parts: Iterable[Part], widths: Sequence[int]):
        self.parts = list(parts)
        self.widths = list(widths)
        self.centre = [0.0] * len(self.parts)
        self.scale = [1.0] * len(self.parts)

    @property
    def densities(self) -> list[GaussianDensity]:
        """The densities, in the order of the parts."""
        return [part.density for part in self.parts if part.density is not None]

    @property
    def is_standardized(self) -> bool:
        """Whether the parts are standardised."""
        return len(self.parts) > 1

    def update(self, features: Tensor, logits: Tensor, labels: Tensor, expected_samples: int | None = None) -> None:
        """Learns from samples of the training data, (sample, feature) of all layers side by side."""
        reserved = 0
        for part, z in self._by_part(features):
            part.update(z, logits, labels, expected_samples, reserved)
            density = part.density
            if density is not None and density.is_fitted:  # what it holds is not available any more
                reserved += density.memory_needed_ - sum(one.nbytes for one in density.moments_.tensors().values())

    def downdate(self, features: Tensor, labels: Tensor) -> None:
        """Forgets samples that every density has seen; of each class, two must be left."""
        check_labels(labels, samples=len(features), num_classes=len(self.densities[0].counts_))
        counts = self.densities[0].counts_.cpu()
        left = counts - torch.bincount(labels.cpu(), minlength=len(counts))
        few = ((left >= 0) & (left < 2)).nonzero().flatten().tolist()
        if few:
            raise LabelError(
                f"Class {few[0]} has {int(counts[few[0]])} samples, of which {int(left[few[0]])} would be left, and a "
                "density needs at least 2: forget fewer, or fit again without this class."
            )
        forgotten: list[tuple[GaussianDensity, Tensor]] = []
        try:
            for part, z in self._by_part(features):
                if part.density is not None:
                    part.density.downdate(part.seen(z), labels)
                    forgotten.append((part.density, part.seen(z)))
            for density in self.densities:
                density.prepare()
        except BaseException:
            for density, z in forgotten:  # all of them forget, or none
                density.update(z, labels)
            raise

    def merge(self, other: "Score") -> Self:
        """Adds the samples that a score of the same parts has seen elsewhere, before either is prepared."""
        if self.widths != other.widths:
            raise FeatureError(
                f"A score of layers of {self.widths} features does not merge with one of {other.widths}: fit both with "
                "the same network."
            )
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.merge(theirs)
        return self

    def prepare(self) -> Self:
        """Factorises the densities, and standardises by what can be expected."""
        for density in self.densities:
            density.prepare()
        if self.is_standardized:
            centre, deviation = zip(*(part.expected() for part in self.parts), strict=True)
            self.centre = list(centre)
            self.scale = [_divisor(_NORMAL_UPPER * one, about) for one, about in zip(deviation, centre, strict=True)]
        return self

    def values(self, features: Tensor, logits: Tensor) -> Tensor:
        """What the parts say before they are standardised, (sample, part)."""
        return torch.stack([part.value(z, logits) for part, z in self._by_part(features)], 1)

    def terms(self, values: Tensor) -> Tensor:
        """What each part contributes, (sample, part); the score is their sum."""
        if not self.is_standardized:
            return values
        return ((values - values.new_tensor(self.centre)) / values.new_tensor(self.scale)).clamp(min=_LEAST)

    def standardized(self, values: Tensor) -> Self:
        """A score of the same parts in which the median of these held-out values is 0, and their 95 % quantile 1."""
        median, upper = np.quantile(values.double().cpu().numpy(), [0.5, _UPPER], axis=0)
        score = copy.copy(self)
        score.centre = median.tolist()
        score.scale = [_divisor(one, about) for one, about in zip((upper - median).tolist(), score.centre, strict=True)]
        return score

    def tensors(self, *, moments: bool) -> dict[str, Tensor]:
        """What it scores with, by name, and with `moments` what it goes on learning from."""
        own = {name: torch.tensor(getattr(self, name), dtype=torch.float64) for name in ("centre", "scale")}
        return own | {
            f"{index}.{name}": tensor
            for index, part in enumerate(self.parts)
            if part.density is not None
            for name, tensor in part.density.state_tensors(moments=moments, factors=True).items()
        }

    @classmethod
    def restore(cls, parts: Sequence[Part], tensors: dict[str, Tensor]) -> Self:
        """A score from parts that have learned nothing, and `tensors`."""
        own = {name: tensor for name, tensor in tensors.items() if "." not in name}
        others = {name: tensor for name, tensor in tensors.items() if name not in own}
        learned = split_names(others, [str(index) for index, part in enumerate(parts) if part.density], "part")
        check_state(own, {name: torch.empty(len(parts), dtype=torch.float64) for name in ("centre", "scale")})
        if (own["scale"] <= 0).any():
            raise InputError(f"The learned tensor 'scale' must be above 0. Got {own['scale'].tolist()} instead.")
        widths: dict[int, int] = {}
        for index, part in enumerate(parts):
            if part.density is not None:
                density = part.density = GaussianDensity.restore(part.density.get_params(), learned[str(index)])
                density.num_classes = len(density.counts_)
                widths.setdefault(part.layer, density.num_features_ - (part.view == "shares"))
        score = cls(parts, list(widths.values()))
        score.centre, score.scale = own["centre"].tolist(), own["scale"].tolist()
        return score

    def graph(self) -> "ScoreGraph":
        """The same as a module that can be exported."""
        return ScoreGraph(self)

    def _by_part(self, features: Tensor) -> Iterator[tuple[Part, Tensor]]:
        if features.shape[1] != sum(self.widths):
            raise FeatureError(
                f"The densities are of {sum(self.widths)} features, these are {features.shape[1]}. Use features of the "
                "same layers of the same network, or fit again."
            )
        layers = features.split(self.widths, dim=1)
        return ((part, layers[part.layer]) for part in self.parts)


class ScoreGraph(nn.Module):
    """The terms of a `Score`, in steps that do not depend on the data."""

    centre: Tensor
    scale: Tensor

    def __init__(self, score: Score):
        super().__init__()
        self.widths, self.is_standardized = score.widths, score.is_standardized
        self.layers = [(part.layer, part.view) for part in score.parts]
        self.densities = nn.ModuleList(
            nn.Identity() if part.density is None else part.density.graph() for part in score.parts
        )
        for name in ("centre", "scale"):
            self.register_buffer(name, torch.tensor(getattr(score, name), dtype=torch.float32))

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """What each part contributes, (sample, part)."""
        split, values = features.split(self.widths, dim=1), []
        for (layer, view), density in zip(self.layers, self.densities, strict=True):
            is_energy = isinstance(density, nn.Identity)
            values.append(energy(logits) if is_energy else -density(VIEWS[view](split[layer])))
        terms = torch.stack(values, 1)
        return ((terms - self.centre) / self.scale).clamp(min=_LEAST) if self.is_standardized else terms


def _divisor(scale: float, centre: float) -> float:
    """The scale, or 1 for a part that varies by rounding alone, such as the energy of log-probabilities."""
    return scale if scale > _ROUNDING * max(1.0, abs(centre)) else 1.0


def split_names(tensors: dict[str, Tensor], groups: Sequence[str], kind: str) -> dict[str, dict[str, Tensor]]:
    """Tensors by the group in front of the first dot in their names."""
    split: dict[str, dict[str, Tensor]] = {group: {} for group in groups}
    for name, tensor in tensors.items():
        group, _, own = name.partition(".")
        check_name(group, split, f"There must be no {kind} {{name!r}} in the learned tensors")
        split[group][own] = tensor
    return split
