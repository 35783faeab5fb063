"""The toy example of three objectives, and its verdict."""

import numpy as np
import pytest
import torch

from ddu import data
from ddu.data.sources.generated import draw_three_gaussians
from ddu.experiments.objective_mismatch import ObjectiveMismatch, _levels, fit_all, judge, scores
from ddu.results import RowFile
from ddu.theory import cross_entropies

SMALL = ObjectiveMismatch(points=300, grid=20)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return SMALL.measure(tmp_path_factory.mktemp("objectives") / "rows")


def test_seeds_0_and_1_are_the_splits_of_the_data_set():
    for seed, split in enumerate(("train", "test")):
        points = data.load("three_gaussians", split)
        drawn, labels = draw_three_gaussians(seed)
        assert (drawn == points.inputs).all()
        assert (labels == points.labels).all()


def test_the_rows_are_the_scores_of_the_fits(rows):
    z, labels = map(torch.from_numpy, draw_three_gaussians(0, 300))
    found = {(row.detector, row.network, row.metric): row.value for row in rows}
    for (fit, network), mixture in fit_all(z, labels).items():
        expected = scores(mixture, z, labels)
        assert expected["joint_cross_entropy"] == cross_entropies(mixture, z, labels).joint
        for metric, value in expected.items():
            assert found[f"minimise_{fit}_cross_entropy", network, metric] == pytest.approx(value)
    assert {row.reductions for row in rows} == {"points 1,500 -> 300"}


def test_the_conditional_fit_is_as_sure_as_it_is_right(rows):
    # The gradient of the class weights is zero at the optimum of a softmax layer: mean entropy and NLL agree
    found = {(row.detector, row.network): row.value for row in rows if row.metric == "overconfidence"}
    soft = found["minimise_conditional_cross_entropy", "gaussian_mixture, shared covariance"]
    assert soft == pytest.approx(0, abs=1e-6)
    assert found["minimise_joint_cross_entropy", "gaussian_mixture"] > 0.05


def test_each_fit_is_the_best_at_its_own_objective_and_the_page_says_so(rows):
    judged = judge(rows)
    assert judged.words.count(": yes.") >= 4
    assert "Joint cross-entropy by fit: joint " in judged.words


def test_contours_hold_the_mass_they_are_named_for():
    x = np.linspace(-5, 5, 401)
    density = np.exp(-(x[:, None] ** 2 + x**2) / 2)
    (level,) = _levels(density, [0.6826])
    assert level == pytest.approx(1 - 0.6826, abs=2e-3)  # of a standard normal in the plane: exp(-r²/2) = 1 - share


def test_a_seed_that_has_rows_is_not_fitted_again(rows, tmp_path):
    said = []
    SMALL.measure(tmp_path / "rows", say=said.append)
    assert said == ["Seed 0: fit four mixtures"]
    assert SMALL.measure(tmp_path / "rows", say=said.append) == RowFile(tmp_path / "rows/rows.csv").read()
    assert len(said) == 1
