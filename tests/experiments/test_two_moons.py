"""Two moons, the claim in numbers."""

import numpy as np
import pytest
from scipy.spatial import cKDTree
from sklearn.metrics import roc_auc_score

from ddu.experiments import two_moons


@pytest.fixture(scope="module")
def result():
    return two_moons.run(seed=0, epochs=2, grid=60)


def test_density_is_low_far_from_the_data(result):
    for network in two_moons.NETWORKS:
        assert result.panel(network, "feature density").auroc > 0.99


@pytest.mark.slow
def test_the_density_without_residual_connections_is_almost_as_good():
    full = two_moons.run(seed=0, grid=60)
    assert full.panel("FC-Net", "feature density").auroc > 0.99
    assert full.panel("FC-Net", "feature density").auroc < full.panel("ResFFN, spectral norm", "feature density").auroc


def test_entropy_does_not_tell_data_from_the_rest_of_the_plane(result):
    smooth = result.panel("ResFFN, spectral norm", "feature density").auroc
    for network, measure in (("ResFFN", "softmax entropy"), ("3-ensemble", "predictive entropy")):
        assert result.panel(network, measure).auroc < smooth - 0.1


def test_the_number_is_that_of_scipy_and_scikit_learn(result):
    grid = np.stack(np.meshgrid(result.x, result.y), axis=-1).reshape(-1, 2)
    distance, nearest = cKDTree(result.points).query(grid)
    panel = result.panel("FC-Net", "feature density")
    far = distance > 0.3
    assert 0.5 < far.mean() < 0.9
    # Points of the grid closest to the data stand for it: the number is of the same kind, if not the same
    scores = panel.uncertainty.ravel()
    near = distance < 0.1
    by_sklearn = roc_auc_score(far[near | far], scores[near | far])
    assert panel.auroc == pytest.approx(by_sklearn, abs=0.05)
    assert len(set(nearest[near])) > 50


def test_the_figure_has_the_papers_four_panels(result):
    figure = two_moons.draw(result)
    titles = [axes.get_title() for axes in figure.axes]
    assert [title.splitlines()[0] for title in titles] == [
        "ResFFN: softmax entropy",
        "3-ensemble: predictive entropy",
        "ResFFN, spectral norm: feature density",
        "FC-Net: feature density",
    ]
    # Drawn as it is: the most uncertain point of the grid has the highest rank
    mesh = np.asarray(figure.axes[2].collections[0].get_array())
    uncertainty = result.panel("ResFFN, spectral norm", "feature density").uncertainty
    assert mesh.ravel().argmax() == uncertainty.ravel().argmax()
