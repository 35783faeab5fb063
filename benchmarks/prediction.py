"""A prediction of the default detector, with all parts of its score, against the plain softmax network.

python -m benchmarks.prediction
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

import ddu
from benchmarks._ratio import Ratio, compare
from ddu.features import FeatureBatch

_SAMPLES = 5_000  # enough for one covariance per class; the cost of a score does not depend on them


def run() -> Iterator[Ratio]:
    """All ratios of this file."""
    import torchvision

    torch.manual_seed(0)
    small = torch.randn(128, 3, 32, 32)
    cases = (
        ("ResNet-50", torchvision.models.resnet50(weights=None, num_classes=10), torch.randn(16, 3, 224, 224), 1.05),
        ("ResNet-18 x 1/4", ddu.create_model("resnet18", num_classes=10, width=0.25), small, 1.10),
        ("WRN-16-2", ddu.create_model("wide_resnet16_2", num_classes=10), small, 1.10),
    )
    for name, model, images, most in cases:
        (values,) = compare(*_sides(model.eval(), images), budget=120, width=0.02)
        size = f"{len(images)} images of {images.shape[-1]} x {images.shape[-1]}"
        yield Ratio(f"predict with {name}, {size}, 10 classes: DDU / softmax network", values, under=most)


def _sides(model: nn.Module, images: Tensor):
    """The plain network, and a detector that was fitted to noise of the right width: only its cost counts."""
    detector = ddu.DDU(model)
    width = detector.tap(images[:2]).features.shape[1]
    labels = torch.arange(_SAMPLES) % 10
    batches = [FeatureBatch(torch.rand(len(y), width), torch.randn(len(y), 10), y) for y in labels.split(1000)]
    detector.fit(batches, progress=False)

    def plain() -> Tensor:
        with torch.no_grad():
            return torch.softmax(model(images), dim=1)

    return plain, lambda: detector.predict(images)


if __name__ == "__main__":
    for ratio in run():
        print(ratio, flush=True)
