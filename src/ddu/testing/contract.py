"""What all contracts share: small data, comparisons, and the words for a broken promise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

CLASSES, INPUTS = 3, 4
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-7}

Batches = list[tuple[Tensor, Tensor]]


def keep(check: Callable[[Any], None], subject: Any) -> None:
    """Runs a check; whatever goes wrong in it breaks the promise in its docstring."""
    try:
        check(subject)
    except Exception as error:
        detail = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        raise AssertionError(f"The contract says: {check.__doc__} {detail}") from error


def blobs(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs (sample, 4) of three Gaussians that overlap a little, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (samples,), generator=generator)
    centres = 2 * torch.eye(CLASSES, INPUTS)
    return centres[y] + torch.randn(samples, INPUTS, generator=generator), y


def batches(x: Tensor, y: Tensor, size: int) -> Batches:
    """Samples in batches of a size."""
    return list(zip(x.split(size), y.split(size), strict=True))


def close(a: Tensor, b: Tensor, what: str) -> None:
    """Two tensors are the same up to the rounding of their precision."""
    assert a.shape == b.shape, f"{what}: shapes {tuple(a.shape)} and {tuple(b.shape)}."
    tolerance = _TOLERANCE.get(a.dtype, 1e-2)
    gap = ((a - b).abs() / b.abs().clamp(min=1)).max()
    assert gap <= tolerance, f"{what}: relative difference {float(gap):.2g}, allowed {tolerance:g}."


def bytes_of(tensor: Tensor | None) -> bytes | None:
    """The values of a tensor, to compare later."""
    return None if tensor is None else tensor.detach().numpy().tobytes()


@contextmanager
def unchanged(snapshot: Callable[[], dict[str, Any]]) -> Iterator[Callable[[str], None]]:
    """Gives a check that a snapshot is still what it was at the start."""
    before = snapshot()

    def check(after: str) -> None:
        now = snapshot()
        differing = [key for key in before.keys() | now.keys() if before.get(key) != now.get(key)]
        assert not differing, f"After {after} this is different: {', '.join(sorted(differing))}."

    yield check
