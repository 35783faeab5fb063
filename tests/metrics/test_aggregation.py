"""Mean and standard error against scipy, and for runs too few to tell."""

import numpy as np
import pytest
import torch
from scipy import stats

from ddu.errors import InputError
from ddu.metrics import MeanAndStandardError, mean_and_standard_error


@pytest.mark.parametrize("count", [2, 5, 25])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_standard_error_is_scipys(count: int, offset: float) -> None:
    values = offset + np.random.default_rng(0).normal(size=count)
    result = mean_and_standard_error(values)
    assert result.mean == pytest.approx(values.mean(), rel=1e-12)
    assert result.standard_error == pytest.approx(stats.sem(values), rel=1e-9)
    assert result.count == count


def test_tensors_generators_and_integers_are_values() -> None:
    expected = MeanAndStandardError(2.0, 1.0, 2)
    assert mean_and_standard_error(torch.tensor([1.0, 3.0])) == expected
    assert mean_and_standard_error(value for value in (1, 3)) == expected


def test_one_run_has_no_standard_error_and_equal_runs_have_none_to_speak_of() -> None:
    assert mean_and_standard_error([0.25]) == MeanAndStandardError(0.25, None, 1)
    assert mean_and_standard_error([0.25, 0.25]) == MeanAndStandardError(0.25, 0.0, 2)


def test_nothing_and_nan_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        mean_and_standard_error([])
    assert str(caught.value) == "The mean of no values has no meaning: give at least one."
    with pytest.raises(InputError) as caught:
        mean_and_standard_error([1.0, float("nan")])
    assert str(caught.value) == "The mean of NaN values has no meaning: find where they come from."
