"""Time and memory for a thousand inputs."""

import time

import numpy as np
import pytest
import torch

from ddu.errors import InputError
from ddu.experiments import measure_cost


def test_seconds_are_scaled_to_a_thousand_inputs():
    calls = []

    def slow(inputs: torch.Tensor) -> None:
        calls.append(len(inputs))
        time.sleep(0.01)

    cost = measure_cost(slow, torch.zeros(200, 3), repeats=2)
    assert calls == [200] * 4  # to warm up, for memory, twice for time
    # Sleeping may take longer than asked for, never less
    assert 0.05 <= cost["seconds_per_thousand"] < 1


@pytest.mark.parametrize("allocate", [lambda n: torch.ones(n), lambda n: np.ones(n, dtype=np.float32)])
def test_memory_is_the_peak_whoever_allocated_it(allocate):
    def hungry(inputs: torch.Tensor) -> int:
        first = allocate(10_000_000)  # 40 MB
        second = allocate(5_000_000)  # 20 MB, beside it; what comes after they are freed may use their memory or not
        return len(first) + len(second)

    allocate(30_000_000)  # an earlier peak does not count
    cost = measure_cost(hungry, torch.zeros(500, 1), repeats=1)
    if "megabytes_per_thousand" not in cost:
        pytest.skip("this system cannot tell the peak of memory")
    assert cost["megabytes_per_thousand"] == pytest.approx(120, rel=0.1)


def test_nothing_to_measure_is_refused():
    with pytest.raises(InputError) as caught:
        measure_cost(len, torch.zeros(0, 3))
    assert str(caught.value) == "inputs must be non-empty and repeats at least 1. Got 0 inputs and 3 repeats."
