"""Does a score see what is plainly unknown? Flat images, noise and shuffled patches, made from held-out images, tell.

They are judged as any other input, and nothing is learned from them. A probe that may well be one of the data is left
out: flat images where some of the data are flat, and noise where neighbouring pixels have nothing to do with each
other. Shuffled patches are known in part: of textures they are legitimate images, and a network that averages over
positions sees little else in photographs. They count only where the network predicts other classes for them, and the
score finds them no less usual than held-out images.
"""

import warnings
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ddu.detectors.inputs import are_images
from ddu.errors import BlindSpotWarning
from ddu.messages import frames_to_the_caller
from ddu.types import Prediction, Verdict

# Images that are kept, the fewest that can tell, and the least side of one that has patches, of which a side has four
_SIZE, _FEWEST, _SIDE, _GRID = 32, 8, 8, 4
# Less than this share of the usual contrast is flat; neighbours that correlate less than this are noise
_FLAT, _NOISE = 0.1, 0.5
# Of a probe that is seen, at least this share is flagged. Of shuffled images that are no longer their class, this share
# is predicted otherwise; and this is the p-value of the usual held-out image
_SEEN, _CHANGED, _USUAL = 0.5, 0.5, 0.5

SHUFFLED_PATCHES = "images with shuffled patches"


class Probes:
    """The first images of a pass, and what is made of them; none where the model takes other inputs besides."""

    needs_whole_inputs: ClassVar[bool] = True

    def __init__(self) -> None:
        self.images = torch.zeros(0)

    def add(self, rows: Tensor) -> None:
        """Keeps the first images; anything else is left alone."""
        if not are_images(rows) or min(rows.shape[2:]) < _SIDE or len(self.images) >= _SIZE:
            return
        new = rows[: _SIZE - len(self.images)].detach().clone()
        if not len(self.images):
            self.images = new
        elif new.shape[1:] == self.images.shape[1:]:
            self.images = torch.cat([self.images, new.to(self.images)])

    def warn_of_blindness(self, predict: Callable[[Tensor], Prediction], rate: float, way_out: str) -> None:
        """Warns of probes of which less than half are flagged.

        Args:
            predict: Judges a batch, with verdicts and p-values.
            rate: The false-alarm rate.
            way_out: What sees more.
        """
        images = self.images
        if len(images) < _FEWEST or not bool(torch.isfinite(images.sum())):
            return
        unseen, p_values = [], []
        for name, probe in made_from(images).items():
            found = predict(probe)
            assert found.p_value is not None
            flagged = float(np.mean(np.asarray(found.verdict) == Verdict.OUT_OF_DISTRIBUTION))
            p_value = float(found.p_value.median())
            if flagged >= _SEEN or (name == SHUFFLED_PATCHES and not self._is_unknown(predict, found, p_value)):
                continue
            unseen.append(f"{flagged:.0%} of {len(probe)} {name}")
            p_values.append(p_value)
        if unseen:
            warnings.warn(
                f"The score is blind to inputs that are plainly unknown: it flags {' and '.join(unseen)}, made from "
                f"held-out ones, at a false-alarm rate of {rate:g}; half of each would take a rate of "
                f"{max(p_values):.2g}. {way_out} calibrate(..., probes=False) does not ask.",
                BlindSpotWarning,
                stacklevel=frames_to_the_caller(),
            )

    def _is_unknown(self, predict: Callable[[Tensor], Prediction], shuffled: Prediction, p_value: float) -> bool:
        """Whether shuffled images are no longer what they were, and the score takes them for usual ones."""
        if p_value < _USUAL:
            return False
        return float((predict(self.images).label != shuffled.label).double().mean()) >= _CHANGED


def made_from(images: Tensor) -> dict[str, Tensor]:
    """The probes, by name, that cannot well be among data like these images."""
    contrast = images.float().std((2, 3)).mean(1)
    probes = {"flat images": flat(images)} if float(contrast.min()) > _FLAT * float(contrast.median()) else {}
    if neighbour_correlation(images) > _NOISE:
        probes |= {"images of noise": noise(images), SHUFFLED_PATCHES: shuffled_patches(images)}
    return probes


def flat(images: Tensor) -> Tensor:
    """Images of the mean colour of each."""
    return images.mean((2, 3), keepdim=True).expand_as(images).clone()


def noise(images: Tensor) -> Tensor:
    """As many images of noise, each value drawn evenly from the range of its channel."""
    least, most = (bound.view(1, -1, 1, 1) for bound in (images.amin((0, 2, 3)), images.amax((0, 2, 3))))
    drawn = torch.rand(images.shape, generator=torch.Generator().manual_seed(0))
    return least + (most - least) * drawn.to(images)


def shuffled_patches(images: Tensor) -> Tensor:
    """The images, cut into 4 x 4 patches that are put together in another order; remaining rows and columns stay."""
    high, wide = (side // _GRID for side in images.shape[2:])
    area = images[:, :, : high * _GRID, : wide * _GRID]
    patches = area.unflatten(3, (_GRID, wide)).unflatten(2, (_GRID, high)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    generator = torch.Generator().manual_seed(0)
    order = torch.stack([torch.randperm(_GRID**2, generator=generator) for _ in images]).to(images.device)
    moved = patches[torch.arange(len(images), device=images.device)[:, None], order]
    result = images.clone()
    result[:, :, : high * _GRID, : wide * _GRID] = (
        moved.unflatten(1, (_GRID, _GRID)).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    )
    return result


def neighbour_correlation(images: Tensor) -> float:
    """How much a pixel has to do with the one to its right, within images: 0 for noise, near 1 for photographs."""
    centred = images.double() - images.double().mean((2, 3), keepdim=True)
    square = float(centred.square().mean())
    return float((centred[..., :-1] * centred[..., 1:]).mean()) / square if square > 0 else 1.0
