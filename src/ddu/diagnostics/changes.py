"""Inputs that are plainly unknown, made from held-out ones: what a sensitive feature map must see.

Of images: flat ones, noise and shuffled patches, as calibration asks (`ddu.detectors.probes`); besides, shuffled
pixels, which keep the brightness of every pixel and nothing else, and random phases, which keep how much each image has
of each spatial frequency. Of vectors: values of each column from other inputs, and points far outside.
"""

import torch
from torch import Tensor

from ddu.detectors.inputs import are_images
from ddu.detectors.probes import SHUFFLED_PATCHES, made_from

_LEAST_SIDE = 8
_FAR = 10.0  # standard deviations

PARTLY_KNOWN = frozenset({SHUFFLED_PATCHES, "images with random phases", "vectors with shuffled columns"})
"""Changes that leave some data what it is: of textures the first two, of independent columns the third. They count only
where the network predicts other classes for them."""


def changed(inputs: Tensor) -> dict[str, Tensor]:
    """The changes that suit these inputs, by name; none for what is neither images nor vectors of floats."""
    if are_images(inputs):
        if min(inputs.shape[2:]) < _LEAST_SIDE:
            return {}
        found = made_from(inputs)
        if SHUFFLED_PATCHES in found:  # what is next to a pixel matters, and only then its place does
            found |= {
                "images with shuffled pixels": shuffled_pixels(inputs),
                "images with random phases": random_phases(inputs),
            }
        return found
    if inputs.ndim == 2 and inputs.is_floating_point():
        return {"vectors with shuffled columns": shuffled_columns(inputs), "vectors far outside": far_outside(inputs)}
    return {}


def shuffled_pixels(images: Tensor) -> Tensor:
    """The pixels of each image in another order, all channels alike."""
    generator = torch.Generator().manual_seed(0)
    pixels = images.flatten(2)
    order = torch.rand(len(images), 1, pixels.shape[2], generator=generator).argsort(2).to(images.device)
    return pixels.gather(2, order.expand_as(pixels)).view_as(images)


def random_phases(images: Tensor) -> Tensor:
    """Images with the amplitudes of each one's Fourier transform, its mean, and phases of noise; in the images' range.

    All channels are turned by the same phases, so that colours keep their correlation.
    """
    spectrum = torch.fft.rfft2(images.double())
    noise = torch.randn(images[:, :1].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turn = torch.fft.rfft2(noise.to(images.device))
    turn = turn / turn.abs()
    turn[..., 0, 0] = 1  # the mean stays
    turned = torch.fft.irfft2(spectrum * turn, s=tuple(images.shape[2:]))
    return turned.clamp(images.min(), images.max()).to(images.dtype)


def shuffled_columns(vectors: Tensor) -> Tensor:
    """Each column in an order of its own: every value occurs, and no two of an input belong together."""
    order = torch.rand(vectors.shape, generator=torch.Generator().manual_seed(0)).argsort(0).to(vectors.device)
    return vectors.gather(0, order)


def far_outside(vectors: Tensor) -> Tensor:
    """The vectors, moved by ten standard deviations of each column, up or down."""
    signs = torch.randint(0, 2, vectors.shape, generator=torch.Generator().manual_seed(0)).to(vectors) * 2 - 1
    return vectors + _FAR * vectors.std(0) * signs
