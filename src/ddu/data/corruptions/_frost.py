"""Frost on a window pane, made procedurally: the textures are our own, not the photographs of the published set."""

from functools import cache

import numpy as np

from ddu.data.corruptions._filters import gaussian

TEXTURES = 5
SIZE = 200  # pixels a side of a finished texture
_SHRINK = 5  # crystals are drawn this much larger and scaled down, to 0.2 of the size
_SEED = 20190328

_CRYSTALS = 24  # in one texture
_ICE = np.array([0.93, 0.97, 1.0], np.float32)
_GLASS = np.array([0.16, 0.24, 0.32], np.float32)


@cache
def frost_textures() -> np.ndarray:
    """Frost textures in [0, 1] whose opposite borders meet, (texture, 200, 200, 3): made once, and always the same."""
    textures = np.stack([_texture(np.random.default_rng((_SEED, index))) for index in range(TEXTURES)])
    textures.setflags(write=False)
    return textures


def _texture(random: np.random.Generator) -> np.ndarray:
    """Feathers of ice over a haze, from dark glass to white."""
    side = SIZE * _SHRINK
    rows, columns = np.floor(feathers(random, side)).astype(np.int64).T % side
    strokes = np.bincount(rows * side + columns, minlength=side**2).reshape(1, side, side).astype(np.float32)
    strokes = gaussian(strokes, 1.5, mode="wrap")
    strokes = strokes.reshape(SIZE, _SHRINK, SIZE, _SHRINK).mean(axis=(1, 3))
    # Strokes cover more and more of a pixel, and never more than all of it
    ice = 1 - (1 - 0.4 * _haze(random)) * np.exp(-3 * strokes)
    return _GLASS + ice[..., None] * (_ICE - _GLASS)


def feathers(random: np.random.Generator, side: float) -> np.ndarray:
    """Points on branching crystals: arms from a seed, branches 60° off each arm, twigs 60° off each branch.

    Args:
        random: Where seeds, directions and lengths come from.
        side: Extent in pixels over which seeds are spread.

    Returns:
        Row and column of points one pixel apart, (point, 2); they may lie outside the extent.
    """
    arms = random.integers(2, 7, _CRYSTALS)
    start = np.repeat(random.uniform(0, side, (_CRYSTALS, 2)), arms, axis=0)
    turn = np.repeat(random.uniform(0, 360, _CRYSTALS), arms)
    angle = turn + 60 * np.concatenate([random.permutation(6)[:count] for count in arms])
    length = side * random.uniform(0.12, 0.35, len(angle))
    points = [_on_lines(start, angle, length, 1.0)[0]]
    for spacing in (18.0, 9.0):
        # To either side, and shorter towards the tip
        start, line, along = _on_lines(start, angle, length, spacing)
        angle = angle[line] + random.choice([-60, 60], len(line)) + random.normal(0, 4, len(line))
        length = (1 - along) * length[line] * random.uniform(0.15, 0.55, len(line))
        points.append(_on_lines(start, angle, length, 1.0)[0])
    return np.concatenate(points)


def _on_lines(
    start: np.ndarray, degrees: np.ndarray, length: np.ndarray, spacing: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Evenly spaced points on straight lines: where they are, on which line, and how far along it in [0, 1)."""
    count = np.ceil(length / spacing).astype(np.int64)
    line = np.repeat(np.arange(len(count)), count)
    step = np.arange(count.sum()) - np.repeat(count.cumsum() - count, count)
    angle = np.radians(degrees)
    direction = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    along = spacing * step / length[line]
    return start[line] + (along * length[line])[:, None] * direction[line], line, along


def _haze(random: np.random.Generator) -> np.ndarray:
    """A smooth field in [0, 1] whose spectrum falls as the frequency to the power -1.5, (200, 200)."""
    frequency = np.hypot(np.fft.fftfreq(SIZE)[:, None], np.fft.rfftfreq(SIZE))
    frequency[0, 0] = np.inf
    field = np.fft.irfft2(np.fft.rfft2(random.normal(size=(SIZE, SIZE))) / frequency**1.5, s=(SIZE, SIZE))
    return ((field - field.min()) / (field.max() - field.min())).astype(np.float32)
