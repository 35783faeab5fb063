"""Which samples are worth a label.

The functions hold the maths: they take scores, larger is more worth a label, and return positions. The classes are
rules for choosing: they say which scores to take. An acquisition function of the command line is a rule and the
registered method whose detector gives the scores. All randomness comes from the generator: it also orders equal scores.
"""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from ddu.active.candidates import Candidates
from ddu.detectors import DDU, PLAIN, BaseDetector, Method, find_method, list_methods
from ddu.errors import FewSamplesWarning, InputError, NotSupportedError
from ddu.features import FeatureBatch
from ddu.messages import check_name
from ddu.training import RECIPES

Score = Literal["epistemic", "aleatoric"]

# A mutual information is a difference of entropies: so much below zero it is rounding
_ROUNDING = 1e-6


def top_k(scores: np.ndarray, k: int, random: np.random.Generator) -> np.ndarray:
    """Positions of the k largest scores, the largest first; equal ones in random order.

    >>> top_k(np.array([0.1, 0.7, 0.3]), 2, np.random.default_rng(0))
    array([1, 2])
    """
    return np.lexsort((random.random(len(scores)), -scores))[:k]


def gumbel_top_k(log_weights: np.ndarray, k: int, random: np.random.Generator) -> np.ndarray:
    """Positions of k samples drawn one after the other, each with a probability in proportion to its weight.

    The k largest of log w + G, with G Gumbel distributed, are such a draw without replacement (Kool et al., "Stochastic
    beams and where to find them", 2019). Weights of zero come last, in random order.
    """
    return top_k(log_weights + random.gumbel(size=len(log_weights)), k, random)


def power_log_weights(scores: np.ndarray, power: float) -> np.ndarray:
    """β log s: the larger β, the nearer to the k largest; 0 is uniform over all s > 0."""
    lowest = scores.min(initial=0.0)
    if lowest < -_ROUNDING:
        raise InputError(
            f"Sampling in proportion to scores needs scores of at least 0, and the lowest of these {len(scores)} is "
            f"{lowest:.4g}: sample by='rank', as log-densities need."
        )
    with np.errstate(divide="ignore"):
        return np.where(scores > 0, power * np.log(scores.clip(min=0)), -np.inf)


def rank_log_weights(scores: np.ndarray, power: float, random: np.random.Generator) -> np.ndarray:
    """-β log r, with r = 1 for the largest score: whatever their scale, only the order of the scores counts."""
    ranks = np.empty(len(scores))
    ranks[top_k(scores, len(scores), random)] = np.arange(1, len(scores) + 1)
    return -power * np.log(ranks)


def within_quantile(scores: np.ndarray, quantile: float) -> np.ndarray:
    """Positions of the scores up to a quantile of them.

    >>> within_quantile(np.array([5.0, 1.0, 9e9, 2.0]), 0.75)
    array([0, 1, 3])
    """
    return np.flatnonzero(scores <= np.quantile(scores, quantile, method="lower"))


def diverse_top_k(
    detector: DDU, batch: FeatureBatch, k: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and scores of k samples, each the least likely under a density that knows those before it.

    A sample that is picked joins the moments of its predicted class, and the density is computed again; so its
    neighbours are no longer unknown. The detector stays as it was.
    """
    learning = copy.copy(detector)
    learning.score = copy.deepcopy(detector.score)
    taken = np.zeros(len(batch.logits), dtype=bool)
    picked, scores = [], []
    for _ in range(min(k, len(taken))):
        epistemic = learning.predict(batch).epistemic.cpu().numpy().astype(np.float64)
        best = int(top_k(np.where(taken, -np.inf, epistemic), 1, random)[0])
        taken[best] = True
        picked.append(best)
        scores.append(epistemic[best])
        one = FeatureBatch(*(column[best : best + 1] for column in (batch.features, batch.logits)))
        learning.update(one._replace(labels=one.logits.argmax(1)))
    return np.array(picked, dtype=np.int64), np.array(scores)


def few_samples_expected() -> "warnings.catch_warnings[None]":
    """Ignores the warning that a class has few samples, which is normal in active learning."""
    return warnings.catch_warnings(action="ignore", category=FewSamplesWarning)


class Choice(NamedTuple):
    """Positions of the chosen candidates, and the scores by which they were chosen, the best first."""

    positions: np.ndarray
    scores: np.ndarray


@runtime_checkable
class Acquisition(Protocol):
    """A rule for choosing the samples to label."""

    def choose(self, candidates: Candidates, k: int, random: np.random.Generator) -> Choice:
        """The k candidates that are most worth a label."""
        ...


@dataclass(frozen=True)
class Top(Acquisition):
    """The most uncertain.

    Attributes:
        score: "epistemic": the detector's own score, such as the feature density of DDU, the mutual information or
            predictive entropy of an ensemble, or the entropy of a softmax. "aleatoric": the entropy of the prediction,
            with any detector.
    """

    score: Score = "epistemic"

    def choose(self, candidates: Candidates, k: int, random: np.random.Generator) -> Choice:
        scores = getattr(candidates.uncertainties, self.score)
        positions = top_k(scores, k, random)
        return Choice(positions, scores[positions])


@dataclass(frozen=True)
class Random(Acquisition):
    """Any sample; the pool is not scored."""

    def choose(self, candidates: Candidates, k: int, random: np.random.Generator) -> Choice:
        scores = random.random(len(candidates))
        positions = top_k(scores, k, random)
        return Choice(positions, scores[positions])


@dataclass(frozen=True)
class PowerSampling(Acquisition):
    """Drawn at random, the uncertain more often: neighbours with equal scores are no longer picked together.

    Kirsch et al., "Stochastic batch acquisition", 2023.

    Attributes:
        power: β; 0 is random, and a large one is `Top`.
        by: "score" draws in proportion to s^β, for scores of at least 0 such as entropies and mutual information;
            "rank" in proportion to r^-β, with r = 1 for the most uncertain, for any score.
        score: Which uncertainty.
    """

    power: float = 1.0
    by: Literal["score", "rank"] = "rank"
    score: Score = "epistemic"

    def choose(self, candidates: Candidates, k: int, random: np.random.Generator) -> Choice:
        scores = getattr(candidates.uncertainties, self.score)
        if self.by == "rank":
            log_weights = rank_log_weights(scores, self.power, random)
        else:
            log_weights = power_log_weights(scores, self.power)
        positions = gumbel_top_k(log_weights, k, random)
        return Choice(positions, scores[positions])


@dataclass(frozen=True)
class Diverse(Acquisition):
    """The least dense, one by one, each learned by the density before the next is chosen; for DDU.

    Only the most uncertain candidates are considered. They are read from the pool a second time.

    Attributes:
        shortlist: How many candidates are considered for each one that is chosen.
    """

    shortlist: int = 20

    def choose(self, candidates: Candidates, k: int, random: np.random.Generator) -> Choice:
        detector = candidates.detector
        if not isinstance(detector, DDU):
            raise NotSupportedError(
                f"Diverse updates a density, which {type(detector).__name__} does not have: use DDU, or PowerSampling."
            )
        considered = top_k(candidates.uncertainties.epistemic, self.shortlist * k, random)
        with few_samples_expected():
            batch = candidates.features(considered)
            picked, scores = diverse_top_k(detector, batch, k, random)
        return Choice(considered[picked], scores)


@dataclass(frozen=True)
class ExcludeOutliers(Acquisition):
    """Another acquisition, without the candidates that are so far out that no label will help.

    Attributes:
        acquisition: Chooses among the others.
        quantile: The share of the candidates that is kept, those with the least epistemic uncertainty.
        threshold: Or the largest epistemic uncertainty that is kept.
    """

    acquisition: Acquisition
    quantile: float | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        if (self.quantile is None) == (self.threshold is None):
            raise InputError("ExcludeOutliers needs either a quantile or a threshold.")
        if self.quantile is not None and not 0 < self.quantile <= 1:
            raise InputError(
                f"The 'quantile' of ExcludeOutliers must lie between 0 and 1. Got {self.quantile!r} instead."
            )

    def choose(self, candidates: Candidates, k: int, random: np.random.Generator) -> Choice:
        epistemic = candidates.uncertainties.epistemic
        if self.threshold is not None:
            kept = np.flatnonzero(epistemic <= self.threshold)
        else:
            assert self.quantile is not None
            kept = within_quantile(epistemic, self.quantile)
        if not len(kept):
            raise InputError(
                f"All {len(candidates)} candidates lie above the threshold of {self.threshold:.4g}, the nearest at "
                f"{epistemic.min():.4g}: raise it, or use a quantile."
            )
        choice = self.acquisition.choose(candidates.only(kept), k, random)
        return Choice(kept[choice.positions], choice.scores)


ACQUISITIONS: dict[str, Acquisition] = {
    "epistemic": Top("epistemic"),
    "aleatoric": Top("aleatoric"),
    "random": Random(),
    "power": PowerSampling(),
    "diverse": Diverse(),
}


def find_acquisition(acquisition: Acquisition | str) -> Acquisition:
    """An acquisition by its name, or the acquisition itself."""
    if isinstance(acquisition, str):
        check_name(acquisition, ACQUISITIONS, "There is no acquisition {name!r}")
        return ACQUISITIONS[acquisition]
    if not isinstance(acquisition, Acquisition):
        raise InputError(f"An acquisition is a name, or has a method choose. Got {acquisition!r} instead.")
    return acquisition


@dataclass(frozen=True)
class AcquisitionFunction:
    """A registered method, whose detector scores the pool, and a rule for choosing by its scores.

    Attributes:
        method: A name of `ddu.detectors.list_methods()`, which decides the detector and the network.
        rule: How samples are chosen.
        members: How many networks are trained; None trains as many as the method wants.
        network: A name of `ddu.list_models()`; None leaves the choice to the experiment.
        options: For `create_model`; they win over those of the method.
        image_size: The smallest side of an image that the network takes; None if it takes any.
    """

    method: str
    rule: Acquisition = field(default_factory=Top)
    members: int | None = None
    network: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    image_size: int | None = None

    @property
    def num_members(self) -> int:
        """How many networks are trained."""
        return self.members or self._registered.members

    @property
    def network_options(self) -> dict[str, Any]:
        """The options of `create_model` that the method wants."""
        return {**self._registered.network.options, **self.options}

    def make_detector(self, model: Any) -> BaseDetector:
        """The detector around a network, or around a list of several."""
        return self._registered.make(model)

    def excluding(self, quantile: float | None) -> Self:
        """The same without the candidates above a quantile of epistemic uncertainty; None excludes none."""
        return self if quantile is None else replace(self, rule=ExcludeOutliers(self.rule, quantile=quantile))

    @property
    def _registered(self) -> Method:
        return find_method(self.method)


# Of the centroids' moving averages: with CIFAR-10's, 0.999, they would hardly move in the few steps of a round
_DUQ_OPTIONS = {"head_options": {"momentum": 0.99}}

ACQUISITION_FUNCTIONS: dict[str, AcquisitionFunction] = {
    "random": AcquisitionFunction("softmax", Random()),
    "entropy": AcquisitionFunction("softmax"),
    "density": AcquisitionFunction("density"),
    "density_diverse": AcquisitionFunction("density", Diverse()),
    "density_power": AcquisitionFunction("density", PowerSampling(by="rank")),
    "density_vgg": AcquisitionFunction("density", network="vgg16", options=PLAIN.options, image_size=16),
    "ensemble_pe": AcquisitionFunction("ensemble_pe", members=3),
    "ensemble_mi": AcquisitionFunction("ensemble_mi", members=3),
    "ensemble_mi_power": AcquisitionFunction("ensemble_mi", PowerSampling(by="score"), members=3),
    "sngp": AcquisitionFunction("sngp", options=RECIPES["sngp_cifar"].model),
    "duq": AcquisitionFunction("duq", options=_DUQ_OPTIONS),
}
"""Acquisition functions by name. Every other registered method is one too, with the rule `Top`."""


def list_acquisition_functions() -> list[str]:
    """The names of all acquisition functions."""
    return list(dict.fromkeys([*ACQUISITION_FUNCTIONS, *list_methods()]))


def find_acquisition_function(name: str) -> AcquisitionFunction:
    """An acquisition function by name: one of `ACQUISITION_FUNCTIONS`, or a registered method."""
    check_name(name, list_acquisition_functions(), "There is no acquisition function {name!r}")
    return ACQUISITION_FUNCTIONS.get(name, AcquisitionFunction(name))
