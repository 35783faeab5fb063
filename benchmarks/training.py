"""The library's training loop against a bare PyTorch loop: the same network, batches, optimiser and schedule.

python -m benchmarks.training
"""

from collections.abc import Iterator

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks._ratio import Ratio, compare
from ddu.models import Classifier, create_model
from ddu.training import Recipe, fit

SAMPLES = 2_560
RECIPE = Recipe(epochs=1, batch_size=128, schedule="cosine")


def bare_loop(model: Classifier, data: TensorDataset) -> None:
    """What one would write by hand."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RECIPE.lr, momentum=RECIPE.momentum, weight_decay=5e-4)
    loader = DataLoader(data, RECIPE.batch_size, shuffle=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, len(loader))
    model.train()
    for inputs, labels in loader:
        optimiser.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimiser.step()
        schedule.step()


def run() -> Iterator[Ratio]:
    """All ratios of this file."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,)))
    bare, ours = (create_model("resnet18", in_channels=1, width=0.25) for _ in range(2))
    (values,) = compare(
        lambda: bare_loop(bare, data), lambda: fit(ours, data, recipe=RECIPE, progress=False), budget=300
    )
    what = f"training epoch, narrow ResNet-18, {SAMPLES:,} images: ddu / bare loop"
    yield Ratio(what, values, under=1.05)


if __name__ == "__main__":
    for ratio in run():
        print(ratio, flush=True)
