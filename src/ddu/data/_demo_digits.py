"""The sets of the demo: scikit-learn's handwritten digits, mixtures of them, and patches of its two photographs."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ddu.data._splits import stratified_split
from ddu.data.mixtures import mix_pairs
from ddu.data.sources.photos import cut_patches
from ddu.extras import require

NUM_CLASSES = 10
SIZE = 8  # pixels per side


@dataclass(frozen=True)
class LabelledImages:
    """Images with labels, and the distribution that each label was drawn from.

    Attributes:
        images: Grey images in [0, 1], (sample, 1, 8, 8).
        labels: One label each, (sample,).
        label_probs: What the label could have been, (sample, class): one-hot where there is no doubt.
    """

    images: Tensor
    labels: Tensor
    label_probs: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> "LabelledImages":
        return LabelledImages(self.images[index], self.labels[index], self.label_probs[index])

    def __add__(self, other: "LabelledImages") -> "LabelledImages":
        return LabelledImages(
            torch.cat([self.images, other.images]),
            torch.cat([self.labels, other.labels]),
            torch.cat([self.label_probs, other.label_probs]),
        )


@dataclass(frozen=True)
class DigitsDemoData:
    """The sets of the demo. No digit is in two of them, nor does a mixture in one use a digit of another.

    Attributes:
        train: Clean and ambiguous digits to learn from.
        calibration: Clean and ambiguous digits, held out for temperature and thresholds.
        clean: Clean test digits.
        ambiguous: Ambiguous test digits, mixed from the clean test digits.
        photos: Patches of photographs, (sample, 1, 8, 8): never trained on, never calibrated on.
    """

    train: LabelledImages
    calibration: LabelledImages
    clean: LabelledImages
    ambiguous: LabelledImages
    photos: Tensor


def digits() -> LabelledImages:
    """The 1,797 handwritten digits of scikit-learn, 8 × 8 pixels."""
    datasets = require("sklearn.datasets", extra="sklearn", purpose="ddu.data.digits")
    pixels, labels = datasets.load_digits(return_X_y=True)
    images = torch.as_tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, SIZE, SIZE)
    labels = torch.as_tensor(labels, dtype=torch.int64)
    return LabelledImages(images, labels, torch.nn.functional.one_hot(labels, NUM_CLASSES).float())


def ambiguous_digits(images: Tensor, labels: Tensor, count: int, generator: Generator) -> LabelledImages:
    """Mixtures of pairs of digits, (sample, 1, 8, 8), as `mix_pairs` makes them."""
    mixed = mix_pairs(images.numpy(), labels.numpy(), count, generator)
    probs = torch.zeros(count, NUM_CLASSES)
    probs.scatter_(1, labels[torch.from_numpy(mixed.parents)], torch.from_numpy(mixed.shares))
    return LabelledImages(torch.from_numpy(mixed.inputs), torch.from_numpy(mixed.labels), probs)


def photo_patches(count: int, generator: Generator) -> Tensor:
    """Grey patches of two photographs in [0, 1], (count, 1, 8, 8), as `cut_patches` cuts them."""
    return cut_patches(count, SIZE, generator)[0][:, None]


def digits_demo_data(seed: int) -> DigitsDemoData:
    """Draws the sets of the demo: 60 % of the digits to train on, 20 % to calibrate on, 20 % to test on."""
    generator = Generator().manual_seed(seed)
    everything = digits()
    train, calibration, test = (
        everything[part] for part in stratified_split(everything.labels, [0.6, 0.2, 0.2], generator)
    )

    def mixed(source: LabelledImages, count: int) -> LabelledImages:
        return ambiguous_digits(source.images, source.labels, count, generator)

    return DigitsDemoData(
        # Many mixtures, each seen a few times only: seen often, their random labels would be learned by heart
        train=train + mixed(train, 8000),
        calibration=calibration + mixed(calibration, len(calibration)),
        clean=test,
        ambiguous=mixed(test, len(test)),
        photos=photo_patches(1000, generator),
    )
