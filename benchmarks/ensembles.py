"""An ensemble trained together, in vectorised steps, against its members trained one after the other.

    python -m benchmarks.ensembles

Adam with batches of 64, ten steps and a validation per epoch, through the same loop (`ddu.training.fit_members`). The
first network is trained as in `ddu active --data digits`. Where the default is to train one after the other, the ratio
has no target: it shows why. The same for predictions, which are made member by member: the logits of 512 inputs, by a
loop over the members against one vectorised call.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks._ratio import Ratio, compare
from ddu.models import create_model
from ddu.training import Recipe, fit_members
from ddu.training._stack import Stack
from ddu.training.members import train_together

RECIPE = Recipe(epochs=10, batch_size=64, optimiser="adam", lr=1e-3, schedule="constant")
SAMPLES, HELD_OUT, PREDICTED = 640, 100, 512
VECTORS, IMAGES = (64,), (1, 28, 28)
SHORT = 3  # epochs
NETWORKS = {
    "ResFFN-2-64": ("resffn2_64", VECTORS),
    "FC-Net-4-128": ("fc_net4_128", VECTORS),
    "FC-Net-4-256": ("fc_net4_256", VECTORS),
    "FC-Net-4-512": ("fc_net4_512", VECTORS),
    "LeNet": ("lenet", IMAGES),
}
TRAINED = (
    ("ResFFN-2-64", 3, 10),
    ("ResFFN-2-64", 5, 10),
    ("FC-Net-4-128", 5, SHORT),
    ("FC-Net-4-256", 3, SHORT),
    ("FC-Net-4-512", 3, SHORT),
    ("LeNet", 3, SHORT),
)


def make_members(shown: str, count: int) -> list[nn.Module]:
    """Plain networks, as ensembles have them."""
    name, shape = NETWORKS[shown]
    options: dict[str, Any] = {"in_features": shape[0]} if len(shape) == 1 else {"in_channels": shape[0]}
    return [create_model(name, spectral_norm=None, sensitive=False, **options) for _ in range(count)]


def draw(count: int, shape: tuple[int, ...]) -> TensorDataset:
    """Noise: only its cost counts."""
    return TensorDataset(torch.randn(count, *shape), torch.randint(10, (count,)))


def training(shown: str, count: int, epochs: int) -> Ratio:
    """How many times as fast members are trained together."""
    _, shape = NETWORKS[shown]
    members, train, held_out = make_members(shown, count), draw(SAMPLES, shape), draw(HELD_OUT, shape)

    def fit(together: bool) -> None:
        fit_members(
            copy.deepcopy(members),
            train,
            held_out,
            recipe=RECIPE,
            epochs=epochs,
            seeds=range(count),
            together=together,
            accelerator="cpu",
            progress=False,
        )

    (values,) = compare(lambda: fit(True), lambda: fit(False), budget=60)
    by_default = train_together(members, RECIPE, accelerator="cpu")
    what = f"train {count} x {shown}: one after the other / together"
    return Ratio(what, values, over=1.2 if by_default else 0.0, note="" if by_default else "not the default")


def prediction(shown: str, count: int) -> Ratio:
    """How many times as fast one vectorised call is as a loop over the members."""
    members, (_, shape) = make_members(shown, count), NETWORKS[shown]
    stack, inputs = Stack(members), torch.randn(PREDICTED, *shape)

    @torch.no_grad()
    def one_call() -> Tensor:
        return stack(inputs[:, None].expand(-1, count, *shape))

    @torch.no_grad()
    def one_by_one() -> Tensor:
        return torch.stack([member(inputs) for member in members], dim=2)

    (values,) = compare(one_call, one_by_one, budget=10)
    return Ratio(f"logits of {count} x {shown}: one after the other / one call", values, note="not the default")


def run() -> Iterator[Ratio]:
    """All ratios of this file."""
    torch.manual_seed(0)
    for shown, count, epochs in TRAINED:
        yield training(shown, count, epochs)
    for shown in ("ResFFN-2-64", "FC-Net-4-512", "LeNet"):
        yield prediction(shown, 5)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for ratio in run():
        print(ratio, flush=True)
