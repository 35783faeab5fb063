"""What spectral norm costs and how exact it is, by the number of power steps in a forward pass.

    python -m benchmarks.spectral_norm          # the cost, then the error, which needs CIFAR-10 (see DDU_DATA)

Cost: a training step of ResNet-18 on 3 x 32 x 32 images at batch 128 against the same network without spectral norm;
the target is a ratio under 1.10. `python -m benchmarks` compares whole steps, of a narrow Wide-ResNet-28-10 too.

Error: a narrow ResNet-18 is trained on CIFAR-10 with SGD at a learning rate of 0.1, its norms found by many steps. One
estimate for each number of power steps follows the same weights, and its shortfall is its distance from the norm.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks._ratio import Ratio, compare
from ddu.data import load, loader
from ddu.layers import SpectralConv2d
from ddu.layers.spectral import SpectralNorm
from ddu.models import create_model
from ddu.training.objectives import objective_for

BATCH = 128
CHOICES = (1, 2, 3, 4, 8)
BOUND = 3.0
EXACT = 24  # power steps by which the norm counts as found
WINDOWS = {"2 to 61": (1, 60), "102 to 111": (40, 10)}  # how many training steps pass, and how many are measured


def training_step(
    name: str, *, layout: torch.memory_format = torch.contiguous_format, bfloat16: bool = False, **options: Any
) -> Callable[[], None]:
    """One step of SGD on the network's own objective, with the weights in a layout, in single or mixed precision."""
    torch.manual_seed(0)
    model = create_model(name, **options).to(memory_format=layout)
    objective = objective_for(model)
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss, _ = objective.loss(model, images, labels)
        loss.backward()
        optimiser.step()
        objective.after_step(model, images, labels)

    return step


def run() -> Iterator[Ratio]:
    """What the default costs."""
    for shown, name, width in (("ResNet-18", "resnet18", 1.0), ("narrow Wide-ResNet-28-10", "wide_resnet28_10", 0.2)):
        step = partial(training_step, name, width=width)
        (values,) = compare(step(spectral_norm=None), step())
        yield Ratio(f"training step of {shown}: spectral norm / none", values, under=1.10)


def costs() -> Iterator[Ratio]:
    """What each number of power steps adds to a training step: the normalised weights and their gradients alone.

    Timed apart, since the difference between two whole steps is smaller than what they vary by.
    """
    plain = training_step("resnet18", spectral_norm=None)
    found = compare(plain, *(normalisation("resnet18", steps) for steps in CHOICES))
    for steps, values in zip(CHOICES, found, strict=True):
        sums = [1 + value for value in values]
        yield Ratio(f"training step of ResNet-18, power_steps={steps}: 1 + spectral norm / step", sums, under=1.10)


def normalisation(name: str, power_steps: int) -> Callable[[], None]:
    """The part of a training step that spectral norm adds, as a function."""
    torch.manual_seed(0)
    model = create_model(name, power_steps=power_steps)
    model(torch.randn(2, 3, 32, 32))
    layers = [module for module in model.modules() if isinstance(module, SpectralConv2d)]
    gradients = [torch.randn_like(layer.weight) for layer in layers]

    def normalise() -> None:
        torch.autograd.backward([layer.weight for layer in layers], gradients)

    return normalise


def estimates() -> Iterator[tuple[str, int, Tensor, Tensor]]:
    """Of each window and number of power steps: all estimates, in every layer and training step, and the norms."""
    torch.manual_seed(0)
    model = create_model("resnet18", width=0.25, spectral_norm=BOUND)
    norms = [module for module in model.modules() if isinstance(module, SpectralNorm)]
    weights = [parameter for name, parameter in model.named_parameters() if name.endswith("weight.original")]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    batches = chain.from_iterable(repeat(loader(load("cifar10"), BATCH, shuffle=True)))  # epoch after epoch

    def train(steps: int) -> None:
        for images, labels in islice(batches, steps):
            optimiser.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimiser.step()

    for window, (skipped, measured) in WINDOWS.items():
        train(skipped)
        followers = {steps: copy.deepcopy(norms) for steps in CHOICES}
        found: dict[int, list[Tensor]] = {steps: [] for steps in CHOICES}
        exact: list[Tensor] = []
        for _ in range(measured):
            train(1)
            with torch.no_grad():
                exact += [norm.sigma(weight, EXACT) for norm, weight in zip(norms, weights, strict=True)]
                for steps, those in followers.items():
                    found[steps] += [norm.sigma(weight, steps) for norm, weight in zip(those, weights, strict=True)]
        for steps in CHOICES:
            yield window, steps, torch.stack(found[steps]), torch.stack(exact)


def errors() -> Iterator[str]:
    """A table of how far the estimates fall short of the norm."""
    yield f"{'training steps':<16} power steps  > 2 % short  > 5 % short    worst  largest norm"
    for window, steps, estimate, norm in estimates():
        short = 1 - estimate / norm
        bounded = norm / (estimate / BOUND).clamp(min=1)
        shares = f"{(short > 0.02).float().mean():12.1%} {(short > 0.05).float().mean():12.1%}"
        yield f"{window:<16} {steps:>11} {shares} {short.max():8.1%} {bounded.max():13.2f}"


if __name__ == "__main__":
    for line in chain(costs(), errors()):
        print(line, flush=True)
