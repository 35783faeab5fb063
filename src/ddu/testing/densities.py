"""The contract of a density. Each check is a function whose docstring is the promise."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ddu.density import GaussianDensity
from ddu.errors import NotFittedError
from ddu.metrics import auroc
from ddu.testing.contract import batches, blobs, bytes_of, close, keep, unchanged

MakeDensity = Callable[[], GaussianDensity]


def check_density(make_density: MakeDensity) -> None:
    """Checks that a density of features keeps to the contract, on data that it brings along.

    - before fit, log_density raises NotFittedError
    - fit and update return the density
    - a log-density is a finite number for each sample, the same every time
    - neither the order of samples nor their number changes a log-density
    - numpy arrays in give the same as numpy arrays out
    - update in pieces and merge of shards give what fit gives
    - fitting again forgets the earlier fit
    - samples far from the training data have a lower log-density
    - features and labels are left as they were

    Args:
        make_density: Makes an unfitted density; called many times.

    Raises:
        AssertionError: A promise is broken; the message says which, and how.

    Example:
        >>> check_density(lambda: GaussianDensity("diagonal"))
    """
    for check in _CHECKS:
        keep(check, make_density)


def _scores(density: GaussianDensity, z: Tensor) -> Tensor:
    return torch.as_tensor(density.log_density(z))


def _samples(seed: int = 0) -> tuple[Tensor, Tensor]:
    z, y = blobs(300, seed)
    return z.double(), y


def _unfitted_is_refused(make: MakeDensity) -> None:
    """before fit, log_density raises NotFittedError."""
    try:
        make().log_density(_samples()[0])
    except NotFittedError:
        return
    raise AssertionError("It gave scores.")


def _returns_self(make: MakeDensity) -> None:
    """fit and update return the density."""
    density = make()
    assert density.fit(*_samples()) is density, "fit returns something else."
    assert density.update(*_samples()) is density, "update returns something else."


def _is_pure(make: MakeDensity) -> None:
    """a log-density is a finite number for each sample, the same every time."""
    z, y = _samples()
    density = make().fit(z, y)
    first, second = _scores(density, z), _scores(density, z)
    assert first.shape == (len(z),), f"The shape is {tuple(first.shape)} for {len(z)} samples."
    assert torch.isfinite(first).all(), "Some are not finite."
    assert torch.equal(first, second), "They are different the second time."


def _batches_do_not_matter(make: MakeDensity) -> None:
    """neither the order of samples nor their number changes a log-density."""
    z, y = _samples()
    density = make().fit(z, y)
    whole = _scores(density, z)
    close(_scores(density, z.flip(0)).flip(0), whole, "log-densities of reversed samples")
    close(torch.cat([_scores(density, part) for part in z.split(7)]), whole, "log-densities of 7 samples at a time")


def _takes_numpy(make: MakeDensity) -> None:
    """numpy arrays in give the same as numpy arrays out."""
    z, y = _samples()
    scores = make().fit(z.numpy(), y.numpy()).log_density(z.numpy())
    assert isinstance(scores, np.ndarray), f"A {type(scores).__name__} came out."
    close(torch.from_numpy(scores), _scores(make().fit(z, y), z), "log-densities of arrays and tensors")


def _streams(make: MakeDensity) -> None:
    """update in pieces and merge of shards give what fit gives."""
    z, y = _samples()
    whole = _scores(make().fit(z, y), z)
    pieces = make()
    for rows, labels in batches(z, y, 37):
        pieces.update(rows, labels)
    close(_scores(pieces, z), whole, "log-densities after update")
    shards = make().update(z[:200], y[:200]).merge(make().update(z[200:], y[200:]))
    close(_scores(shards, z), whole, "log-densities after merge")


def _forgets(make: MakeDensity) -> None:
    """fitting again forgets the earlier fit."""
    z, y = _samples()
    again = make().fit(3 * z + 1, y).fit(z, y)
    close(_scores(again, z), _scores(make().fit(z, y), z), "log-densities of a second fit and of a first")


def _falls_far_out(make: MakeDensity) -> None:
    """samples far from the training data have a lower log-density."""
    z, y = _samples()
    density = make().fit(z, y)
    rank = auroc(-_scores(density, z), -_scores(density, z - 50))
    assert rank > 0.95, f"A far sample scores below a training sample {rank:.0%} of the time."


def _leaves_data(make: MakeDensity) -> None:
    """features and labels are left as they were."""
    z, y = _samples()
    with unchanged(lambda: {"features": bytes_of(z), "labels": bytes_of(y)}) as check:
        density = make().fit(z, y)
        check("fit")
        density.update(z, y)
        check("update")
        density.log_density(z)
        check("log_density")


_CHECKS: list[Callable[[MakeDensity], None]] = [
    _unfitted_is_refused,
    _returns_self,
    _is_pure,
    _batches_do_not_matter,
    _takes_numpy,
    _streams,
    _forgets,
    _falls_far_out,
    _leaves_data,
]
