"""What a detector costs: time and memory for a thousand inputs."""

import ctypes
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddu.errors import InputError

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure_cost(function: Callable[[Tensor], Any], inputs: Tensor, *, repeats: int = 3) -> dict[str, float]:
    """Seconds and peak memory that a function takes for a thousand inputs.

    It is called once to warm up, once to measure memory, and `repeats` times to measure seconds, of which the median
    counts. Both are scaled to a thousand inputs in proportion: give a thousand to have the memory exact.

    Args:
        function: Takes all inputs at once; what it returns is dropped.
        inputs: Inputs, (input, ...).
        repeats: How often the function is timed.

    Returns:
        seconds_per_thousand; megabytes_per_thousand, how far memory rose above what was in use before: the device's
        own on CUDA, the resident memory of the process on Linux; left out where the system cannot tell.
    """
    if len(inputs) == 0 or repeats < 1:
        raise InputError(
            f"inputs must be non-empty and repeats at least 1. Got {len(inputs)} inputs and {repeats} repeats."
        )
    thousands = len(inputs) / 1000
    function(inputs)
    peak = _peak_bytes(lambda: function(inputs), inputs.device)
    seconds = statistics.median(_seconds(lambda: function(inputs), inputs.device) for _ in range(repeats))
    cost = {"seconds_per_thousand": seconds / thousands}
    if peak is not None:
        cost["megabytes_per_thousand"] = peak / 1e6 / thousands
    return cost


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    _wait_for(device)
    started = time.perf_counter()
    call()
    _wait_for(device)
    return time.perf_counter() - started


def _peak_bytes(call: Callable[[], Any], device: torch.device) -> int | None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    _return_free_memory()
    if not _restart_peak():
        return None
    before = _resident("VmRSS")
    call()
    return max(0, _resident("VmHWM") - before)


def _restart_peak() -> bool:
    """Lets the peak of resident memory begin again from what is in use now, where the system can do that."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def _return_free_memory() -> None:
    """Gives memory that was freed back to the system, so that using it again counts."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", _STATUS.read_text(), flags=re.MULTILINE)
    if found is None:
        raise OSError(f"{_STATUS} has no {field}.")
    return 1024 * int(found[1])


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
