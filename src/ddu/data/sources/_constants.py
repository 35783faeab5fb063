"""Class names and normalisations that several sets share."""

from typing import TypedDict


class Scale(TypedDict):
    """Mean and standard deviation of each channel, with pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


DIGITS = tuple("0123456789")

MNIST = Scale(mean=(0.1307,), std=(0.3081,))
CIFAR = Scale(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
IMAGENET = Scale(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
# ImageNet in grey: the luma of its mean, and about its deviation
GREY = Scale(mean=(0.459,), std=(0.226,))


def usual_scale(shape: tuple[int, ...]) -> Scale:
    """The normalisation of inputs of which nothing but the shape is known: vectors are taken as they are."""
    if len(shape) != 3:
        return Scale(mean=(), std=())
    return IMAGENET if shape[0] == 3 else GREY
