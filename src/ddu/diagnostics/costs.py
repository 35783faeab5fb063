"""Checks of what the detector costs: memory to hold and to fit it, and the time of a prediction."""

import statistics
import time
from collections.abc import Callable, Iterator

from ddu.density.memory import available_memory, memory_needed
from ddu.diagnostics.checkup import NEEDS_HELD_OUT, Checkup, not_asked
from ddu.diagnostics.findings import Finding
from ddu.features import LogitsTap

_BATCH, _REPEATS = 64, 5
_MEGABYTE = 1e6
# A share of the memory that is available, and of the time of a prediction, that is worth a word
_TIGHT, _SLOW = 0.5, 0.5


def check_memory(checkup: Checkup) -> Iterator[Finding]:
    """How much memory do the densities take, now and while they are fitted?"""
    score = checkup.score
    if score is None or not score.densities:
        return
    densities = score.densities
    held = sum(tensor.nbytes for tensor in score.tensors(moments=False).values()) / _MEGABYTE
    peaks = (
        memory_needed(one.covariance_, len(one.counts_), one.num_features_, one.rank, one.pca is not None)
        for one in densities
    )
    needed, available = sum(peaks) / _MEGABYTE, available_memory(densities[0].counts_.device)
    kinds = ", ".join(dict.fromkeys(one.covariance_ for one in densities))
    message = (
        f"What was learned ({len(densities)} x {kinds}) takes {held:,.1f} MB, and {needed:,.1f} MB at the peak of a fit"
        f"{'' if available is None else f'; {available / _MEGABYTE:,.0f} MB are available'}."
    )
    if available is not None and needed > _TIGHT * available / _MEGABYTE:
        remedy = "Use density={'covariance': 'shared'} or 'low_rank', which take one matrix or none per class."
        yield Finding("warning", "memory", message, needed, remedy)
    else:
        yield Finding("ok", "memory", message, needed)


def check_time(checkup: Checkup) -> Iterator[Finding]:
    """How long does a prediction take, and how much of that is the network?"""
    if checkup.held_out is None or checkup.held_out.inputs is None:
        yield not_asked("time", *NEEDS_HELD_OUT)
        return
    inputs = checkup.held_out.inputs[:_BATCH]
    whole = _seconds(lambda: checkup.judge.predict(inputs))
    per_input = 1000 * whole / len(inputs)
    message = f"A prediction takes {per_input:.3g} ms per input, in batches of {len(inputs)} on this machine"
    if checkup.tap is None:
        yield Finding("ok", "time", f"{message}.", per_input)
        return
    tap = LogitsTap(checkup.tap.model)
    added = max(1 - _seconds(lambda: tap(inputs)) / whole, 0.0)
    message += f"; {added:.0%} of it is the score, the rest is the network."
    if added > _SLOW:
        remedy = "Fewer layers, features=[...], or density={'covariance': 'shared'} cost less."
        yield Finding("note", "time", message, per_input, remedy)
    else:
        yield Finding("ok", "time", message, per_input)


def _seconds(run: Callable[[], object]) -> float:
    """The median time of a few runs, after one that is not counted."""
    run()
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
