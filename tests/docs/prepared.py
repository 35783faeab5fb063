"""What the pages take as given, small: a network that knows three kinds of digits, a server, a learner's samples.

Each function is a context that yields the names of its page, in the page's own folder.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import ddu
from ddu import data
from ddu.runs import RunSpec, train_run
from ddu.training import RECIPES
from tests.serving.servers import make_source, served

Names = dict[str, Any]


class Network(nn.Module):
    """A small residual network whose layers have the names of torchvision's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2 = nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.layer3, self.layer4 = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(x).relu()
        x = self.layer3(x + self.layer2(x).relu()).relu()
        return self.fc((x + self.layer4(x).relu()).mean((2, 3)))


@cache
def three_digits() -> tuple[Tensor, Tensor]:
    """The 1,500 embedded digits 0, 1 and 2, in random order."""
    splits = [batch for split in ("train", "test") for batch in data.loader(data.load("mnist_5k", split))]
    x, y = (torch.cat(column) for column in zip(*splits, strict=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    order = order[y[order] < 3]
    return x[order], y[order]


@cache
def trained_network() -> Network:
    """Trained on 500 of them, for a few seconds."""
    x, y = (values[:500] for values in three_digits())
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = Network()
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        for _, rows in itertools.product(range(20), torch.arange(500).split(50)):
            optimiser.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
    return model.eval()


@contextmanager
def model_and_loaders() -> Iterator[Names]:
    """What an engineer brings, and a few things to judge."""
    x, y = three_digits()
    known, held_out = (x[:500], y[:500]), (x[500:1400], y[500:1400])
    z = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)).numpy()
    labels = np.arange(300) % 3
    yield {
        "torch": torch,
        "model": trained_network(),
        "device": "cpu",
        "train_loader": [known],
        "val_loader": [held_out],
        "images": x[1000:],
        "digit": x[1400],
        "noise": 3 * torch.rand(1, 28, 28),
        **{"z": z, "y": labels, "z_new": z[:5], "z_more": z, "y_more": labels, "z_old": z[:30], "y_old": labels[:30]},
        "other": ddu.GaussianDensity().fit(z, labels),
    }


@contextmanager
def calibrated() -> Iterator[Names]:
    """A detector, and digits to judge."""
    with model_and_loaders() as names:
        detector = ddu.DDU(names["model"], class_names="012").fit(names["train_loader"])
        detector.calibrate(names["val_loader"], 0.01)
        yield names | {"detector": detector, "prediction": detector.predict(names["images"])}


@contextmanager
def data_sets() -> Iterator[Names]:
    """The same digits as data sets."""
    digits = [data.load("mnist_5k", split) for split in ("train", "test")]
    train, held_out = (part.subset(np.flatnonzero(part.labels < 3)) for part in digits)
    yield {"model": trained_network(), "train_data": train, "held_out_data": held_out}


@contextmanager
def to_diagnose() -> Iterator[Names]:
    """A detector, what it was made from, and new images."""
    with calibrated() as names:
        yield {
            "detector": names["detector"],
            "train": names["train_loader"],
            "held_out": names["val_loader"],
            "new_images": names["images"],
        }


@contextmanager
def to_report() -> Iterator[Names]:
    """A run of a few seconds."""
    recipe = RECIPES["quick"].with_changes(epochs=2)
    train_run(RunSpec("resnet18", "digits", recipe, options={"width": 0.125}), "runs/dirty_mnist", progress=False)
    yield {}


@contextmanager
def to_export() -> Iterator[Names]:
    """A detector, raw images, and pictures in files."""
    preprocessing = data.info("mnist_5k").preprocessing
    images = data.load("mnist_5k", "test").inputs[:40]
    for name in ("photo", "a", "b"):
        Image.fromarray(images[0].squeeze()).resize((40, 30)).save(f"{name}.png")
    with calibrated() as names:
        yield names | {"images": images, "batch": names["images"], "preprocessing": preprocessing}


@contextmanager
def small_mnist() -> Iterator[Names]:
    """A data root whose MNIST has 600 digits, and an autoencoder."""
    digits = data.load("mnist_5k")
    x, y = digits.inputs[:600], digits.labels[:600]
    np.savez("mnist.npz", x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:])
    autoencoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Linear(8, 784), nn.Unflatten(1, (1, 28, 28)))
    yield {"autoencoder": autoencoder}


@contextmanager
def samples_to_label() -> Iterator[Names]:
    """A pool of digits in three channels, a few labels, and a person who gives ten more."""
    digits = data.load("digits").subset(range(150))
    x, y = next(iter(data.loader(digits, batch_size=150)))
    x = x.expand(-1, 3, -1, -1).contiguous()
    budget = iter([True, False])
    yield {
        "images": x[50:],
        "labels": y[50:],
        "a_few_samples": TensorDataset(x[:50], y[:50]),
        "held_out": TensorDataset(x[:20], y[:20]),
        "test_set": TensorDataset(x[:20], y[:20]),
        "more_labels_can_be_afforded": lambda: next(budget),
        "ask_a_person": lambda indices: y[50:][indices],
        "model_factory": lambda: ddu.create_model("resnet18", num_classes=10, in_channels=3, width=0.0625),
        "pool": data.load("ambiguous_mnist_5k", "test"),
    }


@contextmanager
def pictures() -> Iterator[Names]:
    """A few images in colour."""
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    yield {"images": images, "labels": np.array([0, 1])}


@contextmanager
def nothing() -> Iterator[Names]:
    """Most pages define what they use."""
    yield {}


PREPARED: dict[str, Callable[[], Any]] = {
    "active-learning.md": samples_to_label,
    "corruptions.md": pictures,
    "doctor.md": to_diagnose,
    "exporting.md": to_export,
    "guide.md": model_and_loaders,
    "index.md": model_and_loaders,
    "monitoring.md": calibrated,
    "reporting.md": to_report,
    "scaling.md": data_sets,
    "thresholds.md": calibrated,
    "training.md": small_mnist,
}
"""The context of each page that takes something as given."""


REPLACED = {
    "active-learning.md": {
        "epochs=20": "epochs=1",
        "width=0.25": "width=0.0625",
        "until=300": "until=55",
        "until=50": "until=20",
        "(0, 1)": "(0,)",
    },
    "training.md": {"epochs=3": "epochs=1"},
}
"""Numbers in the code of a page that would take minutes, and those that the tests put in their place."""


@contextmanager
def prepared(page: Path) -> Iterator[tuple[Names, dict[str, str]]]:
    """What a page takes as given, and the words in it that stand for something else here."""
    if page.name == "serving.md":
        with served(make_source((1, 28, 28)), name="demo") as client:
            yield {}, {"127.0.0.1:8000": client.address.removeprefix("http://")}
    else:
        with PREPARED.get(page.name, nothing)() as names:
            yield names, REPLACED.get(page.name, {})
