from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ddu.errors import InputError
from ddu.report import density_histogram, entropy_histogram


def outlines(axes: Any) -> list[Any]:
    return [patch for patch in axes.patches if patch.get_label()]


def shares(axes: Any) -> dict[str, np.ndarray]:
    return {patch.get_label(): patch.get_data().values for patch in outlines(axes)}


def noise(count: int, mean: float, std: float) -> Tensor:
    return mean + std * torch.randn(count, generator=torch.Generator().manual_seed(count))


def test_every_set_is_a_histogram_of_shares_with_the_threshold_marked():
    sets = {"clean": noise(300, 0.2, 0.05), "ambiguous": noise(200, 0.8, 0.1), "photos": noise(1000, 1.0, 0.3)}
    axes: Any = entropy_histogram(sets, threshold=0.6, num_classes=10).axes[0]
    drawn = shares(axes)
    assert list(drawn) == ["clean", "ambiguous", "photos"]
    for name, values in drawn.items():
        assert values.sum() == pytest.approx(1)
        want, _ = np.histogram(sets[name].clamp(0, np.log(10)), bins=len(values), range=(0, np.log(10)))
        np.testing.assert_allclose(
            values, want / len(sets[name]), atol=0.011
        )  # float32 at a bin's edge: a sample or two
    assert [line.get_xdata()[0] for line in axes.lines] == [0.6]
    assert [text.get_text() for text in axes.texts] == ["ambiguous above 0.60 →"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["clean", "ambiguous", "photos"]
    assert axes.get_xlim() == (0, pytest.approx(np.log(10)))


def test_the_far_tail_of_log_densities_is_counted_in_the_first_bar_and_the_axis_says_so():
    sets = {"digits": torch.linspace(0, 100, 101), "photos": torch.tensor([-1e9, -5000.0, -100.0, 50.0])}
    axes = density_histogram(sets, threshold=0.0).axes[0]
    assert axes.get_xlim() == (-300, 100)
    assert axes.get_xlabel() == "log-density of the features\n2 of 105 inputs are below −300, all in the first bar"
    assert shares(axes)["photos"][0] == 0.5
    assert shares(axes)["photos"].sum() == pytest.approx(1)
    assert [text.get_text() for text in axes.texts] == ["← out of distribution below 0"]


def test_without_a_far_tail_the_axis_covers_everything_and_says_nothing():
    axes = density_histogram({"digits": torch.linspace(-20, 100, 50)}, threshold=-10.0).axes[0]
    assert axes.get_xlim() == (-20, 100)
    assert axes.get_xlabel() == "log-density of the features"


def test_sets_are_told_apart_by_their_lines_and_not_by_colour_alone():
    axes = entropy_histogram({name: torch.rand(9) for name in "abc"}, threshold=0.5, num_classes=3).axes[0]
    assert len({str(patch.get_linestyle()) for patch in outlines(axes)}) == 3
    assert len({patch.get_edgecolor() for patch in outlines(axes)}) == 3


@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e3, 1e12])
def test_log_densities_of_any_magnitude_are_drawn(magnitude):
    axes = density_histogram({"digits": noise(50, 0, 1) * magnitude}, threshold=-2 * magnitude).axes[0]
    assert shares(axes)["digits"].sum() == pytest.approx(1)


def test_values_that_are_all_equal_are_drawn():
    axes = density_histogram({"digits": torch.full((5,), 3.0)}, threshold=3.0).axes[0]
    assert shares(axes)["digits"].sum() == pytest.approx(1)


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(InputError) as caught:
        density_histogram({"digits": torch.tensor([1.0, float("nan"), float("-inf")])}, threshold=0.0)
    assert str(caught.value) == (
        "A histogram needs finite values, at least one per set. 'digits' has 3, of which 2 are NaN or infinite."
    )
