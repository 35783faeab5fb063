"""Fog, frost and snow, and spatter on the lens. Corruptions map images in [0, 1], (image, height, width, 3)."""

from functools import cache

import numpy as np

from ddu.data.corruptions.images import ImageRandom, correlate, gaussian, ndimage, streak, zoom
from ddu.data.preprocessing import LUMA


def plasma(random: ImageRandom, size: int, decay: float) -> np.ndarray:
    """Cloud-like fields in [0, 1] by diamond-square, with opposite borders that meet, (image, size, size).

    Each halving of the grid fills in the mean of four neighbours plus a uniform displacement, whose amplitude falls by
    decay² from one halving to the next: a larger decay is a smoother field.

    Args:
        random: Where the displacements come from.
        size: A power of two.
        decay: Square root of the ratio of successive amplitudes.
    """
    displacement = random.uniform(-1, 1, size, size)
    field = np.zeros_like(displacement)
    step, amplitude = size, np.float32(1)
    while step > 1:
        half = step // 2
        on, between = slice(0, None, step), slice(half, None, step)
        corners = field[:, on, on]
        vertical = corners + np.roll(corners, -1, axis=1)
        horizontal = corners + np.roll(corners, -1, axis=2)
        centres = (vertical + np.roll(vertical, -1, axis=2)) / 4 + amplitude * displacement[:, between, between]
        field[:, between, between] = centres
        field[:, between, on] = (vertical + centres + np.roll(centres, 1, axis=2)) / 4
        field[:, on, between] = (horizontal + centres + np.roll(centres, 1, axis=1)) / 4
        field[:, between, on] += amplitude * displacement[:, between, on]
        field[:, on, between] += amplitude * displacement[:, on, between]
        step, amplitude = half, amplitude / np.float32(decay**2)
    field -= field.min(axis=(1, 2), keepdims=True)
    return field / field.max(axis=(1, 2), keepdims=True)


def fog(x: np.ndarray, random: ImageRandom, *, amount: float, decay: float) -> np.ndarray:
    """(x + a f) m / (m + a) with a plasma field f and the image's largest value m."""
    height, width = x.shape[1:3]
    size = 1 << (max(height, width) - 1).bit_length()
    field = plasma(random, size, decay)[:, :height, :width, None]
    largest = x.max(axis=(1, 2, 3), keepdims=True)
    return (x + np.float32(amount) * field) * largest / (largest + np.float32(amount))


def frost(x: np.ndarray, random: ImageRandom, *, image_weight: float, frost_weight: float) -> np.ndarray:
    """A weighted sum of the image and of a random crop of a frost texture."""
    textures = frost_textures()
    count, size = textures.shape[:2]
    which = random.integers(0, count)
    rows, columns = random.integers(0, size, 2).T
    # The textures tile, so that a crop may run over their border
    row = (rows[:, None] + np.arange(x.shape[1])) % size
    column = (columns[:, None] + np.arange(x.shape[2])) % size
    crop = textures[which[:, None, None], row[:, :, None], column[:, None, :]]
    return np.float32(image_weight) * x + np.float32(frost_weight) * crop


def snow(
    x: np.ndarray,
    random: ImageRandom,
    *,
    mean: float,
    std: float,
    zoom_factor: float,
    cutoff: float,
    radius: int,
    sigma: float,
    image_weight: float,
) -> np.ndarray:
    """Streaks of falling snow, and a scene that whitens.

    What exceeds the cut-off in zoomed N(mean, std²) noise is drawn out steeply, at most 45° off the vertical; the layer
    is added twice, the second time turned by half. The scene is w x + (1 - w) max(x, 1.5 grey + 0.5).
    """
    flakes = zoom(np.float32(mean) + np.float32(std) * random.normal(*x.shape[1:3]), zoom_factor)
    flakes = np.clip(np.where(flakes < cutoff, 0, flakes), 0, 1)[..., None]
    flakes = streak(flakes, radius, sigma, random.uniform(-135, -45))
    grey = (x * LUMA).sum(axis=-1, keepdims=True)
    whitened = np.maximum(x, np.float32(1.5) * grey + np.float32(0.5))
    scene = np.float32(image_weight) * x + np.float32(1 - image_weight) * whitened
    return scene + flakes + flakes[:, ::-1, ::-1]


# Frost on a window pane, made procedurally: the textures are our own, not the photographs of the published set


TEXTURES = 5
SIZE = 200  # pixels per side of a finished texture
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


# Spatter: drops of water or blots of mud on the lens


WATER = np.array([175, 238, 238], np.float32) / 255
MUD = np.array([63, 42, 20], np.float32) / 255

# Gradients, in steps of a byte, above which a pixel may be an edge, and above which it is one
_WEAK_EDGE, _STRONG_EDGE = 50, 150
_FURTHEST = 20.0  # distances to an edge are cut here, in pixels
_THINNEST_MUD = 0.8

_SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], np.float32)
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)
_MEAN = np.full((3, 3), 1 / 9, np.float32)


def spatter(
    x: np.ndarray,
    random: ImageRandom,
    *,
    mean: float,
    std: float,
    sigma: float,
    cutoff: float,
    strength: float,
    mud: int,
) -> np.ndarray:
    """Puts liquid where blurred N(mean, std²) noise exceeds the cut-off.

    Args:
        x: Images in [0, 1], (image, height, width, 3).
        random: Where the noise comes from.
        mean: Mean of the noise.
        std: Its standard deviation.
        sigma: Standard deviation of the blur in pixels.
        cutoff: Where liquid begins.
        strength: Of water: how bright the brightest drop is. Of mud: blur of the blots' edges in pixels.
        mud: 1 for mud, which covers, 0 for water, which shines.
    """
    layer = gaussian(np.float32(mean) + np.float32(std) * random.normal(*x.shape[1:3]), sigma)
    if mud:
        cover = gaussian((layer > cutoff).astype(np.float32), strength)
        cover = np.where(cover < _THINNEST_MUD, 0, cover)[..., None]
        return x * (1 - cover) + MUD * cover
    layer = np.where(layer < cutoff, 0, layer)
    return x + np.float32(strength) * drops(layer)[..., None] * WATER


def drops(layer: np.ndarray) -> np.ndarray:
    """Light on drops of water, at most 1 in each image, from the distance to the drops' edges.

    Args:
        layer: Amount of water, in [0, 1] or a little more, 0 where there is none, (image, height, width).
    """
    layer = np.floor(np.clip(layer, 0, 1) * 255)
    distance = np.floor(correlate(edge_distance(canny(layer, _WEAK_EDGE, _STRONG_EDGE)), _MEAN))
    relief = np.clip(correlate(equalised(distance.astype(np.uint8)).astype(np.float32), _EMBOSS), 0, 255)
    light = layer * correlate(np.rint(relief), _MEAN)
    brightest = light.max(axis=(1, 2), keepdims=True)
    return light / np.where(brightest > 0, brightest, 1)


def canny(x: np.ndarray, weak: float, strong: float) -> np.ndarray:
    """Canny's edges: ridges of the gradient above `weak` that touch, in their own image, a ridge above `strong`.

    Args:
        x: Grey images, (image, height, width).
        weak: Smallest |∂x/∂row| + |∂x/∂column|, by Sobel's kernels, of any pixel of an edge.
        strong: The same for at least one pixel of each edge.

    Returns:
        Which pixels are on an edge, (image, height, width).
    """
    down, right = correlate(x, _SOBEL.T, mode="nearest"), correlate(x, _SOBEL, mode="nearest")
    gradient = np.abs(down) + np.abs(right)

    # A ridge is higher than both neighbours along the gradient, which is rounded to one of four directions
    padded = np.pad(gradient, ((0, 0), (1, 1), (1, 1)))
    neighbour = np.lib.stride_tricks.sliding_window_view(padded, x.shape[1:], axis=(1, 2))
    ahead = [neighbour[:, 1 + row, 1 + column] for row, column in ((0, 1), (1, 1), (1, 0), (1, -1))]
    behind = [neighbour[:, 1 - row, 1 - column] for row, column in ((0, 1), (1, 1), (1, 0), (1, -1))]
    direction = np.rint(np.arctan2(down, right) / (np.pi / 4)).astype(np.int64) % 4
    ridge = (gradient > np.choose(direction, behind)) & (gradient >= np.choose(direction, ahead))

    connected = np.zeros((3, 3, 3), bool)
    connected[1] = True  # within one image, diagonals included
    edges, count = ndimage().label(ridge & (gradient > weak), connected)
    holds_strong = np.zeros(count + 1, bool)
    holds_strong[edges[ridge & (gradient > strong)]] = True
    return holds_strong[edges] & (edges > 0)


def edge_distance(edges: np.ndarray) -> np.ndarray:
    """Distance of every pixel to the nearest edge of its own image, cut at 20 pixels, (image, height, width)."""
    if not edges.any():
        return np.full(edges.shape, _FURTHEST, np.float32)
    # Images lie further apart than the cut, so that no other image's edge counts
    distance = ndimage().distance_transform_edt(~edges, sampling=(2 * _FURTHEST, 1, 1))
    return np.minimum(distance, _FURTHEST).astype(np.float32)


def equalised(images: np.ndarray) -> np.ndarray:
    """Histogram equalisation: each byte becomes its rank among the bytes of its image, spread over 0 to 255.

    A byte v becomes 255 (n(v) - n₀) / (n - n₀), where n(v) pixels are at most v and n₀ have the least byte. An image of
    one byte stays as it is.
    """
    offset = 256 * np.arange(len(images))[:, None]
    flat = images.reshape(len(images), -1)
    histogram = np.bincount((offset + flat).ravel(), minlength=256 * len(images)).reshape(-1, 256)
    ranks = histogram.cumsum(axis=1)
    least = np.take_along_axis(histogram, flat.min(axis=1, keepdims=True).astype(np.int64), axis=1)
    rest = flat.shape[1] - least
    table = np.rint(255 * np.maximum(ranks - least, 0) / np.maximum(rest, 1))
    table = np.where(rest > 0, table, np.arange(256)).astype(np.uint8)
    return np.take_along_axis(table, flat.astype(np.int64), axis=1).reshape(images.shape)
