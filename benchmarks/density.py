"""The density against torch's MultivariateNormal in float64, and against the bare matrix products of its fit.

    python -m benchmarks.density

Features have well separated classes and a spectrum that falls over three and a half
decades, as penultimate features of trained networks do.
"""

import resource
import warnings
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import ddu
from benchmarks._ratio import Ratio, compare
from ddu.errors import FewSamplesWarning


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


def scoring(classes: int, dim: int, samples: int, over: float) -> Ratio:
    """What the authors' code does, a batched triangular solve in double precision, over what we do."""
    z, y = features(classes, dim, samples)
    density = ddu.GaussianDensity().fit(z, y)
    peer = torch.distributions.MultivariateNormal(density.means_, covariance_matrix=density.covariances_)
    batch = z[:2048]

    def theirs() -> Tensor:
        return torch.logsumexp(peer.log_prob(batch.double()[:, None]) + density.log_prior_, dim=1)

    def ours() -> Tensor:
        return torch.as_tensor(density.log_density(batch))

    (values,) = compare(ours, theirs)
    error = float(((theirs() - ours()) / theirs()).abs().max())
    return Ratio(
        f"score 2048 points, {classes} x {dim}-d: MultivariateNormal (float64) / ours",
        values,
        over=over,
        note=f"error {error:.1e}",
    )


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


def thousand_classes() -> Iterator[Ratio]:
    """1,000 classes in 2,048 dimensions beside the ResNet-50 that would give such features."""
    import torchvision

    dim, classes = 2048, 1000
    network = torchvision.models.resnet50(weights=None).eval()
    images = torch.randn(32, 3, 224, 224)
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.logspace(0, -3.5, dim).sqrt()
    means = 3 * torch.randn(classes, dim, generator=generator) * spectrum
    for covariance in ("shared", "low_rank"):
        density = ddu.GaussianDensity(covariance)
        for _ in range(10):
            labels = torch.arange(classes).repeat_interleave(4)
            density.update(means[labels] + torch.randn(len(labels), dim, generator=generator) * spectrum, labels)
        density.prepare()
        batch = means[:32] + torch.randn(32, dim, generator=generator) * spectrum
        with torch.no_grad():
            (values,) = compare(partial(network, images), partial(density.log_density, batch))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        yield Ratio(
            f"score 1000 x 2048-d, {covariance}: ours / ResNet-50 forward, batch 32",
            values,
            under=0.05,
            note=f"peak of the process {peak:.1f} GiB, should be under 8",
        )


def run() -> Iterator[Ratio]:
    """All ratios of this file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSamplesWarning)
        yield from thousand_classes()
        yield fitting(10, 640, 1000)
        yield scoring(10, 640, 1000, over=8)
        yield scoring(100, 640, 200, over=30)


if __name__ == "__main__":
    for ratio in run():
        print(ratio, flush=True)
