"""Entropies of many networks against their Dirichlet distributions, first for networks that are draws from some."""

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from ddu import measures
from ddu.experiments.entropy_variance import EntropyVariance, judge, scatter
from ddu.results import Row

# Means and concentrations as those of unsure networks
ALPHA = np.random.default_rng(0).dirichlet(np.ones(4), 300) * np.random.default_rng(1).uniform(1, 20, (300, 1))


def drawn_networks(count: int) -> torch.Tensor:
    """Logits of networks that are draws from Dirichlet distributions, (network, input, class)."""
    draws = [np.random.default_rng(seed).standard_gamma(ALPHA) for seed in range(count)]
    return torch.from_numpy(np.log(np.stack(draws).clip(1e-300)))


def test_for_networks_that_are_draws_the_predicted_variance_is_the_empirical_one():
    found = scatter(drawn_networks(2000))
    ratio = found.predicted / found.empirical
    assert float(ratio.median()) == pytest.approx(1, abs=0.03)
    assert float(((ratio - 1).abs() < 0.25).double().mean()) > 0.95
    # Chance decides which of the two is larger
    assert 0.3 < found.summary()["variance_violations"] < 0.7
    assert found.summary()["entropy_distance"] < 0.01


def test_the_printed_theorem_predicts_less_and_is_violated_less():
    found = scatter(drawn_networks(100))
    assert (found.as_printed < found.predicted).all()
    summary = found.summary()
    assert summary["variance_violations_printed"] < summary["variance_violations"] - 0.1


def test_networks_that_are_either_sure_or_ignorant_scatter_more_than_predicted():
    # One half knows nothing and one half is sure of the same class, which no Dirichlet distribution can be
    sure, ignorant = torch.tensor([6.0, 0.0, 0.0, 0.0]), torch.zeros(4)
    logits = torch.stack([sure, ignorant] * 10)[:, None] + 0.01 * torch.randn(
        20, 50, 4, generator=torch.Generator().manual_seed(0)
    )
    summary = scatter(logits).summary()
    assert summary["variance_violations"] == 0
    assert summary["variance_ratio"] < 0.9


def test_the_metrics_are_those_of_numpy_and_scipy():
    logits = drawn_networks(12)
    found = scatter(logits)
    entropies = measures.entropy(logits).numpy()
    np.testing.assert_allclose(found.empirical.numpy(), entropies.var(0, ddof=1))
    summary = found.summary()
    assert summary["entropy_deviation"] == pytest.approx(entropies.mean(1).std(ddof=1))
    assert summary["entropy_distance"] == pytest.approx(ks_2samp(entropies.ravel(), found.drawn.ravel()).statistic)
    assert summary["agreed_share"] == 0


def test_inputs_on_which_all_agree_are_left_out_and_counted():
    logits = drawn_networks(6)
    logits[:, :30] = logits[0, 0]
    found = scatter(logits)
    assert found.summary()["agreed_share"] == pytest.approx(0.1)
    assert len(found.predicted) == len(found.empirical) == 270


def test_the_figure_has_a_panel_for_each_of_the_papers():
    arrays = {
        f"{name}, {what}": one.numpy() for name in ("test", "svhn") for what, one in scatter(drawn_networks(9)).shown()
    }
    figure = EntropyVariance().draw(arrays)
    assert [axes.get_xlabel().splitlines()[0] for axes in figure.axes] == [
        "softmax entropy on svhn",
        "variance by the Dirichlet (dashed: the same)",
        "log10 of predicted / empirical",
        "softmax entropy on svhn",
    ]


def made_rows(violations: float, deviation: float, distance: float) -> list[Row]:
    facts = {"detector": "softmax entropy", "network": "lenet", "data": "mnist", "seed": 0, "run": "12ab"}
    values = {
        "variance_violations": violations,
        "variance_violations_printed": 0.0,
        "entropy_deviation": deviation,
        "entropy_distance": distance,
    }
    at_home = dict.fromkeys(values, 0.01)
    return [
        Row(**facts, ood=ood, metric=name, value=value)
        for ood, found in ((None, at_home), ("kmnist", values))
        for name, value in found.items()
    ]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0.01, 0.1, 0.05), "holds"), ((0.03, 0.1, 0.05), "holds in part"), ((0.03, 0.001, 0.2), "does not hold")],
)
def test_the_claim_is_judged_by_violations_deviation_and_distance(values, verdict):
    assert judge(made_rows(*values)).verdict == verdict
