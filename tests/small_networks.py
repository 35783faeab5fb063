"""Small networks, as a user's module would have them."""

import textwrap
from pathlib import Path

import torch
from torch import nn

import ddu
from ddu.data import Preprocessing

SHAPE = (1, 12, 12)
CLASSES = ("left", "right")
PREPROCESSING = Preprocessing(SHAPE, mean=(0.5,), std=(0.5,))


def make_network() -> nn.Sequential:
    """Tells images that are brighter on the left from those that are brighter on the right."""
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        features = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.ReLU())
        head = nn.Linear(8, 2)
        x, y = to_inputs(*draw_images(256, seed=5))
        z = torch.cat([features(x), torch.ones(256, 1)], 1)
        weights = torch.linalg.lstsq(z, 4.0 * nn.functional.one_hot(y).float()).solution  # instead of a training
        head.weight.copy_(weights[:-1].T)
        head.bias.copy_(weights[-1])
        network = nn.Sequential(*features, head)
    return network.eval()


def draw_images(count: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (sample, height, width), bytes, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    slope = (2 * labels - 1 + 0.5 * torch.randn(count, generator=generator))[
        :, None, None
    ]  # some are on the wrong side
    ramp = 100 + 40 * slope * torch.linspace(-1, 1, 12).expand(count, 12, 12)
    return (ramp + 25 * torch.randn(count, 12, 12, generator=generator)).clamp(0, 255).byte(), labels


def to_inputs(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return PREPROCESSING(images.numpy()), labels


def make_detector() -> ddu.DDU:
    """A detector around the network, fitted and calibrated."""
    detector = ddu.DDU(make_network(), class_names=CLASSES).fit([to_inputs(*draw_images(400, seed=1))])
    return detector.calibrate([to_inputs(*draw_images(300, seed=2))], 0.05)


def write_module(folder: Path, name: str = "user_models") -> None:
    """A user's module: networks with and without their preprocessing, and functions that return neither."""
    (folder / f"{name}.py").write_text(
        textwrap.dedent(
            """
            from dataclasses import replace

            from tests.small_networks import PREPROCESSING, make_network as alone

            def with_preprocessing():
                return alone(), PREPROCESSING

            def with_another_shape():
                return alone(), replace(PREPROCESSING, shape=(1, 8, 8))

            def broken():
                raise RuntimeError("no weights here")

            def number():
                return 3

            def wants_an_argument(path):
                return alone()
            """
        )
    )


def with_preprocessing() -> tuple[nn.Sequential, Preprocessing]:
    return make_network(), PREPROCESSING
