"""A thousand classes in 2,048 dimensions, 300 samples each, beside the ResNet-50 that would give such features.

    python -m benchmarks.scale

Memory is the peak of a process of its own, from its start to its end: one that streams the samples, fits and saves, and
one that loads and scores. What PyTorch takes to be imported is part of it, and is said.
"""

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import ddu
from benchmarks._ratio import Amount, Ratio, compare
from ddu.detectors.score import Part, Score
from ddu.errors import CovarianceWarning
from ddu.features import FeatureBatch

CLASSES, DIM, SAMPLES = 1000, 2048, 300
CLASSES_PER_BLOCK = 20
BATCH = 32
OPTIONS = {"default": {}, "low_rank, r = 64": {"covariance": "low_rank", "rank": 64}}
FIT_GIGABYTES = {"default": 8.0, "low_rank, r = 64": 4.0}


def blocks(samples: int = SAMPLES) -> Iterator[tuple[Tensor, Tensor]]:
    """Features and labels, some classes at a time; the spectrum falls over three and a half decades."""
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.logspace(0, -3.5, DIM).sqrt()
    for labels in torch.arange(CLASSES).split(CLASSES_PER_BLOCK):
        means = 3 * torch.randn(len(labels), DIM, generator=generator) * spectrum
        rows = torch.arange(len(labels)).repeat(samples)
        yield means[rows] + torch.randn(len(rows), DIM, generator=generator) * spectrum, labels[rows]


def detector() -> ddu.DDU:
    """A detector of one density around a head that takes the features."""
    torch.manual_seed(0)
    return ddu.DDU(nn.Sequential(nn.Flatten(), nn.Linear(DIM, CLASSES)), features=None, view="raw", energy=False)


def fit(name: str, folder: Path) -> ddu.DDU:
    """A density of all samples, one block at a time, saved as a detector."""
    density = ddu.GaussianDensity(**OPTIONS[name], num_classes=CLASSES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CovarianceWarning)
        for z, y in blocks():
            density.update(z, y, expected_samples=CLASSES * SAMPLES)
    fitted = detector()
    fitted.density_options = dict(OPTIONS[name])
    fitted.score = Score([Part("features", 0, density)], [DIM]).prepare()
    fitted.save(folder)
    return fitted


def score(folder: Path) -> None:
    """Loads a detector and scores a batch."""
    z, _ = next(blocks(samples=2))
    found = ddu.load(folder, detector().model)
    found.predict(FeatureBatch(z[:BATCH], torch.zeros(BATCH, CLASSES), None))


def memory(name: str, folder: Path) -> Iterator[Amount]:
    """What fitting and scoring take in a process of their own, in GB, and the file in between."""
    imported, fitted = _peaks(f"scale.fit({name!r}, Path({str(folder)!r}))")
    note = f"{imported:.2f} GB of it for imports"
    yield Amount(f"{name}: peak memory of fit and save, GB", fitted, under=FIT_GIGABYTES[name], note=note)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e9
    yield Amount(f"{name}: size of the artefact, GB", size, under=1.0)
    imported, scored = _peaks(f"scale.score(Path({str(folder)!r}))")
    note = f"the whole process {scored:.2f} GB, {imported:.2f} GB of it for imports"
    yield Amount(f"{name}: memory of load and score beyond imports, GB", scored - imported, under=1.0, note=note)


def _peaks(call: str) -> tuple[float, float]:
    """The peak memory of a process before and after it makes a call, in GB: what imports take differs between runs."""
    peak = "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    code = "\n".join(["import resource", "from pathlib import Path", "from benchmarks import scale", peak, call, peak])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = (int(line) * (1 if sys.platform == "darwin" else 1024) / 1e9 for line in done.stdout.split())
    return before, after


def run() -> Iterator[Ratio | Amount]:
    """All results of this file."""
    import torchvision

    densities = []
    with tempfile.TemporaryDirectory() as root:
        for index, name in enumerate(OPTIONS):
            folder = Path(root) / str(index)
            yield from memory(name, folder)
            loaded = ddu.load(folder, detector().model)
            assert isinstance(loaded, ddu.DDU)
            densities.append(loaded.density)
    network = torchvision.models.resnet50(weights=None).eval()
    images, batch = torch.randn(BATCH, 3, 224, 224), next(blocks(samples=2))[0][:BATCH]
    with torch.no_grad():
        found = compare(partial(network, images), *(partial(one.log_density, batch) for one in densities), budget=60)
    for name, values in zip(OPTIONS, found, strict=True):
        yield Ratio(f"{name}: score a batch of {BATCH} / ResNet-50 forward at 224 px", values, under=0.05)


if __name__ == "__main__":
    for line in run():
        print(line, flush=True)
