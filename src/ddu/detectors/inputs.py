"""Are these the inputs that a detector was made for? What a pass sees of its raw inputs, and the checks that tell.

without_bad_inputs    NaN and infinity, which must not disturb other inputs
InputSample           was held-out data in the training pass? a sample of hashes, of fixed size
Channels              are images scaled as those of the fit were? ranges and moments of the channels
SeenInputs            both of a pass
warn_of_augmentation  does a data set give another input when the same sample is read again?
"""

import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ddu.errors import AugmentationWarning, InputError, OverlapWarning, ScaleWarning
from ddu.features import FeatureBatch
from ddu.features.loaders import batch_of_one, inputs_of
from ddu.messages import frames_to_the_caller

# Overlap: hashes that are kept, values of an input that are hashed, and the share and number of known inputs that are
# worth a warning
_SIZE, _VALUES, _SHARE, _FEWEST = 4096, 256, 0.1, 10
# Scale: fewer images than this cannot tell, as one may be odd; an image is outside if it leaves the range of the fit by
# more than this share of its width
_FEWEST_IMAGES, _BEYOND = 8, 0.5
# Shares from 0 to 1 come as close as this to both ends, and spread by less than this share of what was normalised
_END, _SPREAD = 0.05, 0.6
_MOMENTS = ("mean", "deviation", "least", "most")
# Augmentation: samples that are read twice; a coin that flips images is missed once in 2⁸
_SAMPLES = 8


# The inputs of a batch


def watched(
    run: Callable[[Any], FeatureBatch],
    *watchers: Callable[[Tensor], None],
    of_whole_inputs: Iterable[Callable[[Tensor], None]] = (),
    check: Callable[[], None] | None = None,
) -> Callable[[Any], FeatureBatch]:
    """The same function, whose inputs are shown to watchers; those of extracted features are not known.

    Args:
        run: The function.
        watchers: Are shown the inputs, or the first of several that the model takes.
        of_whole_inputs: Are shown nothing where the model takes several.
        check: Is called before each batch.
    """

    def run_and_show(inputs: Any) -> FeatureBatch:
        if check is not None:
            check()
        batch = run(inputs)  # first, as it says what is wrong with the inputs
        rows = first_tensor(inputs)
        are_several = isinstance(inputs, Mapping | tuple | list) and len(inputs) > 1
        if rows is not None:
            for watcher in (*watchers, *(() if are_several else of_whole_inputs)):
                watcher(rows)
        return batch

    return run_and_show


def first_tensor(inputs: Any) -> Tensor | None:
    """A batch that is a tensor or an array, or the first one among several inputs, with at least one row."""
    if isinstance(inputs, FeatureBatch):
        return None
    several = inputs.values() if isinstance(inputs, Mapping) else inputs
    items = several if not isinstance(several, Tensor | np.ndarray) else [several]
    first = next((item for item in items if isinstance(item, Tensor | np.ndarray) and item.ndim), None)
    if first is None or not len(first):
        return None
    return (torch.from_numpy(np.array(first)) if isinstance(first, np.ndarray) else first).detach()


def are_images(rows: Tensor) -> bool:
    """Whether a batch is one of images of floats, (image, channel, row, column)."""
    return rows.ndim == 4 and rows.is_floating_point() and min(rows.shape[2:]) > 1


# NaN and infinity


def without_bad_inputs(x: Any) -> tuple[Any, Tensor | None]:
    """A batch without NaN and infinity, and which of its rows had some; several inputs are left as they are.

    The rows are zeros then, which cannot disturb the others.
    """
    if isinstance(x, np.ndarray) and x.dtype.kind == "f":
        x = torch.from_numpy(np.array(x))
    if not isinstance(x, Tensor) or not x.is_floating_point() or not x.ndim:
        return x, None
    # They show in the sum, at a fraction of the cost of looking at every value
    if bool(torch.isfinite(x.sum())) or bool((finite := torch.isfinite(x)).all()):
        return x, None
    bad = ~finite.reshape(len(x), -1).all(1)
    return x.masked_fill(bad.view(-1, *[1] * (x.ndim - 1)), 0), bad


def without_bad_outputs(batch: FeatureBatch, bad_inputs: Tensor | None) -> tuple[FeatureBatch, np.ndarray | None]:
    """The same of features and logits; and why a row is invalid, where one is."""
    reasons = {"its features are NaN or infinite": batch.features, "its logits are NaN or infinite": batch.logits}
    rows = {reason: ~torch.isfinite(values).all(1) for reason, values in reasons.items()}
    if bad_inputs is not None and len(bad_inputs) == len(batch.logits):
        rows["it has NaN or infinity"] = bad_inputs
    if not any(bool(bad.any()) for bad in rows.values()):
        return batch, None
    why = np.full(len(batch.logits), "", dtype=object)
    for reason, bad in rows.items():
        why[bad.cpu().numpy()] = reason
    invalid = torch.from_numpy(why != "").to(batch.logits.device)[:, None]
    return FeatureBatch(batch.features.masked_fill(invalid, 0), batch.logits.masked_fill(invalid, 0)), why


# Overlap


class InputSample:
    """The smallest hashes of all inputs that were seen: of two samples, those below both limits can be compared.

    An input is known again by its values alone; one that is augmented is new each time.

    Attributes:
        hashes: In ascending order, each once.
        copies: How many inputs had each of them.
        seen: How many inputs there were.
    """

    def __init__(self) -> None:
        self.hashes = np.zeros(0, dtype=np.int64)
        self.copies = np.zeros(0, dtype=np.int64)
        self.seen = 0

    def add(self, rows: Tensor) -> None:
        """Adds a batch."""
        self._add(_hash(rows).numpy(), np.ones(len(rows), dtype=np.int64), len(rows))

    def merge(self, other: "InputSample") -> None:
        """Adds the inputs that another sample has seen."""
        self._add(other.hashes, other.copies, other.seen)

    def _add(self, hashes: np.ndarray, copies: np.ndarray, seen: int) -> None:
        self.seen += seen
        values, which = np.unique(np.concatenate([self.hashes, hashes]), return_inverse=True)
        counts = np.zeros(len(values), dtype=np.int64)
        np.add.at(counts, which, np.concatenate([self.copies, copies]))
        self.hashes, self.copies = values[:_SIZE], counts[:_SIZE]

    def warn_of_overlap(self, held_out: "InputSample") -> None:
        """Warns if many of the held-out inputs are among those of this sample."""
        limit = min((int(s.hashes[-1]) for s in (self, held_out) if len(s.hashes) == _SIZE), default=2**63 - 1)
        compared = held_out.hashes[held_out.hashes <= limit]
        known = int(np.isin(compared, self.hashes).sum())
        if known < _FEWEST or known < _SHARE * len(compared):
            return
        # Rows of a few values, and inputs of which the hash sees too little, recur in any two sets
        copies = int(held_out.copies[: len(compared)].sum())
        if copies - len(compared) > _SHARE * copies:
            return
        warnings.warn(
            f"About {known / len(compared):.0%} of the {held_out.seen:,} held-out inputs were in the training pass "
            f"({known:,} of {len(compared):,} that were compared). What a model was trained on looks more familiar to "
            "it than new data, of which far more than the false-alarm rate is then flagged: calibrate on inputs that "
            "neither the training nor fit have seen.",
            OverlapWarning,
            stacklevel=frames_to_the_caller(),
        )


def _hash(x: Tensor) -> Tensor:
    """A number for each row, by values at fixed places, (sample,); integer arithmetic wraps around."""
    rows = x.detach().reshape(len(x), -1)
    bits = rows[:, :: max(rows.shape[1] // _VALUES, 1)].cpu().double().contiguous().view(torch.int64)
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=generator) * 2 + 1
    mixed = (bits ^ (bits >> 29)) * factors
    return ((mixed ^ (mixed >> 32)) * 0x2545F4914F6CDD1D).sum(1)


# Scale


class Channels:
    """Mean, deviation and range of each channel of the images in a pass.

    Each image is summed up in its own precision, and all of them in float64.

    Genuinely unknown images differ from known ones in mean and spread, but the range of a pixel is that of the
    preprocessing, whatever the image shows. So it is ranges that are compared, and moments only where ranges agree.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = self.least = self.most = np.zeros(0)
        self.has_told = False

    @property
    def is_known(self) -> bool:
        """Whether any images were seen."""
        return self.count > 0

    @property
    def deviation(self) -> np.ndarray:
        """The standard deviation of each channel."""
        return np.sqrt(self.squares / max(self.count, 1))

    def add(self, rows: Tensor) -> None:
        """Adds a batch of images; anything else is left alone, and so are NaN and infinity."""
        if not are_images(rows) or (self.is_known and rows.shape[1] != len(self.mean)):
            return
        # Each image in its own precision, on its device; images together in double precision
        pixels = rows.detach().float() if rows.dtype in (torch.float16, torch.bfloat16) else rows.detach()
        means = pixels.mean((2, 3))
        squares = (pixels - means[..., None, None]).square_().sum((2, 3))
        if not bool(torch.isfinite(squares.sum())):
            if rows.dtype != torch.float64:
                self.add(rows.cpu().double())  # squares may be too large for single precision alone
            return
        size, means = rows[0, 0].numel(), means.cpu().double().numpy()
        batch = Channels()
        batch.count, batch.mean = len(rows) * size, means.mean(0)
        batch.squares = squares.cpu().double().numpy().sum(0) + size * np.square(means - batch.mean).sum(0)
        ends = pixels.amin((0, 2, 3)), pixels.amax((0, 2, 3))
        batch.least, batch.most = (end.cpu().double().numpy() for end in ends)
        self.merge(batch)

    def merge(self, other: "Channels") -> None:
        """Adds the images that others have seen; of another number of channels, they are left alone."""
        if not other.is_known or (self.is_known and len(other.mean) != len(self.mean)):
            return
        count, mean, squares, least, most = other.count, other.mean, other.squares, other.least, other.most
        if self.is_known:
            # Chan et al.: two sums of squares about their own means, and that of the means
            count, delta = self.count + other.count, other.mean - self.mean
            squares = squares + self.squares + np.square(delta) * (self.count * other.count / count)
            mean = self.mean + delta * (other.count / count)
            least, most = np.minimum(least, self.least), np.maximum(most, self.most)
        self.count, self.mean, self.squares, self.least, self.most = count, mean, squares, least, most

    def warn_of_scale(self, rows: Tensor | None) -> None:
        """Warns, once, if a batch of images is not scaled as those that were added."""
        if self.has_told or rows is None or not self.is_known or not are_images(rows):
            return
        if len(rows) < _FEWEST_IMAGES or rows.shape[1] != len(self.mean) or self._has_scale_of(rows):
            return
        self.has_told = True
        theirs = Channels()
        theirs.add(rows)
        if not theirs.is_known:
            return
        warnings.warn(
            f"The inputs are not scaled as those of the fit: these {len(rows)} images {theirs.in_words()}, and the fit "
            f"saw images that {self.in_words()}. A network answers such inputs with confidence, and wrongly: give them "
            "the transform of the training data, such as torchvision.transforms.Normalize(mean, std) after ToTensor().",
            ScaleWarning,
            stacklevel=frames_to_the_caller(),
        )

    def in_words(self) -> str:
        """Range, mean and deviation of all channels."""
        low, high = float(self.least.min()), float(self.most.max())
        mean, deviation = float(self.mean.mean()), float(np.sqrt(np.square(self.deviation).mean()))
        return f"range from {low:.3g} to {high:.3g} (mean {mean:.3g}, deviation {deviation:.3g})"

    def _has_scale_of(self, rows: Tensor) -> bool:
        margin = _BEYOND * float((self.most - self.least).max())
        least, most = (bound.cpu().double().numpy() for bound in (rows.amin((2, 3)), rows.amax((2, 3))))
        outside = ((least < self.least - margin) | (most > self.most + margin)).any(1)
        if margin > 0 and 2 * int(outside.sum()) > len(rows):
            return False
        low, high = float(least.min()), float(most.max())
        if not (0 <= low <= _END and 1 - _END <= high <= 1):
            return True
        # Shares: as wanted, unless those of the fit went well beyond, and spread more
        if float(self.least.min()) >= -_END and float(self.most.max()) <= 1 + _END:
            return True
        theirs = Channels()
        theirs.add(rows)
        return bool((theirs.deviation >= _SPREAD * self.deviation).any())

    # In a file

    def tensors(self) -> dict[str, Tensor]:
        """Everything by name, where it is known."""
        if not self.is_known:
            return {}
        return {"channels": torch.from_numpy(np.stack([getattr(self, name) for name in _MOMENTS]))}

    @classmethod
    def restore(cls, tensors: dict[str, Tensor]) -> "Channels":
        """The same from `tensors`, or an error that says what is wrong with them."""
        channels = cls()
        if not tensors:
            return channels
        values = tensors.get("channels")
        if values is None or len(tensors) > 1:
            raise InputError(f"The inputs' tensors must be 'channels' alone. Got {', '.join(tensors)} instead.")
        if values.dtype != torch.float64 or values.ndim != 2 or len(values) != len(_MOMENTS) or not values.numel():
            raise InputError(
                f"The inputs' tensor 'channels' must be torch.float64 of shape ({len(_MOMENTS)}, channels). Got "
                f"{values.dtype} of shape {tuple(values.shape)} instead."
            )
        mean, deviation, least, most = values.numpy()
        if not (np.isfinite(values.numpy()).all() and (deviation >= 0).all() and (least <= most).all()):
            raise InputError("The inputs' tensor 'channels' must be finite, with deviations and ranges of at least 0.")
        channels.count, channels.mean, channels.squares = 1, mean, np.square(deviation)
        channels.least, channels.most = least, most
        return channels


class SeenInputs:
    """What is remembered of the inputs of a pass."""

    def __init__(self) -> None:
        self.sample, self.channels = InputSample(), Channels()

    def add(self, rows: Tensor) -> None:
        """Takes note of a batch."""
        self.sample.add(rows)
        self.channels.add(rows)

    def merge(self, other: "SeenInputs") -> None:
        """Adds what is remembered of another pass."""
        self.sample.merge(other.sample)
        self.channels.merge(other.channels)


# Augmentation


def warn_of_augmentation(loader: Any, purpose: str) -> None:
    """Warns if the data set of a loader gives random inputs; the random state is left as it was.

    Only a map-style data set can be asked for a sample twice. One that fails is left to the pass, which says why.
    """
    if (
        not isinstance(loader, DataLoader)
        or isinstance(loader.dataset, IterableDataset)
        or loader.batch_sampler is None
    ):
        return
    with _random_state_restored():
        try:
            found = _first_that_differs(loader)
        except Exception:  # whatever it is, it is no sign of augmentation
            return
    if found is None:
        return
    index, difference = found
    named = _random_transforms(loader.dataset)
    cause = f" (its transforms have {', '.join(named)})" if named else ""
    warnings.warn(
        f"The loader augments{cause}: sample {index}, read twice, differs by up to {difference:.3g}. {purpose} on "
        "inputs as they will be predicted: give the data set the transforms of the test data.",
        AugmentationWarning,
        stacklevel=frames_to_the_caller(),
    )


def _first_that_differs(loader: DataLoader[Any]) -> tuple[int, float] | None:
    """The first of some samples whose input is another when it is read again, and by how much."""
    dataset: Any = loader.dataset
    samples = len(dataset)
    for index in dict.fromkeys(i * samples // _SAMPLES for i in range(_SAMPLES if samples else 0)):
        first, second = _input_at(loader, index), _input_at(loader, index)
        if first is None or second is None:
            return None
        if first.shape != second.shape:
            return index, float("nan")
        if not torch.equal(first, second) and not (first.isnan() | second.isnan()).any():
            return index, float((first.double() - second.double()).abs().max())
    return None


def _input_at(loader: DataLoader[Any], index: int) -> Tensor | None:
    """One input as the loader gives it, or None if it has no tensor."""
    rows = first_tensor(inputs_of(batch_of_one(loader, index)))
    return None if rows is None else rows.clone()


def _random_transforms(dataset: Any) -> list[str]:
    """The names of random transforms, of torchvision and of those named like them."""
    while hasattr(dataset, "dataset"):  # a subset
        dataset = dataset.dataset
    steps, names = [getattr(dataset, name, None) for name in ("transform", "transforms")], list[str]()
    while steps:
        step = steps.pop(0)
        name = type(step).__name__
        if name.startswith(("Random", "Rand", "Auto", "Trivial", "AugMix", "ColorJitter")):
            names.append(name)
        inner = step if isinstance(step, list | tuple) else getattr(step, "transforms", None)
        inner = inner if isinstance(inner, list | tuple) else [getattr(step, "transform", None)]
        steps += [one for one in inner if one is not None and len(steps) < 100]
    return list(dict.fromkeys(names))


@contextmanager
def _random_state_restored() -> Iterator[None]:
    """Python's, numpy's and torch's random state on the CPU come back, whatever happens."""
    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng([]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
