"""More data: means and correlations, and the claim on made rows."""

from dataclasses import replace

import numpy as np
import pytest

from ddu.experiments.more_data import DENSITIES, MoreData, correlation, judge
from ddu.results import tabulate
from ddu.training import RECIPES

from .rows import row


def test_the_correlation_is_numpys():
    one, other = [1.0, 2.0, 5.0], [0.3, 0.1, 0.0]
    assert correlation(one, other) == pytest.approx(np.corrcoef(one, other)[0, 1])
    assert correlation([1.0, 1.0, 1.0], other) == 0


def rows(densities=(-900.0, -700.0, -500.0), entropies=(0.7, 0.69, 0.68), together=0.95, of_entropy=-0.8):
    made = []
    for share, density, entropy in zip((1, 2, 10), densities, entropies, strict=True):
        network = f"resnet18+sn, {share} % of the data"
        made += [row(name, density, "mean_log_density", network=network) for name in DENSITIES]
        made.append(row("softmax", entropy, "mean_entropy", network=network))
    made += [row(name, together, "correlation_with_ensemble_mi", network="resnet18+sn") for name in DENSITIES]
    return [*made, row("softmax", of_entropy, "correlation_with_ensemble_mi", network="resnet18+sn")]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "holds"),
        ({"densities": (-500.0, -700.0, -900.0)}, "holds in part"),
        ({"entropies": (0.9, 0.5, 0.2)}, "holds in part"),
        ({"of_entropy": 0.9}, "holds in part"),
        (
            {"densities": (-5.0, -7.0, -6.0), "entropies": (0.9, 0.5, 0.2), "together": 0.1, "of_entropy": 0.9},
            "does not hold",
        ),
    ],
)
def test_density_must_rise_entropy_stay_and_density_go_with_the_ensemble(changes, verdict):
    assert judge(rows(**changes)).verdict == verdict


def test_each_density_on_each_data_set_has_its_own_part():
    both = [*rows(), *(replace(one, data="cifar10") for one in rows())]
    assert len(judge(both).parts) == 2 * (2 * len(DENSITIES) + 1) + 1


def test_the_figure_has_the_sizes_below_and_nats_from_zero():
    experiment = MoreData("dirty_mnist", (0.01, 0.02, 0.1), "resnet18", RECIPES["quick"], 3)
    names = ("softmax", "ensemble_mi", *DENSITIES)
    values = dict(zip(names, ([0.7, 0.6, 0.8], [0.05, 0.04, 0.03], [-9e9, -9e7, 40.0], [-9.0, 3.0, 7.0]), strict=True))
    arrays = {"sizes": np.array([1200, 2400, 12000]), **{name: np.array(value) for name, value in values.items()}}
    panels = experiment.draw(arrays).axes
    assert [label.get_text() for label in panels[0].get_xticklabels()] == ["1,200", "2,400", "12,000"]
    assert [axes.get_ylim()[0] == 0 for axes in panels] == [True, False, False, True]


def test_the_papers_figure_of_a_part_of_the_data_stands_beside_ours():
    made = row("softmax", 0.7, "mean_entropy", network="resnet18+sn, 1 % of the data", data="dirty_mnist")
    (table,) = tabulate([made])
    paper = table.cells[0][0].paper
    assert paper is not None
    assert (paper.mean, paper.subset) == (0.7407, 0.01)
