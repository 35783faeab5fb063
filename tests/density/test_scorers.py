"""Scorers: shortcuts change no number, and low rank stays low."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddu.density import GaussianDensity
from ddu.density.scorers import DiagonalScorer, FullScorer, LowRankScorer, Scorer, SharedScorer

Blobs = Callable[..., tuple[Tensor, Tensor]]
# The stubs take a covariance for an integer
gaussian: Any = multivariate_normal


def gaussians(classes: int, dim: int, *, distance: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """log π, means and covariances."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    root = normal(classes, dim, 2 * dim) * torch.linspace(2, 0.1, dim, dtype=torch.float64)[:, None]
    covariance = root @ root.mT / (2 * dim)
    return torch.log_softmax(normal(classes), 0), distance * normal(classes, dim), covariance


def draw(mean: Tensor, covariance: Tensor, count: int, seed: int = 1) -> Tensor:
    noise = torch.randn(
        len(mean), count, mean.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return (mean[:, None] + noise @ torch.linalg.cholesky(covariance).mT).flatten(0, 1)


# Distances from classes on top of each other to classes that cannot be confused, and points from inside to far out
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("distance", [0.0, 0.05, 0.3, 3.0, 100.0])
@pytest.mark.parametrize(("classes", "dim"), [(3, 256), (10, 256), (20, 264)])
def test_classes_without_a_chance_are_skipped_without_changing_the_result(
    classes: int, dim: int, distance: float, dtype: torch.dtype
) -> None:
    log_prior, mean, covariance = gaussians(classes, dim, distance=distance)
    scorer = FullScorer(log_prior, mean, covariance).to(dtype)
    points = draw(mean, covariance, 5)
    between = (points[::3] + points[1:][: len(points[::3])]) / 2 if len(points) % 3 else points.roll(1, 0) / 2
    everywhere = torch.cat([points, between, points * 30, points * 1e4]).to(dtype)
    expected = torch.logsumexp(scorer.class_log_density(everywhere) + log_prior.to(dtype), dim=1)
    assert_close(scorer.log_density(everywhere), expected, rtol=4 * torch.finfo(dtype).eps * dim, atol=0)
    assert_close(scorer(everywhere).to(dtype), expected, rtol=4 * torch.finfo(dtype).eps * dim, atol=0)


# Where the bound is tight, all classes but the nearest have the same share of the sum, and that sum is about 1: what is
# skipped shows in the last digits
NUM_APART, DIM_APART = 16, 256  # so many features that the bound sees all 15 directions between the means


def apart(gap: float, dtype: torch.dtype = torch.float64) -> tuple[FullScorer, Tensor]:
    """Classes with priors and isotropic variances of their own, and a point at which they lie `gap` below the first.

    The point is the mean of the first class. log π_c p(z | c) = log π_c - ½ d log(2π v_c) - r_c² / (2 v_c) is 0 for
    that class and -gap for all others: the mean of class c is r_c along an axis of its own.
    """
    log_prior = torch.log_softmax(torch.linspace(0, -1, NUM_APART, dtype=torch.float64), 0)
    # What a class has at its own mean, from 0 down to -gap / 2
    height = -torch.linspace(0, gap / 2, NUM_APART, dtype=torch.float64)
    variance = (2 * (log_prior - height) / DIM_APART).exp() / (2 * math.pi)
    radius = (2 * variance * (height + gap)).sqrt()
    mean = radius[:, None] * torch.eye(NUM_APART, DIM_APART, dtype=torch.float64)
    mean[0] = 0
    covariance = variance[:, None, None] * torch.eye(DIM_APART, dtype=torch.float64)
    return FullScorer(log_prior, mean, covariance).to(dtype), mean[:1].to(dtype)


def skippable_below(dtype: torch.dtype) -> float:
    """The gap from which all classes but one, C - 1 < C of them, add less than ε to a sum of 1: C exp(-gap) = ε."""
    return math.log(NUM_APART / torch.finfo(dtype).eps)


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pairs of points and classes were scored in full, one number per step of a log-density."""
    counts: list[int] = []
    fill, distances = FullScorer._fill, FullScorer._distances

    def counting_some(self: FullScorer, x: Tensor, joint: Tensor, wanted: Tensor) -> None:
        counts.append(int(wanted.sum()))
        fill(self, x, joint, wanted)

    def counting_all(self: FullScorer, x: Tensor) -> Tensor:
        counts.append(len(x) * len(self.mean))
        return distances(self, x)

    monkeypatch.setattr(FullScorer, "_fill", counting_some)
    monkeypatch.setattr(FullScorer, "_distances", counting_all)
    return counts


def test_classes_apart_lie_as_far_below_the_first_as_they_are_said_to() -> None:
    scorer, point = apart(25.0)
    (joint,) = scorer.class_log_density(point) + scorer.log_prior
    assert_close(joint, torch.tensor([0.0] + [-25.0] * (NUM_APART - 1), dtype=torch.float64), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.85, 0.9, 0.95, 0.99, 1.01, 1.2, 2.0])
def test_what_is_skipped_is_below_rounding_in_the_sum(share: float, dtype: torch.dtype) -> None:
    """With a margin of -log ε, without the number of classes, it would be up to C ε."""
    scorer, point = apart(share * skippable_below(dtype), dtype)
    joint = (scorer.class_log_density(point) + scorer.log_prior).double()
    # The sum is about 1, so that a few ε are also the rounding of its logarithm
    error = (scorer.log_density(point).double() - torch.logsumexp(joint, dim=1)).abs()
    assert float(error) <= 6 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("beyond", "others"), [(-0.1, NUM_APART - 1), (0.1, 0)])
def test_a_class_is_skipped_as_soon_as_it_can_be(
    scored: list[int], beyond: float, others: int, dtype: torch.dtype
) -> None:
    scorer, point = apart(skippable_below(dtype) + beyond, dtype)
    scorer.log_density(point)
    assert sum(scored) == 1 + others


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_likeliest_class_counts_where_the_bound_prefers_another(scored: list[int], dtype: torch.dtype) -> None:
    """The first class is narrow beyond the coordinates of the bound, where the point is far from its mean.

    Four others could be as likely as it is by their bounds, and seven are out of the question.
    """
    log_prior, mean, covariance = gaussians(12, 256, distance=0.0)
    covariance = torch.eye(256, dtype=torch.float64).repeat(12, 1, 1)
    mean[:, :12] = torch.diag(torch.tensor(5 * [15.0] + 7 * [1000.0], dtype=torch.float64))
    covariance[0, 100:, 100:] *= 0.01
    scorer = FullScorer(log_prior, mean, covariance).to(dtype)
    point = mean[:1].clone()
    point[:, 100:] += 3
    joint = scorer.class_log_density(point.to(dtype)) + log_prior.to(dtype)
    assert joint.argmax() != 0
    bound = scorer._first_distances(scorer._mapped(point.to(dtype))).T
    assert bound.argmin() == 0
    scored.clear()
    assert_close(scorer.log_density(point.to(dtype)), torch.logsumexp(joint, dim=1))
    assert scored == [1, 4]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_class_whose_bound_is_just_below_the_likeliest_counts(scored: list[int], dtype: torch.dtype) -> None:
    """The second class is wide beyond the coordinates of the bound: its bound is low, tight, and 1 below the first."""
    log_prior, mean, covariance = gaussians(5, 256, distance=0.0)
    covariance = torch.eye(256, dtype=torch.float64).repeat(5, 1, 1)
    mean[:, :5] = 15 * torch.eye(5, dtype=torch.float64)
    mean[1] = mean[0]
    covariance[1, 100:, 100:] *= 1e4
    scorer = FullScorer(log_prior, mean, covariance).to(dtype)
    # With x = |v|² / 2: -x = 1 - x / 10⁴ - 156 log 100
    wide = (156 * math.log(100) - 1 + float(log_prior[0] - log_prior[1])) / (1 - 1e-4)
    point = mean[:1].clone()
    point[:, 100:] += math.sqrt(2 * wide / 156)
    joint = scorer.class_log_density(point.to(dtype)) + log_prior.to(dtype)
    assert 0.9 < float(joint[0, 0] - joint[0, 1]) < 1.1
    scored.clear()
    assert_close(scorer.log_density(point.to(dtype)), torch.logsumexp(joint, dim=1))
    assert scored[0] == 1


def test_most_classes_are_skipped_where_classes_are_apart(scored: list[int]) -> None:
    log_prior, mean, covariance = gaussians(20, 256, distance=3.0)
    FullScorer(log_prior, mean, covariance).log_density(draw(mean, covariance, 5))
    assert sum(scored) < 100 * 20 / 4  # pairs of points and classes


def test_close_seconds_count_even_where_the_bound_is_tight() -> None:
    """On the lines between the means of classes alike, coordinates beyond the bound's add nothing to it."""
    log_prior, mean, covariance = gaussians(4, 256, distance=0.2)
    scorer = FullScorer(log_prior, mean, covariance[:1].expand_as(covariance))
    points = torch.cat([share * mean + (1 - share) * mean.roll(1, 0) for share in (0.5, 0.52, 0.6, 0.9, 1.0)])
    expected = torch.logsumexp(scorer.class_log_density(points) + log_prior, dim=1)
    assert_close(scorer.log_density(points), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("classes", [3, 20])
def test_the_bound_is_above_the_exact_value(classes: int) -> None:
    log_prior, mean, covariance = gaussians(classes, 256, distance=0.5)
    scorer = FullScorer(log_prior, mean, covariance)
    points = draw(mean, covariance, 20)
    exact, bound = scorer.mahalanobis(points), scorer._first_distances(scorer._mapped(points)).T
    assert (bound > 0).all()
    assert (bound < exact).all()
    # The distance in the directions of the first rows alone, whatever basis they are given in
    rows = scorer.basis[: scorer.bound_rows].numpy()
    for label in range(classes):
        marginal = gaussian(rows @ mean[label].numpy(), rows @ covariance[label].numpy() @ rows.T)
        expected = 2 * (marginal.logpdf(marginal.mean) - marginal.logpdf(points.numpy() @ rows.T))
        assert_close(bound[:, label], torch.from_numpy(expected), rtol=1e-8, atol=0)


@pytest.mark.parametrize(("classes", "dim"), [(3, 256), (10, 259), (100, 520)])
def test_the_basis_is_orthonormal_beside_the_directions_of_the_bound(classes: int, dim: int) -> None:
    log_prior, mean, covariance = gaussians(classes, dim, distance=1.0)
    scorer = FullScorer(log_prior, mean, covariance)
    rows = scorer.bound_rows
    assert rows == min(max(classes - 1, 16), 64, dim // 8)
    basis = scorer._mapped(torch.eye(dim, dtype=torch.float64) + scorer.centre).T
    identity = torch.eye(dim, dtype=torch.float64)
    assert_close(basis[rows:] @ basis[rows:].T, identity[rows:, rows:], rtol=0, atol=1e-12)
    assert_close(basis[:rows] @ basis[rows:].T, torch.zeros(rows, dim - rows).double(), rtol=0, atol=1e-10)
    pooled = torch.tensordot(log_prior.exp(), covariance, dims=1)
    assert_close(basis[:rows] @ pooled @ basis[:rows].T, identity[:rows, :rows], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("classes", "dim"), [(1, 300), (2, 256), (2, 40), (5, 257), (5, 511)])
def test_packed_factors_are_the_whole_triangles(classes: int, dim: int) -> None:
    """The strips put together whiten the covariance, also where they are not equally wide."""
    log_prior, mean, covariance = gaussians(classes, dim, distance=1.0)
    scorer = FullScorer(log_prior, mean, covariance)
    identity = torch.eye(dim, dtype=torch.float64)
    basis = scorer._mapped(identity + scorer.centre)
    whitening = scorer._whitened(slice(None), identity.expand(classes, -1, -1)).mT
    assert not whitening.triu(1).any()
    root = whitening @ basis.T
    assert_close(root @ covariance @ root.mT, identity.expand(classes, -1, -1), rtol=0, atol=1e-9)
    assert scorer.whitening.shape[1] < (0.7 if dim >= 256 else 1.01) * dim**2


def test_classes_that_overlap_are_scored_together_after_one_look(scored: list[int]) -> None:
    """The bounds tell the classes apart, but by less than the values lie below the bounds."""
    log_prior, mean, covariance = gaussians(8, 256, distance=0.0)
    mean[:, :8] = 12 * torch.eye(8, dtype=torch.float64)
    covariance = torch.eye(256, dtype=torch.float64).repeat(8, 1, 1)
    scorer, points = FullScorer(log_prior, mean, covariance), draw(mean, covariance, 3)
    scorer.log_density(points)
    assert scored == [24, 24 * 8]


@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("dim", [1, 3, 130])
def test_every_scorer_equals_scipy(classes: int, dim: int) -> None:
    log_prior, mean, covariance = gaussians(classes, dim, distance=1.0)
    points = draw(mean, covariance, 4)
    variance = covariance.diagonal(dim1=1, dim2=2)
    rank = max(dim // 2, 1)
    directions = torch.linalg.eigh(covariance)[1][..., :rank]
    spread = torch.linspace(3, 1, rank, dtype=torch.float64).expand(classes, rank)
    rest = torch.full((classes,), 0.5, dtype=torch.float64)
    low_rank = (directions * (spread - 0.5)[:, None]) @ directions.mT + 0.5 * torch.eye(dim, dtype=torch.float64)
    scorers: list[tuple[Scorer, Tensor]] = [
        (FullScorer(log_prior, mean, covariance), covariance),
        (SharedScorer(log_prior, mean, covariance[0]), covariance[:1].expand_as(covariance)),
        (DiagonalScorer(log_prior, mean, variance), torch.diag_embed(variance)),
        (LowRankScorer(log_prior, mean, directions, spread, rest), low_rank),
    ]
    for scorer, matrices in scorers:
        expected = np.stack(
            [gaussian(m, s).logpdf(points).reshape(-1) for m, s in zip(mean, matrices, strict=True)], axis=1
        )
        actual = scorer.class_log_density(points).numpy()
        # Relative to the typical magnitude: a log-density may cross zero
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9 * np.abs(expected).mean())
        assert_close(scorer(points), scorer.log_density(points), rtol=0, atol=1e-9 * np.abs(expected).mean())


def test_low_rank_never_forms_a_square_matrix() -> None:
    dim = 3000
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(40, dim, generator=generator)
    y = torch.arange(40) % 2
    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.nbytes for t in tree_leaves(out) if isinstance(t, Tensor))
            return out

    with Watch():
        density = GaussianDensity("low_rank", rank=4, background=True).fit(z, y)
        assert torch.isfinite(density.relative_log_density(z)).all()
    assert max(sizes) <= dim * 40 * 8  # the samples themselves in double precision


@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal", "low_rank"])
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("options", [{}, {"normalize": True}, {"standardize": True}])
def test_a_graph_scores_what_the_density_scores(covariance: Any, background: bool, options: dict[str, bool]) -> None:
    _, mean, sigma = gaussians(4, 140, distance=3.0)
    z, y = draw(mean, sigma, 300), torch.arange(4).repeat_interleave(300)
    density = GaussianDensity(covariance, rank=8, background=background, **options).fit(z, y)
    points = torch.cat([z[::7], z[::50] * 30, z[::50] * 1e4, torch.zeros(1, 140)]).float()
    exact = density.relative_log_density(points.double()) if background else density.log_density(points.double())
    graph = density.graph()
    # Log-densities of inputs vary by about √(d / 2); rounding is single precision's
    assert_close(graph(points).double(), exact, rtol=1e-5, atol=1e-5 * math.sqrt(140 / 2))
    distances = density.relative_mahalanobis(points.double()) if background else density.mahalanobis(points.double())
    assert_close(graph.mahalanobis(points), distances, rtol=1e-5, atol=1e-5 * math.sqrt(2 * 140))


@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal", "low_rank"])
def test_a_graph_gives_the_largest_number_where_squares_overflow(covariance: Any, blobs: Blobs) -> None:
    z, y = blobs()
    density = GaussianDensity(covariance, rank=2).fit(z, y)
    far = torch.full((1, z.shape[1]), 1e30)
    assert_close(density.graph()(far), density.log_density(far), rtol=0, atol=0)
    assert density.graph()(far).isfinite().all()
