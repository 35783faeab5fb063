"""What is worth a label: the maths on scores, and the choices made of them."""

import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from ddu.active import (
    ACQUISITION_FUNCTIONS,
    AcquisitionFunction,
    Candidates,
    Diverse,
    ExcludeOutliers,
    PowerSampling,
    Random,
    Top,
    diverse_top_k,
    find_acquisition_function,
    gumbel_top_k,
    list_acquisition_functions,
    top_k,
    within_quantile,
)
from ddu.active.acquisition import find_acquisition, power_log_weights, rank_log_weights
from ddu.density import GaussianDensity
from ddu.detectors import DDU, METHODS, PLAIN, SMOOTH, Ensemble, Method, Softmax, register
from ddu.errors import FeatureError, InputError, NotSupportedError
from ddu.features import FeatureBatch

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.FewSamplesWarning")


def generator(seed=0):
    return np.random.default_rng(seed)


# Pure functions of scores


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=30, unique=True), st.integers(0, 40))
def test_top_k_are_the_largest_in_order(scores, k):
    assert top_k(np.array(scores), k, generator()).tolist() == np.argsort(scores)[::-1][:k].tolist()


def test_equal_scores_are_ordered_by_the_seed_and_not_by_position():
    scores = np.array([2.0] + [1.0] * 9)
    picked = [top_k(scores, 3, generator(seed)) for seed in range(3000)]
    assert all(one[0] == 0 for one in picked)
    counts = np.bincount(np.concatenate([one[1:] for one in picked]), minlength=10)[1:]
    assert stats.chisquare(counts).pvalue > 1e-3
    assert np.array_equal(top_k(scores, 3, generator(7)), top_k(scores, 3, generator(7)))


def test_gumbel_top_k_draws_without_replacement_in_proportion_to_the_weights():
    weights = np.array([5.0, 3.0, 1.0, 1.0])
    random = generator()
    draws = [tuple(gumbel_top_k(np.log(weights), 2, random).tolist()) for _ in range(20_000)]
    pairs = list(itertools.permutations(range(4), 2))
    # P(i, then j) = w_i / Σ w · w_j / (Σ w - w_i)
    expected = [weights[i] / 10 * weights[j] / (10 - weights[i]) for i, j in pairs]
    counts = [draws.count(pair) for pair in pairs]
    assert stats.chisquare(counts, np.array(expected) * len(draws)).pvalue > 1e-3


def test_gumbel_top_k_does_not_see_a_common_factor_even_where_it_underflows():
    log_weights = np.log([5.0, 3.0, 1.0, 1.0])
    assert np.exp(log_weights - 2e4).max() == 0
    for seed in range(50):
        assert np.array_equal(
            gumbel_top_k(log_weights, 4, generator(seed)), gumbel_top_k(log_weights - 2e4, 4, generator(seed))
        )


def test_weights_of_zero_come_last_and_in_random_order():
    log_weights = power_log_weights(np.array([0.0, 1e-9, 0.0, 3.0, -1e-12]), power=2.0)
    assert log_weights[[1, 3]] == pytest.approx(2 * np.log([1e-9, 3.0]))
    last = {tuple(gumbel_top_k(log_weights, 5, generator(seed))[2:].tolist()) for seed in range(60)}
    assert last == set(itertools.permutations([0, 2, 4]))


def test_log_densities_cannot_be_drawn_in_proportion_to_themselves():
    with pytest.raises(
        InputError,
        match=r"^Sampling in proportion to scores needs scores of at least 0, and the lowest of these 2 is -512\.3: "
        r"sample by='rank', as log-densities need\.$",
    ):
        power_log_weights(np.array([3.0, -512.3]), 1.0)


def test_ranks_see_the_order_alone():
    scores = generator().normal(size=50)
    weights = rank_log_weights(scores, 1.5, generator())
    assert np.array_equal(weights, rank_log_weights(1e6 * np.exp(scores) - 1e9, 1.5, generator()))
    assert weights == pytest.approx(-1.5 * np.log(stats.rankdata(-scores)))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0.01, 1))
def test_a_quantile_keeps_its_share_and_the_smallest(scores, quantile):
    scores = np.array(scores)
    kept = within_quantile(scores, quantile)
    left = np.setdiff1d(np.arange(len(scores)), kept)
    assert len(kept) >= max(1, np.floor(quantile * (len(scores) - 1)))
    assert not len(left) or scores[kept].max() < scores[left].min()


# A density that learns what is picked


def _features(detector, inputs):
    return detector.tap(inputs)


def one_density(model):
    return DDU(model, features=None, view="raw", energy=False)


def test_diverse_top_k_is_refitting_after_every_pick(blobs):
    fitted = blobs.learner(detector=one_density).detector
    known = _features(fitted, blobs.labelled.tensors[0])
    batch = _features(fitted, blobs.pool)
    z, y = known.features.double(), blobs.labelled.tensors[1]
    expected = []
    for _ in range(6):
        scores = -GaussianDensity().fit(z, y).log_density(batch.features.double())
        scores[expected] = -torch.inf
        expected.append(int(scores.argmax()))
        z = torch.cat([z, batch.features[expected[-1:]].double()])
        y = torch.cat([y, batch.logits[expected[-1:]].argmax(1)])
    before = {name: tensor.clone() for name, tensor in fitted.density.state_tensors().items()}
    picked, scores = diverse_top_k(fitted, batch, 6, generator())
    assert picked.tolist() == expected
    assert scores[0] == pytest.approx(float(fitted.predict(blobs.pool).epistemic.max()), rel=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in fitted.density.state_tensors().items())


def test_diverse_top_k_updates_every_density_of_a_sum(blobs, fitted):
    batch = _features(fitted, blobs.pool)
    counts = [density.counts_.tolist() for density in fitted.score.densities]
    assert len(counts) == 3
    picked, _ = diverse_top_k(fitted, batch, 5, generator())
    # By hand: a copy learns each pick as what it is predicted to be, in all its densities
    learning, expected = copy.deepcopy(fitted), []
    for _ in range(5):
        scores = learning.predict(batch).epistemic
        scores[expected] = -torch.inf
        best = int(scores.argmax())
        expected.append(best)
        one = FeatureBatch(batch.features[[best]], batch.logits[[best]], batch.logits[[best]].argmax(1))
        learning.update(one)
    assert picked.tolist() == expected
    assert [density.counts_.tolist() for density in fitted.score.densities] == counts
    assert {int(density.counts_.sum()) for density in learning.score.densities} == {21}


def test_the_papers_covariances_are_singular_with_two_labels_per_class(blobs, fitted):
    x, y = (column[: 2 * 4] for column in blobs.labelled.tensors)
    with pytest.raises(FeatureError, match="is singular, from 2 samples in class 0"):
        DDU.paper(fitted.model).fit([(x, y)])
    assert (
        find_acquisition_function("density")
        .make_detector(fitted.model)
        .fit([(x, y)])
        .predict(x)
        .epistemic.isfinite()
        .all()
    )


def test_copies_of_one_outlier_are_not_picked_together(blobs, fitted):
    outliers = torch.stack([40 * torch.eye(6)[0]] * 5 + [-39 * torch.eye(6)[0]] * 5)
    pool = torch.cat([blobs.pool, outliers])
    candidates = Candidates(fitted, pool, np.arange(len(pool)))
    at_once = Top().choose(candidates, 5, generator()).positions - len(blobs.pool)
    one_by_one = Diverse().choose(candidates, 5, generator()).positions - len(blobs.pool)
    assert len({int(i) // 5 for i in at_once}) == 1
    assert {int(i) // 5 for i in one_by_one[:2]} == {0, 1}


# Choices among candidates


def test_log_densities_that_underflow_are_still_ranked_strictly(blobs, fitted):
    far = 1000 + 200 * torch.randn(200, 6, generator=torch.Generator().manual_seed(1)).double()
    network = nn.Sequential(nn.Linear(6, 4, bias=False)).double()
    known = blobs.labelled.tensors[0].double()
    detector = DDU(network, features=lambda x: x, view="raw", energy=False).fit([(known, blobs.labelled.tensors[1])])
    density = detector.density
    covariances, means = density.covariances_.numpy(), density.means_.numpy()
    exact = np.logaddexp.reduce(
        [
            stats.multivariate_normal(mean, covariance).logpdf(far.numpy()) + log_prior
            for mean, covariance, log_prior in zip(means, covariances, density.log_prior_.tolist(), strict=True)
        ],
        axis=0,
    )
    assert exact.max() < -1e4
    assert np.exp(exact).max() == 0  # what an acquisition by densities would see
    candidates = Candidates(detector, far, np.arange(len(far)))
    choice = Top().choose(candidates, len(far), generator())
    assert choice.positions.tolist() == np.argsort(exact).tolist()
    assert (np.diff(choice.scores) < 0).all()
    sampled = [PowerSampling().choose(candidates, 1, generator(seed)).positions[0] for seed in range(200)]
    assert np.mean(-exact[sampled]) > np.mean(-exact)


def test_top_takes_the_uncertainty_that_it_is_told(blobs, fitted):
    candidates = Candidates(fitted, blobs.pool, np.arange(len(blobs.pool)))
    prediction = fitted.predict(blobs.pool)
    assert Top("epistemic").choose(candidates, 1, generator()).positions == [int(prediction.epistemic.argmax())]
    positions, scores = Top("aleatoric").choose(candidates, 2, generator())
    assert scores == pytest.approx(prediction.aleatoric[positions].numpy())
    assert scores[0] == pytest.approx(float(prediction.aleatoric.max()))


def test_power_zero_is_random_and_a_large_power_is_the_top(blobs):
    detector = Softmax(blobs.learner(detector=Softmax).detector.model)
    candidates = Candidates(detector, blobs.pool, np.arange(len(blobs.pool)))
    top = Top().choose(candidates, 5, generator()).positions.tolist()
    for by in ("score", "rank"):
        assert PowerSampling(1e6, by=by).choose(candidates, 5, generator()).positions.tolist() == top
        drawn = np.concatenate(
            [PowerSampling(0.0, by=by).choose(candidates, 1, generator(seed)).positions for seed in range(2400)]
        )
        assert stats.chisquare(np.bincount(drawn, minlength=len(candidates))).pvalue > 1e-3


def test_outliers_are_excluded(blobs, fitted):
    pool = torch.cat([torch.full((12, 6), 1e4), blobs.pool])
    indices = np.arange(len(pool))[::-1].copy()
    candidates = Candidates(fitted, pool, indices)
    assert indices[Top().choose(candidates, 12, generator()).positions].max() < 12
    inside = ExcludeOutliers(Top(), quantile=0.9).choose(candidates, 5, generator())
    assert indices[inside.positions].min() >= 12
    epistemic = candidates.uncertainties.epistemic
    assert inside.scores == pytest.approx(epistemic[inside.positions])
    threshold = float(np.sort(epistemic)[20])
    below = ExcludeOutliers(Random(), threshold=threshold).choose(candidates, 100, generator())
    assert sorted(below.positions) == np.flatnonzero(epistemic <= threshold).tolist()
    diverse = ExcludeOutliers(Diverse(), quantile=0.9).choose(candidates, 3, generator())
    assert indices[diverse.positions].min() >= 12


# Acquisition functions: a registered method and a rule


def test_an_acquisition_function_has_the_detector_and_the_networks_of_its_method():
    density, entropy, vgg, duq, sngp = map(
        find_acquisition_function, ("density", "entropy", "density_vgg", "duq", "sngp")
    )
    detector = density.make_detector(nn.Linear(2, 2))
    assert isinstance(detector, DDU)
    # The score of the paper, one density, with the shrinkage that two labels per class need
    assert (detector.view, detector.energy, detector.density_options) == ("raw", False, {})
    assert isinstance(entropy.make_detector(nn.Linear(2, 2)), Softmax)
    assert (density.num_members, density.network_options) == (1, SMOOTH.options)
    assert entropy.network_options == PLAIN.options
    assert (vgg.network, vgg.network_options) == ("vgg16", PLAIN.options)
    assert duq.network_options == {**PLAIN.options, "head": "duq", "head_options": {"momentum": 0.99}}
    assert sngp.network_options == {"head": "sngp", "spectral_norm": 6.0, "sensitive": False}
    for name in ("ensemble_pe", "ensemble_mi", "ensemble_mi_power"):
        ensemble = find_acquisition_function(name)
        assert ensemble.num_members == 3
        detector = ensemble.make_detector([nn.Linear(2, 2) for _ in range(3)])
        assert isinstance(detector, Ensemble)
        assert detector.score == METHODS[name.removesuffix("_power")].options["score"]


def test_every_other_registered_method_is_one_with_the_rule_top(monkeypatch):
    assert find_acquisition_function("energy") == AcquisitionFunction("energy", Top())
    assert find_acquisition_function("ensemble_ee").num_members == METHODS["ensemble_ee"].members
    monkeypatch.setattr("ddu.detectors.registry.METHODS", dict(METHODS))
    register(Method("mine", Softmax))
    assert find_acquisition_function("mine").rule == Top()
    names = list_acquisition_functions()
    assert {*ACQUISITION_FUNCTIONS, "mine", "energy"} < {*names}
    assert len(names) == len({*names})
    with pytest.raises(InputError, match=r"^There is no acquisition function 'mien'\. Did you mean 'mine'\?$"):
        find_acquisition_function("mien")


def test_outliers_can_be_excluded_with_any_acquisition_function():
    density = find_acquisition_function("density")
    assert density.excluding(0.99).rule == ExcludeOutliers(Top(), quantile=0.99)
    assert density.excluding(None) == density


def test_mistakes_are_named(blobs, fitted):
    candidates = Candidates(fitted, blobs.pool, np.arange(len(blobs.pool)))
    with pytest.raises(InputError, match=r"^ExcludeOutliers needs either a quantile or a threshold\.$"):
        ExcludeOutliers(Top())
    with pytest.raises(
        InputError, match=r"^The 'quantile' of ExcludeOutliers must lie between 0 and 1\. Got 99 instead\.$"
    ):
        ExcludeOutliers(Top(), quantile=99)
    with pytest.raises(
        InputError, match=r"^All 120 candidates lie above the threshold of -1e\+09, the nearest at \S+: raise it, or "
    ):
        ExcludeOutliers(Top(), threshold=-1e9).choose(candidates, 5, generator())
    softmax = Candidates(Softmax(fitted.model), blobs.pool, np.arange(len(blobs.pool)))
    with pytest.raises(
        NotSupportedError,
        match=r"^Diverse updates a density, which Softmax does not have: use DDU, or PowerSampling\.$",
    ):
        Diverse().choose(softmax, 5, generator())
    with pytest.raises(InputError, match=r"^There is no acquisition 'epistemc'\. Did you mean 'epistemic'\?$"):
        find_acquisition("epistemc")
    with pytest.raises(InputError, match=r"^An acquisition is a name, or has a method choose\. Got 3 instead\.$"):
        find_acquisition(3)
