"""The 19 corruptions of CIFAR-10-C by name, and their published severities for images of 32 × 32 pixels.

The constants are those of CIFAR-10-C, which are milder than ImageNet-C's: small images have less to lose.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from ddu.data.corruptions.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from ddu.data.corruptions.digital import (
    brightness,
    contrast,
    elastic_transform,
    jpeg_compression,
    pixelate,
    saturate,
)
from ddu.data.corruptions.images import ImageRandom, to_bytes, to_floats
from ddu.data.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from ddu.data.corruptions.weather import fog, frost, snow, spatter
from ddu.errors import InputError

SEVERITIES = (1, 2, 3, 4, 5)


def check_severity(severity: int) -> None:
    """Refuses what is not a severity."""
    if not isinstance(severity, int | np.integer) or severity not in SEVERITIES:
        raise InputError(f"The severity of a corruption must be 1, 2, 3, 4 or 5. Got {severity!r}.")


@dataclass(frozen=True)
class Corruption:
    """A corruption: what it does to images in [0, 1], and each of its constants at severities 1 to 5."""

    function: Callable[..., np.ndarray]
    constants: Mapping[str, tuple[float, float, float, float, float]]

    @property
    def name(self) -> str:
        """The name it goes by in CIFAR-10-C."""
        return self.function.__name__

    def at(self, severity: int) -> dict[str, float]:
        """The constants of one severity."""
        check_severity(severity)
        return {name: values[severity - 1] for name, values in self.constants.items()}


# fmt: off
_STANDARD = (                                   # severity 1    2     3     4     5
    Corruption(gaussian_noise,    {"std":               ( .04,  .06,  .08,  .09,  .10)}),
    Corruption(shot_noise,        {"photons":           ( 500,  250,  100,   75,   50)}),
    Corruption(impulse_noise,     {"share":             ( .01,  .02,  .03,  .05,  .07)}),
    Corruption(defocus_blur,      {"radius":            (  .3,   .4,   .5,    1,  1.5),
                                   "edge_sigma":        (  .4,   .5,   .6,   .2,   .1)}),
    Corruption(glass_blur,        {"sigma":             ( .05,  .25,   .4,  .25,   .4),
                                   "reach":             (   1,    1,    1,    1,    1),
                                   "rounds":            (   1,    1,    1,    2,    2)}),
    Corruption(motion_blur,       {"radius":            (   6,    6,    6,    8,    9),
                                   "sigma":             (   1,  1.5,    2,    2,  2.5)}),
    Corruption(zoom_blur,         {"limit":             (1.06, 1.11, 1.16, 1.21, 1.26)}),
    Corruption(snow,              {"mean":              (  .1,   .1,  .15,  .25,   .3),
                                   "std":               (  .2,   .2,   .3,   .3,   .3),
                                   "zoom_factor":       (   1,    1, 1.75, 2.25, 1.25),
                                   "cutoff":            (  .6,   .5,  .55,   .6,  .65),
                                   "radius":            (   8,   10,   10,   12,   14),
                                   "sigma":             (   3,    4,    4,    6,   12),
                                   "image_weight":      ( .95,   .9,   .9,  .85,   .8)}),
    Corruption(frost,             {"image_weight":      (   1,    1,   .9,  .85,  .75),
                                   "frost_weight":      (  .2,   .3,   .4,   .4,  .45)}),
    Corruption(fog,               {"amount":            (  .2,   .5,  .75,    1,  1.5),
                                   "decay":             (   3,    3,  2.5,    2, 1.75)}),
    Corruption(brightness,        {"added":             ( .05,   .1,  .15,   .2,   .3)}),
    Corruption(contrast,          {"factor":            ( .75,   .5,   .4,   .3,  .15)}),
    Corruption(elastic_transform, {"displacement":      (   0,  .05,  .08,   .1,   .1),
                                   "smoothing":         (   0,   .2,  .06,  .04,  .03),
                                   "affine":            ( .08,  .07,  .06,  .05,  .03)}),
    Corruption(pixelate,          {"scale":             ( .95,   .9,  .85,  .75,  .65)}),
    Corruption(jpeg_compression,  {"quality":           (  80,   65,   58,   50,   40)}),
)
_EXTRA = (
    Corruption(speckle_noise,     {"std":               ( .06,   .1,  .12,  .16,   .2)}),
    Corruption(gaussian_blur,     {"sigma":             (  .4,   .6,   .7,   .8,    1)}),
    Corruption(spatter,           {"mean":              ( .62,  .65,  .65,  .65,  .65),
                                   "std":               (  .1,   .1,   .3,   .1,   .1),
                                   "sigma":             (  .7,   .8,    1,   .7,   .5),
                                   "cutoff":            (  .7,   .7,  .69,  .69,  .68),
                                   "strength":          (  .5,   .5,   .5,   .6,   .6),
                                   "mud":               (   0,    0,    0,    1,    1)}),
    Corruption(saturate,          {"factor":            (  .3,   .1,  1.5,    2,  2.5),
                                   "added":             (   0,    0,    0,   .1,   .2)}),
)
# fmt: on

_BY_NAME = {corruption.name: corruption for corruption in (*_STANDARD, *_EXTRA)}

CORRUPTIONS = tuple(_BY_NAME)
STANDARD_CORRUPTIONS = tuple(corruption.name for corruption in _STANDARD)
EXTRA_CORRUPTIONS = tuple(corruption.name for corruption in _EXTRA)


def find_corruption(name: str) -> Corruption:
    """A corruption by name; a misspelt name is answered with the closest ones."""
    if name not in _BY_NAME:
        closest = get_close_matches(name, CORRUPTIONS)
        hint = f" The closest names are {', '.join(map(repr, closest))};" if closest else ""
        raise InputError(f"There is no corruption {name!r}.{hint} ddu.data.corruptions.CORRUPTIONS has them all.")
    return _BY_NAME[name]


def severity_constants(name: str, severity: int) -> dict[str, float]:
    """The published constants of a corruption.

    >>> severity_constants("fog", 5)
    {'amount': 1.5, 'decay': 1.75}
    """
    return find_corruption(name).at(severity)


_SMALLEST = 8  # pixels per side
_BLOCK = 250  # images worked on at once: their numbers in [0, 1] stay in a few megabytes


def check_images(images: np.ndarray) -> None:
    """Refuses what is not colour images of bytes."""
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        got = (
            f"{images.dtype} of shape {images.shape}"
            if isinstance(images, np.ndarray)
            else f"a {type(images).__name__}"
        )
        raise InputError(f"Images to corrupt must be a uint8 array of shape (image, height, width, 3). Got {got}.")
    if min(images.shape[1:3]) < _SMALLEST:
        height, width = images.shape[1:3]
        raise InputError(f"Images to corrupt must be at least {_SMALLEST} pixels per side. Got {height} × {width}.")


def check_set(images: np.ndarray) -> None:
    """Refuses what is not a set of at least one image."""
    check_images(images)
    if len(images) == 0:
        raise InputError("There are no images to corrupt.")


def check_seed(seed: int) -> None:
    """Refuses a seed that NumPy would refuse later."""
    if seed < 0:
        raise InputError(f"The seed must not be negative. Got {seed}.")


def corrupt(images: np.ndarray, name: str, severity: int, *, seed: int = 0, start: int = 0) -> np.ndarray:
    """Corrupts images as CIFAR-10-C does.

    An image's randomness is decided by the seed, the corruption, the severity and its index in the whole set, so that a
    set may be corrupted in parts and in any order.

    Args:
        images: Bytes, (image, height, width, 3). The severities are meant for 32 × 32 pixels.
        name: One of `CORRUPTIONS`.
        severity: 1 to 5.
        seed: Decides all randomness.
        start: Index of the first of these images in the whole set.

    Returns:
        Bytes of the same shape.

    >>> import numpy as np
    >>> corrupt(np.full((1, 32, 32, 3), 100, np.uint8), "brightness", 2)[0, 0, 0].tolist()
    [126, 126, 126]
    """
    check_images(images)
    check_seed(seed)
    corruption = find_corruption(name)
    constants = corruption.at(severity)
    if start < 0:
        raise InputError(f"The index of the first image must not be negative. Got {start}.")
    corrupted = np.empty(images.shape, np.uint8)
    for first in range(0, len(images), _BLOCK):
        block = slice(first, first + _BLOCK)
        x = to_floats(images[block])
        random = ImageRandom(seed, name, severity, start + first, len(x))
        corrupted[block] = to_bytes(corruption.function(x, random, **constants))
    return corrupted
