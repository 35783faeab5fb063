"""An exported graph in onnxruntime against the same detector in PyTorch: latency at batch 1, throughput at batch 32.

python -m benchmarks.export

Both begin with bytes and end with verdicts, on one thread.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import ddu
from benchmarks._ratio import Ratio, compare
from ddu.bundles import Bundle
from ddu.data import Preprocessing
from ddu.features import FeatureBatch

_SAMPLES = 10_000
_SIZES = {1: "latency at batch 1", 32: "time at batch 32"}


def run() -> Iterator[Ratio]:
    """All ratios of this file."""
    import torchvision

    torch.manual_seed(0)
    cases = (
        ("ResNet-18 x 1/4, 32 x 32", ddu.create_model("resnet18", num_classes=10, width=0.25), 32),
        ("ResNet-18, 64 x 64", torchvision.models.resnet18(weights=None, num_classes=10), 64),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, model, size in cases:
            yield from _ratios(name, model.eval(), size)
    finally:
        torch.set_num_threads(threads)


def _ratios(name: str, model: torch.nn.Module, size: int) -> Iterator[Ratio]:
    preprocessing = Preprocessing((3, size, size), mean=(0.5,) * 3, std=(0.5,) * 3)
    images = np.random.default_rng(0).integers(0, 256, (32, size, size, 3), np.uint8)
    detector = _detector(model, preprocessing(images))
    with tempfile.TemporaryDirectory() as folder:
        detector.export(Path(folder) / "bundle", images, preprocessing=preprocessing)
        bundle = Bundle(Path(folder) / "bundle", threads=1)
        for count, what in _SIZES.items():
            batch = images[:count]
            repeats = 32 // count

            def in_torch(batch: np.ndarray = batch, repeats: int = repeats) -> None:
                for _ in range(repeats):
                    detector.predict(preprocessing(batch))

            def in_onnx(batch: np.ndarray = batch, repeats: int = repeats) -> None:
                for _ in range(repeats):
                    bundle.predict(batch)

            (values,) = compare(in_torch, in_onnx)
            yield Ratio(f"{name}, 10 classes, {what}: exported graph / PyTorch", values, under=1)


def _detector(model: torch.nn.Module, inputs: torch.Tensor) -> ddu.DDU:
    """A detector that was fitted to noise like the features of the inputs: only its cost counts."""
    detector = ddu.DDU(model)
    seen = detector.tap(inputs)
    labels = torch.arange(_SAMPLES) % 10
    mean, std = seen.features.mean(0), seen.features.std(0) + 0.01
    batches = [
        FeatureBatch(mean + std * torch.randn(len(y), len(mean)), 3 * torch.eye(10)[y] + torch.randn(len(y), 10), y)
        for y in labels.split(1000)
    ]
    return detector.fit(batches[:-2], progress=False).calibrate(batches[-2:], 0.01, progress=False)


if __name__ == "__main__":
    for ratio in run():
        print(ratio, flush=True)
