"""scikit-learn's handwritten digits, ambiguous mixtures of them, and patches of its two photographs."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ddu.data._splits import stratified_split
from ddu.errors import LabelError
from ddu.extras import require

NUM_CLASSES = 10
SIZE = 8  # pixels a side

# The share of the first digit in an ambiguous one is uniform between these
_MIX_LOW, _MIX_HIGH = 0.4, 0.6

# Brightness from red, green and blue, by ITU-R BT.601
_LUMA = (0.299, 0.587, 0.114)


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
    """Mixes pairs of digits of different classes into images that really could be either.

    x = w x₁ + (1 - w) x₂ with w uniform on [0.4, 0.6], and the label is y₁ with probability w, otherwise y₂. So no
    classifier can be right much more than half of the time, and the entropy of the label is known: at least 0.67 nats.

    Args:
        images: Digits to mix, (sample, 1, 8, 8).
        labels: Their classes, (sample,).
        count: How many mixtures to make.
        generator: Where the randomness comes from.
    """
    if len(labels.unique()) < 2:
        raise LabelError(
            f"Ambiguous digits mix two classes, and these {len(labels)} samples have {len(labels.unique())}."
        )
    first = torch.randint(len(labels), (count,), generator=generator)
    partners = (labels[first, None] != labels).float()
    second = torch.multinomial(partners, 1, generator=generator).squeeze(1)
    weight = _MIX_LOW + (_MIX_HIGH - _MIX_LOW) * torch.rand(count, generator=generator)
    takes_first = torch.rand(count, generator=generator) < weight

    share = weight[:, None, None, None]
    probs = torch.zeros(count, NUM_CLASSES)
    probs.scatter_(1, labels[first, None], weight[:, None]).scatter_(1, labels[second, None], 1 - weight[:, None])
    return LabelledImages(
        images=share * images[first] + (1 - share) * images[second],
        labels=torch.where(takes_first, labels[first], labels[second]),
        label_probs=probs,
    )


def photo_patches(count: int, generator: Generator) -> Tensor:
    """Grey 8 × 8 patches of scikit-learn's two sample photographs, a temple in China and a flower, in [0, 1].

    Photograph, row and column are drawn uniformly, so a patch may be a roof, a petal, or empty sky: none is left out.

    Returns:
        Patches, (count, 1, 8, 8).
    """
    datasets = require("sklearn.datasets", extra="sklearn", purpose="ddu.data.photo_patches")
    require("PIL", extra="demo", purpose="ddu.data.photo_patches")
    photos = [torch.as_tensor(photo / 255, dtype=torch.float32) for photo in datasets.load_sample_images().images]
    grey = torch.stack([photo @ torch.tensor(_LUMA) for photo in photos])
    photo, row, column = (
        torch.randint(last, (count, 1, 1), generator=generator)
        for last in (len(grey), grey.shape[1] - SIZE + 1, grey.shape[2] - SIZE + 1)
    )
    offset = torch.arange(SIZE)
    return grey[photo, row + offset[:, None], column + offset][:, None]


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
