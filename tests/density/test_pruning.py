"""Attempts to break the bounds by which classes are skipped: the dense sum in float64 is the judge."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.utils import counters
from torch.distributions import MultivariateNormal

from ddu.density import GaussianDensity
from ddu.density.scorers import FullScorer, LowRankScorer, PruningScorer, Scorer, full, low_rank, pruning
from ddu.detectors.score import Part, Score

DIM = {"full": 256, "low_rank": 48}  # a full covariance of fewer features is not pruned
RANK = 5
LATER = -(10**6)  # as if reading a class again saved time


@dataclass(frozen=True)
class Mixture:
    """A scorer, the same mixture as dense matrices, and points to score."""

    scorer: Scorer
    log_prior: Tensor
    mean: Tensor
    covariance: Tensor
    points: Tensor

    def dense(self) -> Tensor:
        """log Σ_c π_c N(z; μ_c, Σ_c) of all classes, in double precision."""
        normal = MultivariateNormal(self.mean, covariance_matrix=self.covariance)
        return torch.logsumexp(normal.log_prob(self.points[:, None]) + self.log_prior, dim=1)

    def largest_term(self) -> Tensor:
        """What the rounding of the result is relative to: the size of the terms that it is made of, (batch,)."""
        distances = self.scorer.double().mahalanobis(self.points)
        return 1 + distances.amin(1) + self.scorer.log_norm.abs().max()


@st.composite
def mixtures(draw: st.DrawFn, kind: str) -> Mixture:
    """Classes that tie, coincide, lie far apart or are dominated by one, and points from the means to far out."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31), label="seed"))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    classes, dim = draw(st.integers(3, 9), label="classes"), DIM[kind]
    decades = draw(st.sampled_from([0.0, 2.0, 5.0]), label="decades of the spectrum")
    spectrum = torch.logspace(0, -decades, dim, dtype=torch.float64)
    mean = draw(st.sampled_from([0.0, 1e-3, 1.0, 30.0]), label="distance") * normal(classes, dim) * spectrum.sqrt()
    directions = torch.linalg.qr(normal(classes, dim, dim)).Q
    variances = spectrum * (draw(st.sampled_from([0.0, 0.5]), label="differing spectra") * normal(classes, dim)).exp()
    log_prior = torch.log_softmax(draw(st.sampled_from([0.0, 1.0, 40.0]), label="priors") * normal(classes), 0)
    if draw(st.booleans(), label="two classes are equal"):
        mean[1], directions[1], variances[1], log_prior[1] = mean[0], directions[0], variances[0], log_prior[0]
    if draw(st.booleans(), label="one class is wide"):
        variances[-1] *= 1e4
    if draw(st.booleans(), label="all share their directions"):
        directions[:] = directions[0]
    log_prior = log_prior - log_prior.logsumexp(0)

    if kind == "full":
        covariance = (directions * variances[:, None]) @ directions.mT
        scorer = FullScorer(log_prior, mean, covariance)
    else:
        directions, rest = directions[..., :RANK], variances[:, RANK:].mean(1)
        excess = (directions * (variances[:, :RANK] - rest[:, None])[:, None]) @ directions.mT
        covariance = excess + rest[:, None, None] * torch.eye(dim, dtype=torch.float64)
        scorer = LowRankScorer(log_prior, mean, directions, variances[:, :RANK], rest)

    noise = normal(classes, dim) * spectrum.sqrt()
    far = 10.0 ** draw(st.integers(0, 6), label="decades of the outliers")
    principal = far * directions[:, :, 0] * variances[:, :1].sqrt()  # where the rest of a low rank cancels most
    points = torch.cat([mean, mean + noise, (mean + mean.roll(1, 0)) / 2, far * noise, mean + principal])
    return Mixture(scorer, log_prior, mean, covariance, points)


@contextmanager
def one_class_at_a_time() -> Iterator[None]:
    """Blocks of one class, and nothing of a low rank is worked out before all bounds are known."""
    with patch.object(pruning, "_BLOCK", 1), patch.object(low_rank, "_READING", LATER):
        yield


def check(mixture: Mixture, tolerance: float) -> None:
    """In both precisions the sum of the classes that were not skipped is that of all, one class at a time."""
    reference, size = mixture.dense(), mixture.largest_term()
    with one_class_at_a_time():
        exact = mixture.scorer.double().log_density(mixture.points)
    assert float(((exact - reference).abs() / size).max()) < tolerance
    single = mixture.scorer.float()
    points = mixture.points.float()
    # The very products that the pruned sum is made of, so that nothing but skipping can make a difference
    plain = torch.logsumexp(single.class_log_density(points) + single.log_prior, dim=1).double()
    with one_class_at_a_time():
        pruned = single.log_density(points).double()
    for found in (pruned, single.log_density(points).double()):
        assert found.isfinite().all()
        assert float(((found - plain).abs() / size).max()) < 16 * torch.finfo(torch.float32).eps


@settings(max_examples=40, deadline=None)
@given(mixtures("low_rank"))
def test_no_mixture_of_low_rank_loses_a_class_that_counts(mixture: Mixture) -> None:
    check(mixture, tolerance=1e-9)


@settings(max_examples=12, deadline=None)
@given(mixtures("full"))
def test_no_mixture_of_full_covariances_loses_a_class_that_counts(mixture: Mixture) -> None:
    check(mixture, tolerance=1e-8)


def far_apart(kind: str, classes: int = 20, points: int = 6) -> Mixture:
    """Classes that cannot be confused, and points of the last ones."""
    generator = torch.Generator().manual_seed(0)
    dim = DIM[kind]
    mean = 30 * torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    log_prior = torch.full((classes,), 1 / classes, dtype=torch.float64).log()
    covariance = torch.eye(dim, dtype=torch.float64).repeat(classes, 1, 1)
    if kind == "full":
        scorer: Scorer = FullScorer(log_prior, mean, covariance)
    else:
        ones = torch.ones(classes, RANK, dtype=torch.float64)
        scorer = LowRankScorer(log_prior, mean, covariance[..., :RANK].contiguous(), ones, ones[:, 0])
    noise = torch.randn(points, dim, generator=generator, dtype=torch.float64)
    return Mixture(scorer, log_prior, mean, covariance, mean[-points:] + noise)


@pytest.mark.parametrize(("kind", "block"), [("full", 2**18), ("low_rank", 1), ("low_rank", 2**18)])
def test_points_of_classes_far_apart_need_their_own_class_alone(
    kind: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_BLOCK", block)
    monkeypatch.setattr(low_rank, "_READING", LATER)
    mixture, pairs = far_apart(kind, classes=200 if kind == "low_rank" else 20, points=12), list[int]()
    own = type(mixture.scorer)._distances_to

    def counting(self: PruningScorer, labels: list[int], deltas: Sequence[Tensor]) -> Tensor:
        pairs.extend(map(len, deltas))
        return own(self, labels, deltas)

    monkeypatch.setattr(type(mixture.scorer), "_distances_to", counting)
    mixture.scorer.log_density(mixture.points)
    assert sum(pairs) == len(mixture.points)


@pytest.mark.parametrize("seed", range(6))
def test_rounding_in_a_steep_spectrum_skips_no_class(seed: int) -> None:
    """Far out along the directions, what is left of |δ|² - |Uᵀδ|² is rounding, worth thousands of nats.

    The two classes are equal: their directions span one plane, and are turned in it so that they round differently.
    """
    generator = torch.Generator().manual_seed(seed)
    plane = torch.linalg.qr(torch.randn(DIM["low_rank"], 2, generator=generator, dtype=torch.float64)).Q
    turned = plane @ torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    variances, rest = torch.ones(2, 2), torch.full((2,), 1e-7)
    mean, log_prior = torch.zeros(2, DIM["low_rank"]), torch.full((2,), 0.5).log()
    scorer = LowRankScorer(log_prior, mean, torch.stack([plane, turned]).float(), variances, rest)
    points = torch.linspace(10, 100, 200)[:, None] * plane[:, 0].float()
    plain = torch.logsumexp(scorer.class_log_density(points) + scorer.log_prior, dim=1)
    with one_class_at_a_time():
        # Products of other shapes round differently, by up to 0.01; one of two equal classes is worth log 2
        torch.testing.assert_close(scorer.log_density(points), plain, rtol=0, atol=0.1)


@pytest.mark.parametrize("kind", DIM)
def test_the_order_of_the_classes_changes_no_score(kind: str) -> None:
    mixture = far_apart(kind)
    expected = mixture.scorer.log_density(mixture.points)
    for buffer in mixture.scorer.state_dict().values():
        if len(buffer) == len(mixture.mean):
            buffer.copy_(buffer.flip(0))
    torch.testing.assert_close(mixture.scorer.log_density(mixture.points), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", DIM)
@pytest.mark.parametrize("block", [1, 2**9, 2**30])
def test_the_size_of_the_blocks_changes_no_score(kind: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mixture = far_apart(kind)
    monkeypatch.setattr(pruning, "_BLOCK", block)
    monkeypatch.setattr(full, "_CACHED", block)
    torch.testing.assert_close(mixture.scorer.log_density(mixture.points), mixture.dense(), rtol=1e-12, atol=0)
    torch.testing.assert_close(mixture.scorer.log_density(mixture.points[:0]), mixture.points[:0, 0])


@pytest.mark.parametrize("kind", DIM)
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_scorer_scores_the_same(kind: str, backend: str) -> None:
    mixture = far_apart(kind, classes=4, points=3)
    compiled = torch.compile(mixture.scorer.log_density, backend=backend)
    expected = mixture.scorer.log_density(mixture.points)
    torch.testing.assert_close(compiled(mixture.points), expected, rtol=1e-12, atol=0)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15),
    reason="torch 2.6 compiles around what is left out of the graph anew each time; 2.15 does not",
)
@pytest.mark.parametrize("kind", DIM)
def test_batches_of_other_classes_are_not_compiled_anew(kind: str) -> None:
    mixture = far_apart(kind, points=18)
    compiled = torch.compile(mixture.scorer.log_density, backend="eager")

    def check_classes(number: int) -> int:
        points = mixture.points[torch.arange(12) % number]
        torch.testing.assert_close(compiled(points), mixture.scorer.log_density(points), rtol=1e-12, atol=0)
        return counters["stats"]["unique_graphs"]

    first = [check_classes(number) for number in (3, 5)]
    assert [check_classes(number) for number in (1, 2, 7, 12)] == 4 * first[-1:]


@pytest.mark.slow
def test_a_compiled_sum_of_parts_scores_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(4).repeat(300)
    z = 20 * torch.randn(4, 512, generator=generator)[y] + torch.randn(len(y), 512, generator=generator)
    logits = torch.randn(len(y), 4, generator=generator)
    densities = GaussianDensity("full"), GaussianDensity("low_rank", rank=8)
    parts = [Part("first", 0, densities[0]), Part("second", 1, densities[1], "shares"), Part("energy")]
    score = Score(parts, [256, 256])
    score.update(z, logits, y)
    score.prepare()
    compiled = torch.compile(score.values, backend="eager")
    torch.testing.assert_close(compiled(z[:9], logits[:9]), score.values(z[:9], logits[:9]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", DIM)
@pytest.mark.parametrize("gathered", [1, 3 * 256])
def test_how_many_pairs_are_gathered_at_a_time_changes_no_score(
    kind: str, gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs of one class then fall into several gathers."""
    mixture = far_apart(kind)
    monkeypatch.setattr(pruning, "_BLOCK", 1)
    monkeypatch.setattr(low_rank, "_READING", LATER)
    points = torch.cat([mixture.points, mixture.points.flip(0), mixture.points + 1e-3])
    expected = mixture.scorer.log_density(points)
    monkeypatch.setattr(pruning, "_GATHERED", gathered)
    torch.testing.assert_close(mixture.scorer.log_density(points), expected, rtol=1e-12, atol=0)
