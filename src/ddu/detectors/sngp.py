"""SNGP (Liu et al., "Simple and principled uncertainty estimation with deterministic deep learning", 2020)."""

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from ddu.density import check_state
from ddu.detectors.base import BaseDetector, Evidence
from ddu.errors import InputError
from ddu.features import FeatureBatch, FeatureTap, unwrapped
from ddu.features.places import find_layer
from ddu.layers import GaussianProcessHead, LaplacePosterior, mean_field_logits, monte_carlo_logits
from ddu.measures import entropy

Method = Literal["monte_carlo", "mean_field"]


class SNGP(BaseDetector):
    """Scores inputs by the entropy of the mean prediction under the posterior of a Gaussian-process head.

    Logits are Gaussian, with the network's as mean and one variance for all classes. It needs a network that was
    trained with a `ddu.layers.GaussianProcessHead`, as `ddu.create_model(..., head="sngp")` gives; `fit` sums the exact
    precision of that head in one pass over the training data.

    Args:
        model: A classifier whose logits come from a `GaussianProcessHead`.
        method: How the mean of the softmax is taken: "monte_carlo", or "mean_field", which scales the logits down.
        samples: Draws of the Monte Carlo method, the same for every input.
        seed: Decides the draws.
        factor: λ of the mean-field method, logits / √(1 + λ variance); π/8 approximates the integral, and more is less
            sure.
        ridge: Precision of the prior on the head's weights.
        class_names: Names for the classes, for printing.

    Attributes:
        posterior: What is known of the head's weights; None before `fit`.
    """

    name = "sngp"
    tap: FeatureTap

    def __init__(
        self,
        model: nn.Module,
        *,
        method: Method = "monte_carlo",
        samples: int = 100,
        seed: int = 0,
        factor: float = math.pi / 8,
        ridge: float = 1.0,
        class_names: Sequence[str] | None = None,
    ):
        if method not in get_args(Method):
            raise InputError(
                f"The 'method' parameter of SNGP must be 'monte_carlo' or 'mean_field'. Got {method!r} instead."
            )
        if not isinstance(samples, int) or samples < 1:
            raise InputError(
                f"The 'samples' parameter of SNGP must be an integer of at least 1. Got {samples!r} instead."
            )
        if not isinstance(seed, int) or not -(2**63) <= seed < 2**64:
            raise InputError(f"The 'seed' parameter of SNGP must be an integer of 64 bits. Got {seed!r} instead.")
        if not isinstance(factor, float | int) or not 0 <= factor <= sys.float_info.max:
            raise InputError(f"The 'factor' parameter of SNGP must be a float of at least 0. Got {factor!r} instead.")
        head = find_layer(model, GaussianProcessHead, 'ddu.create_model(..., head="sngp")')
        super().__init__(FeatureTap(model, {"kind": "output", "layer": f"{head}.features".lstrip(".")}), class_names)
        self.method: Method = method
        self.samples, self.seed, self.factor, self.ridge = samples, seed, factor, ridge
        self.posterior: LaplacePosterior | None = None

    @property
    def is_fitted(self) -> bool:
        """Whether the posterior is known."""
        return self.posterior is not None

    def variance(self, x: Any) -> Tensor:
        """The variance of the logits of inputs, (batch,)."""
        self._need_fit()
        return self._variance(self.tap(x))

    def _collect(self, batches: Iterable[FeatureBatch], expected_samples: int | None) -> LaplacePosterior | None:
        posterior: LaplacePosterior | None = None
        for batch in batches:
            posterior = posterior or LaplacePosterior(batch.features.shape[1], self.ridge)
            posterior.update(batch.features)
        return posterior

    def _finish(self, collected: LaplacePosterior) -> None:
        self.posterior = collected

    def _evidence(self, batch: FeatureBatch) -> Evidence:
        logits, variance = batch.logits.double(), self._variance(batch).double()
        if self.method == "mean_field":
            mean = mean_field_logits(logits, variance, self.factor)
        else:
            generator = torch.Generator().manual_seed(self.seed)
            noise = torch.randn(self.samples, logits.shape[1], generator=generator, dtype=torch.float64)
            mean = monte_carlo_logits(logits, variance, noise.to(logits.device))
        return Evidence(mean, entropy(mean).float())

    def _variance(self, batch: FeatureBatch) -> Tensor:
        assert self.posterior is not None
        return self.posterior.variance(batch.features)

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("method", "samples", "seed", "factor", "ridge")}

    def _tensors(self) -> dict[str, Tensor]:
        assert self.posterior is not None
        return {"scatter": self.posterior.scatter}

    def _movable(self) -> Iterable[Any]:
        return [] if self.posterior is None else [self.posterior]

    @classmethod
    def _rebuild(cls, model: nn.Module, options: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        detector = cls(model, **options)
        head = unwrapped(model).get_submodule(find_layer(model, GaussianProcessHead, ""))
        assert isinstance(head, GaussianProcessHead)
        posterior = LaplacePosterior(head.features.num_features, detector.ridge)
        check_state(tensors, {"scatter": posterior.scatter})
        posterior.scatter = tensors["scatter"]
        posterior.prepare()
        detector.posterior = posterior
        return detector
