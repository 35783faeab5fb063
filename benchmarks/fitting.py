"""What fitting a detector adds to the forward passes, with all parts of the default score, on images of CIFAR-10.

    python -m benchmarks.fitting

Needs CIFAR-10 (see DDU_DATA). Both sides read the same loader and run the same network; the peer drops its logits.
Where the stages are is found before, once per detector, for which the first batch runs once more: of 30,000 images that
is one batch in 118.
"""

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.utils.data import Subset

import ddu
from benchmarks._ratio import Ratio, compare
from ddu.data import load, loader
from ddu.features import extract

IMAGES, BATCH = 5_120, 256


def sides(model: nn.Module) -> tuple[Callable[[], None], Callable[[], object], Callable[[], object]]:
    """The forward passes alone, a fit, and a fit to features that are there."""
    batches, detector = loader(Subset(load("cifar10"), range(IMAGES)), BATCH), ddu.DDU(model)
    features = list(extract(detector.tap, batches, progress=False))

    def forward() -> None:
        with torch.no_grad():
            for images, _ in batches:
                model(images)

    return forward, lambda: detector.fit(batches, progress=False), lambda: detector.fit(features, progress=False)


def run() -> Iterator[Ratio]:
    """All ratios of this file."""
    torch.manual_seed(0)
    forward, *fits = sides(ddu.create_model("resnet18", num_classes=10, width=0.25).eval())
    values, learning = compare(forward, *fits, budget=120, width=0.02)
    what = f"fit {IMAGES:,} images of CIFAR-10, ResNet-18 x 1/4, all parts"
    yield Ratio(f"{what}: fit / forward passes", values, under=1.05)
    yield Ratio(f"{what}: fit to features that are there / forward passes", learning, under=0.05)


if __name__ == "__main__":
    for ratio in run():
        print(ratio, flush=True)
