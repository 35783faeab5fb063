"""The density against torch's MultivariateNormal in float64, and against the bare matrix products of its fit.

    python -m benchmarks.density

Features have well separated classes and a spectrum that falls over three and a half
decades, as penultimate features of trained networks do. With few points per class, reading the factors of the classes
is what costs, whatever the arithmetic.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import ddu
from benchmarks._ratio import Ratio, compare
from ddu.density.covariance import Covariance
from ddu.density.scorers import Scorer


def features(classes: int, dim: int, samples: int) -> tuple[Tensor, Tensor]:
    """Samples of each class, shuffled, and their labels."""
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.logspace(0, -3.5, dim)
    means = 6 * torch.randn(classes, dim, generator=generator) * spectrum.sqrt()
    widths = (spectrum * torch.exp(0.3 * torch.randn(classes, dim, generator=generator))).sqrt()
    rotation = torch.linalg.qr(torch.randn(dim, dim, generator=generator)).Q
    labels = torch.arange(classes).repeat(samples)[torch.randperm(classes * samples, generator=generator)]
    noise = torch.randn(len(labels), dim, generator=generator)
    return (means[labels] + noise * widths[labels]) @ rotation, labels


def scoring(classes: int, dim: int, samples: int, over: float) -> Iterator[Ratio]:
    """What the authors' code does, a batched triangular solve in double precision, over what we do, by batch size."""
    z, y = features(classes, dim, samples)
    density = ddu.GaussianDensity("full").fit(z, y)
    peer = torch.distributions.MultivariateNormal(density.means_, covariance_matrix=density.covariances_)
    for size in (32, 500, 2048):
        batch = z[:size]

        def theirs(batch: Tensor = batch) -> Tensor:
            return torch.logsumexp(peer.log_prob(batch.double()[:, None]) + density.log_prior_, dim=1)

        def ours(batch: Tensor = batch) -> Tensor:
            return torch.as_tensor(density.log_density(batch))

        (values,) = compare(ours, theirs)
        error = float(((theirs() - ours()) / theirs()).abs().max())
        what = f"score {size} points, {classes} x {dim}-d: MultivariateNormal (float64) / ours"
        yield Ratio(what, values, over=over, note=f"error {error:.1e}")


def flat_spectra() -> Iterator[Ratio]:
    """The worst case of pruning: classes alike, so that every class counts for every point."""
    generator = torch.Generator().manual_seed(0)
    cases: list[tuple[Covariance, int, int]] = [("full", 10, 640), ("low_rank", 100, 2048)]
    for covariance, classes, dim in cases:
        z = torch.randn(20 * classes, dim, generator=generator)
        density = ddu.GaussianDensity(covariance, rank=64).fit(z, torch.arange(classes).repeat(20))
        scorer = density._factors(torch.float32).scorer
        for size in (32, 500):
            batch = torch.randn(size, dim, generator=generator)

            def plain(batch: Tensor = batch, scorer: Scorer = scorer) -> Tensor:
                return torch.logsumexp(scorer.class_log_density(batch) + scorer.log_prior, dim=1)

            with torch.no_grad():
                (values,) = compare(plain, partial(scorer.log_density, batch), width=0.01)
            what = f"flat spectra, {size} points, {classes} x {dim}-d, {covariance}: pruned / plain"
            yield Ratio(what, values, under=1.05)


def fitting(classes: int, dim: int, samples: int) -> Ratio:
    """Our fit's moments over the matrix products zᵀz of each class alone."""
    z, y = features(classes, dim, samples)
    rows = [z[y == label].double() for label in range(classes)]

    def bare() -> list[Tensor]:
        return [x.T @ x for x in rows]

    def ours() -> ddu.GaussianDensity:
        return ddu.GaussianDensity().update(z, y)

    (values,) = compare(bare, ours)
    return Ratio(f"fit {classes} x {dim}-d, {samples} samples per class: ours / matrix products", values, under=2)


def run() -> Iterator[Ratio]:
    """All ratios of this file."""
    yield fitting(10, 640, 1000)
    yield from scoring(10, 640, 1000, over=8)
    yield from scoring(100, 640, 200, over=30)
    yield from flat_spectra()


if __name__ == "__main__":
    for ratio in run():
        print(ratio, flush=True)
