"""A DDU prediction against the plain softmax network.

python -m benchmarks.prediction
"""

from collections.abc import Iterator

import torch

import ddu
from benchmarks._ratio import Ratio, compare


def run() -> Iterator[Ratio]:
    """All ratios of this file."""
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None, num_classes=10).eval()
    detector = ddu.DDU(model, density=ddu.GaussianDensity("full"))
    images = torch.randn(64, 3, 96, 96)
    features, labels = torch.randn(6000, 512), torch.arange(6000) % 10
    detector.fit_features(features, labels)

    def plain() -> torch.Tensor:
        with torch.no_grad():
            return torch.softmax(model(images), dim=1)

    (values,) = compare(plain, lambda: detector.predict(images))
    yield Ratio("predict with ResNet-18, 10 classes: DDU / softmax network", values, under=1.05)


if __name__ == "__main__":
    for ratio in run():
        print(ratio, flush=True)
