"""The speed of training on a CPU, on one thread.

    python -m benchmarks.training

The layout: images per second of a training step with weights in the channels_last layout, as `fit` keeps them, over
those in torch's default layout; batches of 128 images of 3 x 32 x 32. And with `precision="auto"` as well: in bfloat16
where the processor multiplies it. DUQ, which needs second derivatives, keeps the default layout.

The loop: `fit` against a bare PyTorch loop with the same network, layout, batches, optimiser and schedule.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks._ratio import Ratio, compare
from benchmarks.spectral_norm import training_step
from ddu.models import Classifier, create_model
from ddu.training import Recipe, fit
from ddu.training.loop import settled_precision

SAMPLES = 2_560
NETWORKS = {
    "ResNet-18 x 1/4": ("resnet18", 0.25),
    "WRN-16-2": ("wide_resnet16_2", 1.0),
    "DenseNet-121 x 1/4": ("densenet121", 0.25),
}
RECIPE = Recipe(epochs=1, batch_size=128, schedule="cosine")


def bare_loop(model: Classifier, data: TensorDataset) -> None:
    """What one would write by hand."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RECIPE.lr, momentum=RECIPE.momentum, weight_decay=5e-4)
    loader = DataLoader(data, RECIPE.batch_size, shuffle=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, len(loader))
    model.to(memory_format=torch.channels_last).train()
    for inputs, labels in loader:
        optimiser.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimiser.step()
        schedule.step()


def layouts() -> Iterator[Ratio]:
    """What the layout of the weights gives, alone and with the precision."""
    bfloat16 = settled_precision("auto", "cpu") == "bf16-mixed"
    ways = {"channels_last": {}, "channels_last, bfloat16": {"bfloat16": True}} if bfloat16 else {"channels_last": {}}
    for shown, (name, width) in NETWORKS.items():
        step = partial(training_step, name, width=width)
        found = compare(step(), *(step(layout=torch.channels_last, **way) for way in ways.values()), budget=60)
        for way, values in zip(ways, found, strict=True):
            rates = [1 / value for value in values]
            yield Ratio(f"images per second, {shown}: {way} / default layout", rates, over=1.5)


def second_derivatives() -> Iterator[Ratio]:
    """The same of DUQ, which keeps the default layout."""
    step = partial(training_step, "resnet18", width=0.25, head="duq", spectral_norm=None, sensitive=False)
    ways = {"channels_last": step(layout=torch.channels_last), "bfloat16": step(bfloat16=True)}
    for way, values in zip(ways, compare(step(), *ways.values(), budget=60), strict=True):
        yield Ratio(f"images per second, DUQ, ResNet-18 x 1/4: {way} / default layout", [1 / v for v in values])


def run() -> Iterator[Ratio]:
    """All ratios of this file."""
    yield from layouts()
    yield from second_derivatives()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,)))
    bare, ours = (create_model("resnet18", in_channels=1, width=0.25) for _ in range(2))
    (values,) = compare(
        lambda: bare_loop(bare, data), lambda: fit(ours, data, recipe=RECIPE, progress=False), budget=600
    )
    what = f"training epoch, narrow ResNet-18, {SAMPLES:,} images: ddu / bare loop"
    yield Ratio(what, values, under=1.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for ratio in run():
        print(ratio, flush=True)
