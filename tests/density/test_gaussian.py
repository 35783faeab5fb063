"""The density: its numbers against scipy and scikit-learn, its learning by stream, shard and removal, its refusals."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, spearmanr
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.testing import assert_close

from ddu.density import GaussianDensity
from ddu.density.covariance import own_precision
from ddu.errors import (
    FeatureError,
    FewSamplesWarning,
    InputError,
    LabelError,
    NotFittedError,
    NotSupportedError,
)
from tests.tensors import tensors_in

Blobs = Callable[..., tuple[Tensor, Tensor]]
# The stubs take a covariance for an integer
gaussian: Any = multivariate_normal
COVARIANCES: list[Any] = ["full", "shared", "diagonal", "low_rank"]
# The sample covariance and nothing else
PLAIN: dict[str, Any] = {"shrinkage": None, "regularization": 0.0}
EVERY_KIND: list[dict[str, Any]] = [
    *({"covariance": covariance, "rank": 2} for covariance in COVARIANCES),
    {"shrinkage": "ledoit_wolf"},
    {"shrinkage": "oas", "normalize": True},
    {"standardize": True, "covariance": "low_rank", "rank": 1},
    {"pca": 3, "covariance": "shared"},
    {"background": True, "prior": "uniform"},
]


def close(actual: Any, expected: Any, rtol: float = 1e-9) -> None:
    """Equal relative to the typical magnitude: a log-density may cross zero."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=rtol * np.abs(expected).mean())


def rank_correlation(left: Any, right: Any) -> float:
    result: Any = spearmanr(left, right)
    return result.statistic


def same_density(left: GaussianDensity, right: GaussianDensity, z: Tensor, rtol: float = 1e-9) -> None:
    assert left.counts_.tolist() == right.counts_.tolist()
    close(left.class_log_density(z), right.class_log_density(z), rtol)
    close(left.log_density(z), right.log_density(z), rtol)


def auroc(density: GaussianDensity, inside: Any, outside: Any) -> float:
    scores = np.concatenate([density.log_density(inside), density.log_density(outside)])
    return float(roc_auc_score(np.repeat([1, 0], [len(inside), len(outside)]), scores))


# The numbers


def reference_covariances(z: Tensor, y: Tensor, covariance: str) -> list[np.ndarray]:
    groups = [z[y == label].numpy() for label in range(int(y.max()) + 1)]
    if covariance == "shared":
        pooled = sum(np.cov(rows.T) * (len(rows) - 1) for rows in groups) / (len(y) - len(groups))
        return [np.asarray(pooled)] * len(groups)
    own = [np.cov(rows.T) for rows in groups]
    if covariance == "diagonal":
        return [np.diag(matrix.diagonal()) for matrix in own]
    if covariance == "low_rank":
        return [rank_two_and_isotropic(matrix) for matrix in own]
    return own


def rank_two_and_isotropic(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    values[:-2] = values[:-2].mean()
    return vectors @ np.diag(values) @ vectors.T


@pytest.mark.parametrize("prior", ["empirical", "uniform"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_densities_equal_scipys(blobs: Blobs, covariance: Any, prior: Any) -> None:
    z, y = blobs(classes=3, per_class=60, dim=6)
    z, y = z[:-30], y[:-30]  # unequal priors
    density = GaussianDensity(covariance, rank=2, prior=prior, **PLAIN).fit(z, y)
    points = blobs(classes=5, per_class=20, dim=6, distance=6.0, seed=1)[0]
    expected = np.stack(
        [
            gaussian(z[y == label].numpy().mean(0), matrix).logpdf(points)
            for label, matrix in enumerate(reference_covariances(z, y, covariance))
        ],
        axis=1,
    )
    share = np.bincount(y) / len(y) if prior == "empirical" else np.full(3, 1 / 3)
    close(density.class_log_density(points), expected)
    close(density.log_density(points), logsumexp(expected + np.log(share), axis=1))
    close(density.covariances_, reference_covariances(z, y, covariance), 1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("dim", [6, 130])
def test_single_precision_scores_are_those_of_double_precision(blobs: Blobs, covariance: Any, dim: int) -> None:
    z, y = blobs(classes=4, per_class=150, dim=dim)
    density = GaussianDensity(covariance, rank=4).fit(z, y)
    points = torch.cat([z[:200], blobs(classes=4, per_class=50, dim=dim, distance=5.0, seed=1)[0]]).float()
    single, double = density.log_density(points), density.log_density(points.double())
    assert single.dtype == torch.float32
    assert double.dtype == torch.float64
    close(single, double, 1e-4)
    assert rank_correlation(single, double) > 1 - 1e-6
    # No two points further apart than rounding change places
    ordered = single.double()[double.argsort()]
    assert (ordered.cummax(0).values - ordered).max() < 1e-6 * double.abs().mean() * 10


@pytest.mark.parametrize(
    ("covariance", "reference"),
    [("full", QuadraticDiscriminantAnalysis(store_covariance=True)), ("shared", LinearDiscriminantAnalysis("lsqr"))],
    ids=["QDA", "LDA"],
)
def test_posteriors_equal_scikit_learns(blobs: Blobs, covariance: Any, reference: Any) -> None:
    z, y = blobs(classes=3, per_class=40, dim=4, distance=1.0)
    z, y = z[:-20], y[:-20]
    density = GaussianDensity(covariance, **PLAIN).fit(z, y)
    # We divide by the degrees of freedom, LDA by the number of samples, QDA by either, as its version has it: stretch
    # scikit-learn's samples by the ratio
    if covariance == "full":
        variances = [theirs[0, 0] for theirs in reference.fit(z.numpy(), y.numpy()).covariance_]
        ratio = torch.stack([z[y == label, 0].var() / variance for label, variance in enumerate(variances)])
    else:
        ratio = torch.tensor(len(z) / (len(z) - 3), dtype=torch.float64).expand(3)
    mean = density.means_[y]
    stretched = mean + (z - mean) * ratio.sqrt()[y, None]
    reference.fit(stretched.numpy(), y.numpy())
    points = blobs(classes=3, per_class=40, dim=4, distance=1.0, seed=1)[0]
    assert_close(density.posterior(points), torch.from_numpy(reference.predict_proba(points.numpy())))
    assert_close(density.posterior(points).sum(1), torch.ones(len(points), dtype=torch.float64))


@given(seed=st.integers(0, 2**16), scale=st.sampled_from([1e-4, 1.0, 1e4]))
@settings(derandomize=True, deadline=None, max_examples=15)
def test_log_density_moves_by_the_log_determinant_under_an_affine_map(blobs: Blobs, seed: int, scale: float) -> None:
    z, y = blobs(dim=4)
    generator = torch.Generator().manual_seed(seed)
    matrix = scale * (torch.eye(4).double() + 0.4 * torch.randn(4, 4, generator=generator, dtype=torch.float64))
    shift = scale * torch.randn(4, generator=generator, dtype=torch.float64)
    points = z * 1.5
    for covariance in ("full", "shared"):
        before = GaussianDensity(covariance, **PLAIN).fit(z, y).log_density(points)
        after = GaussianDensity(covariance, **PLAIN).fit(z @ matrix.T + shift, y).log_density(points @ matrix.T + shift)
        # The conditioning of the map, up to about a thousand, costs digits
        close(after + torch.linalg.slogdet(matrix).logabsdet, before, 1e-8)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
@pytest.mark.parametrize("params", EVERY_KIND, ids=str)
@pytest.mark.filterwarnings("ignore::ddu.errors.FewSamplesWarning")
def test_the_scale_of_the_features_changes_no_ranking(blobs: Blobs, params: dict[str, Any], factor: float) -> None:
    z, y = blobs(classes=3, per_class=5, dim=12)
    points = torch.cat([z, blobs(classes=3, per_class=20, dim=12, seed=1)[0]])
    here = GaussianDensity(**params).fit(z, y).log_density(points)
    there = GaussianDensity(**params).fit(z * factor, y).log_density(points * factor)
    close(there - there.mean(), here - here.mean(), 1e-8)
    assert there.argsort().tolist() == here.argsort().tolist()


@pytest.mark.parametrize("prior", ["empirical", "uniform"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_background_has_the_mean_and_the_covariance_of_the_mixture(blobs: Blobs, covariance: Any, prior: Any) -> None:
    z, y = blobs()
    z, y = z[:-30], y[:-30]  # unequal priors
    density = GaussianDensity(covariance, rank=4, prior=prior, background=True).fit(z, y)
    weight, means = density.log_prior_.exp().numpy(), density.means_.numpy()
    mean = weight @ means
    within = np.tensordot(weight, density.covariances_.numpy(), 1)
    total = within + (means - mean).T @ np.diag(weight) @ (means - mean)
    expected = gaussian(mean, np.diag(total.diagonal()) if covariance == "diagonal" else total).logpdf(z)
    close(density.background_log_density(z), expected)
    close(density.relative_log_density(z), density.log_density(z).numpy() - expected)
    differences = density.mahalanobis(z) - density.background_mahalanobis(z)[:, None]
    close(density.relative_mahalanobis(z), differences)


def test_background_of_plenty_is_the_covariance_of_all_samples(blobs: Blobs) -> None:
    z, y = blobs(per_class=4000)
    density = GaussianDensity(background=True, **PLAIN).fit(z, y)
    expected = gaussian(z.numpy().mean(0), np.cov(z.numpy().T)).logpdf(z)
    close(density.background_log_density(z), expected, 1e-3)  # they divide by n - C, n and n - 1


def backbone_features(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """ReLU features of 5 classes in 40 dimensions: 25 live, 10 nearly dead, 5 dead."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    y = torch.arange(samples) % 5
    centres = torch.randn(5, 25, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    live = (centres[y] + normal(samples, 25)).relu()
    nearly = 0.01 * (normal(samples, 10) - 1.5).relu()
    return torch.cat([live, nearly, torch.zeros(samples, 5)], dim=1), y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("options", [{}, {"shrinkage": None}, {"standardize": True}], ids=str)
def test_directions_in_which_the_means_do_not_differ_cancel(options: dict[str, Any], dtype: torch.dtype) -> None:
    z, y = backbone_features(1000, seed=0)
    density = GaussianDensity("shared", background=True, **options).fit(z, y)
    points = backbone_features(100, seed=1)[0].to(dtype)
    expected = density.relative_log_density(points)
    for size in (1e-3, 1.0, 1e3):
        awake = points.clone()
        awake[:, 35:] += size  # dead features wake up
        assert_close(density.relative_log_density(awake), expected, rtol=1e-4, atol=1e-3)
    assert float(density.background_mahalanobis(awake.double()).min()) > 1e4


@pytest.mark.parametrize("normalize", [False, True])
def test_relative_densities_rank_like_pytorch_oods(normalize: bool) -> None:
    rmd = pytest.importorskip("pytorch_ood.detector").RMD(None)
    z, y = backbone_features(4000, seed=0)
    z = z[:, :25]  # where nothing is nearly dead: it inverts in single precision
    inside, other = backbone_features(300, seed=1)[0][:, :25], torch.rand(300, 25, dtype=torch.float64) * 2
    unit = torch.nn.functional.normalize if normalize else torch.clone
    rmd.fit_features(unit(z).float(), y)
    theirs = rmd.predict_features(unit(torch.cat([inside, other])).float())
    density = GaussianDensity("shared", shrinkage=None, background=True, normalize=normalize).fit(z, y)
    ours = density.relative_mahalanobis(torch.cat([inside, other])).amin(1)
    # It leaves the scatter undivided
    assert_close(ours.float(), theirs * len(z), rtol=0.01, atol=0.05)
    default = GaussianDensity("shared", background=True, normalize=normalize).fit(z, y)
    scores = -default.relative_log_density(torch.cat([inside, other]))
    outside = np.repeat([0, 1], 300)
    assert roc_auc_score(outside, scores) >= roc_auc_score(outside, theirs) - 0.01


@pytest.mark.parametrize("normalize", [False, True])
def test_dead_units_that_wake_up_make_nothing_more_familiar(normalize: bool) -> None:
    z, y = backbone_features(150, seed=0)
    inside, outside = backbone_features(400, seed=1)[0], backbone_features(400, seed=2)[0]
    outside[:, :25] = outside[:, :25].flip(1)  # unlike any class
    outside[:, 35:] = torch.rand(400, 5, generator=torch.Generator().manual_seed(0)).double()
    density = GaussianDensity("shared", background=True, normalize=normalize).fit(z, y)
    scores = -density.relative_log_density(torch.cat([inside, outside]))
    assert roc_auc_score(np.repeat([0, 1], 400), scores) > 0.8


def test_a_background_that_was_not_asked_for_is_refused(blobs: Blobs) -> None:
    density = GaussianDensity().fit(*blobs())
    with pytest.raises(NotSupportedError) as caught:
        density.relative_log_density(blobs()[0])
    assert str(caught.value) == (
        "This GaussianDensity has no background density. Make it with GaussianDensity(background=True)."
    )


# Learning


@given(seed=st.integers(0, 2**16), cuts=st.lists(st.integers(0, 120), max_size=6))
@settings(derandomize=True, deadline=None, max_examples=8)
@pytest.mark.parametrize("params", EVERY_KIND, ids=str)
def test_any_split_order_or_number_of_shards_gives_the_same_density(
    blobs: Blobs, params: dict[str, Any], seed: int, cuts: list[int]
) -> None:
    z, y = blobs(classes=3, per_class=40, dim=6)
    whole = GaussianDensity(**params).fit(z, y)
    parts = torch.from_numpy(np.random.default_rng(seed).permutation(len(y))).tensor_split(sorted(cuts))
    streamed, merged = GaussianDensity(**params), GaussianDensity(**params)
    for part in parts:
        streamed.update(z[part], y[part])
        merged.merge(GaussianDensity(**params).update(z[part], y[part]))
    same_density(streamed, whole, z)
    same_density(merged, whole, z)


@pytest.mark.parametrize("params", EVERY_KIND, ids=str)
def test_forgetting_is_as_if_the_samples_had_never_been(blobs: Blobs, params: dict[str, Any]) -> None:
    z, y = blobs(classes=3, per_class=40, dim=6)
    density = GaussianDensity(**params).fit(z, y)
    kept = GaussianDensity(**params).fit(z[30:], y[30:])
    same_density(density.downdate(z[:30], y[:30]), kept, z)
    same_density(density.update(z[:30], y[:30]), GaussianDensity(**params).fit(z, y), z)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_classes_may_appear_later_in_the_stream_and_in_any_shard(blobs: Blobs, covariance: Any) -> None:
    z, y = blobs(classes=4)
    whole = GaussianDensity(covariance).fit(z, y)
    late, shards = GaussianDensity(covariance), GaussianDensity(covariance)
    for label in range(4):
        late.update(z[y == label], y[y == label])
    for label in (3, 0, 2, 1):
        shards.merge(GaussianDensity(covariance).update(z[y == label], y[y == label]))
    same_density(late, whole, z)
    same_density(shards, whole, z)


def test_a_class_that_appeared_and_was_forgotten_leaves_no_trace(blobs: Blobs) -> None:
    z, y = blobs(classes=3)
    density = GaussianDensity().fit(z, y)
    before = density.log_density(z)
    density.update(z[:2], torch.tensor([7, 5])).downdate(z[:2], torch.tensor([7, 5]))
    assert density.counts_.tolist() == [50, 50, 50]
    assert_close(density.log_density(z), before, rtol=0, atol=0)


def test_a_density_that_forgot_everything_is_like_new(blobs: Blobs) -> None:
    z, y = blobs()
    density = GaussianDensity().fit(z, y).downdate(z, y)
    assert not density.is_fitted
    same_density(density.update(z[:, :2], y), GaussianDensity().fit(z[:, :2], y), z[:, :2])


def test_merging_an_empty_density_changes_nothing(blobs: Blobs) -> None:
    z, y = blobs()
    density = GaussianDensity().fit(z, y)
    before = density.log_density(z)
    assert_close(density.merge(GaussianDensity()).log_density(z), before, rtol=0, atol=0)
    assert_close(GaussianDensity().merge(density).log_density(z), before, rtol=1e-12, atol=1e-12)
    assert not GaussianDensity().merge(GaussianDensity()).is_fitted


def test_merging_leaves_the_other_density_alone(blobs: Blobs) -> None:
    z, y = blobs()
    other = GaussianDensity().fit(z, y)
    before = other.log_density(z)
    merged = GaussianDensity().merge(other).update(z[:5], y[:5])
    assert merged.counts_.sum() == 155
    assert other.counts_.sum() == 150
    assert_close(other.log_density(z), before, rtol=0, atol=0)


def test_refitting_forgets(blobs: Blobs) -> None:
    z, y = blobs()
    density = GaussianDensity().fit(*blobs(classes=5, dim=7, seed=3)).fit(z, y)
    same_density(density, GaussianDensity().fit(z, y), z, rtol=0)


@pytest.mark.parametrize("params", EVERY_KIND, ids=str)
def test_a_restored_density_is_the_same_and_keeps_learning(blobs: Blobs, params: dict[str, Any]) -> None:
    z, y = blobs()
    density = GaussianDensity(**params).fit(z, y)
    restored = GaussianDensity.restore(density.get_params(), density.state_tensors())
    same_density(restored, density, z, rtol=0)
    restored.update(z[:20] + 1, y[:20])
    assert restored.counts_.sum() == density.counts_.sum() + 20
    same_density(restored, density.update(z[:20] + 1, y[:20]), z, rtol=0)


@pytest.mark.parametrize("params", EVERY_KIND, ids=str)
def test_a_deep_copy_goes_its_own_way(blobs: Blobs, params: dict[str, Any]) -> None:
    z, y = blobs()
    density = GaussianDensity(**params).fit(z, y)
    before = density.log_density(z)
    twin = copy.deepcopy(density)
    assert_close(twin.log_density(z), before, rtol=0, atol=0)
    twin.update(z + 5, y)
    assert_close(density.log_density(z), before, rtol=0, atol=0)
    assert not torch.allclose(twin.log_density(z), before)


def test_chunks_change_no_result(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = blobs()
    whole = GaussianDensity().fit(z, y)
    expected = whole.log_density(z)
    monkeypatch.setattr("ddu.density.gaussian._CHUNK", 7)
    chunked = GaussianDensity().fit(z, y)
    close(chunked.log_density(z), expected)
    close(chunked.downdate(z[:20], y[:20]).log_density(z), GaussianDensity().fit(z[20:], y[20:]).log_density(z))


# Few samples


def random_relu_features(images: np.ndarray) -> np.ndarray:
    """64 pixels to 128 features by a fixed random layer."""
    weight = np.random.default_rng(0).normal(size=(64, 128)) / 8
    return np.maximum(images @ weight, 0)


def few_per_class(y: np.ndarray, count: int) -> np.ndarray:
    return np.concatenate([np.flatnonzero(y == label)[:count] for label in np.unique(y)])


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.filterwarnings("ignore::ddu.errors.FewSamplesWarning")
def test_ten_digits_a_class_in_128_dimensions_still_separate(covariance: Any) -> None:
    images, y = map(np.asarray, load_digits(return_X_y=True))
    images = images / 16
    shuffled = np.random.default_rng(1).permuted(images[:500], axis=1)
    z, outside = random_relu_features(images), random_relu_features(shuffled)
    train, held_out = slice(0, 1300), slice(1300, None)
    few = few_per_class(y[train], 10)
    plenty = GaussianDensity(covariance).fit(z[train], y[train])
    scarce = GaussianDensity(covariance).fit(z[few], y[few])
    assert np.isfinite(scarce.log_density(z[held_out])).all()
    assert auroc(plenty, z[held_out], outside) >= 0.98
    assert auroc(scarce, z[held_out], outside) >= 0.9


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.filterwarnings("ignore::ddu.errors.FewSamplesWarning")
def test_ten_samples_a_class_of_a_trained_networks_features_still_separate(real_data: Path, covariance: Any) -> None:
    with np.load(real_data / "features_mnist.npz") as data:
        z, y, inside, outside = data["z_train"], data["y_train"], data["z_test"], data["z_ood"]
    few = few_per_class(y, 10)
    plenty = auroc(GaussianDensity(covariance).fit(z, y), inside, outside)
    scarce = auroc(GaussianDensity(covariance).fit(z[few], y[few]), inside, outside)
    assert plenty >= 0.99
    assert scarce >= 0.98


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_single_precision_keeps_the_ranking_of_a_trained_networks_features(real_data: Path, covariance: Any) -> None:
    with np.load(real_data / "features_mnist.npz") as data:
        density = GaussianDensity(covariance).fit(data["z_train"], data["y_train"])
        points = np.concatenate([data["z_test"], data["z_ood"]])
    single, double = density.log_density(points), density.log_density(points.astype(np.float64))
    close(single, double, 1e-4)
    assert rank_correlation(single, double) > 1 - 1e-8


@pytest.mark.parametrize("shrinkage", ["auto", "oas", "ledoit_wolf", 0.1, None])
@pytest.mark.parametrize("dim", [1, 3, 50])
@pytest.mark.filterwarnings("ignore::ddu.errors.FewSamplesWarning")
def test_two_samples_a_class_are_enough_in_any_dimension(blobs: Blobs, shrinkage: Any, dim: int) -> None:
    z, y = blobs(classes=2, per_class=2, dim=dim)
    for covariance in COVARIANCES if shrinkage != "ledoit_wolf" else COVARIANCES[:1]:
        density = GaussianDensity(covariance, shrinkage=shrinkage, rank=2).fit(z, y)
        near, far = density.log_density(z), density.log_density(z + 100)
        assert torch.isfinite(near).all()
        assert torch.isfinite(far).all()
        assert near.min() > far.max()


def test_few_samples_are_warned_of_with_class_counts_and_remedy(blobs: Blobs) -> None:
    z, y = blobs(classes=3, per_class=9, dim=8)
    keep = torch.cat([(y != 1).nonzero().flatten(), (y == 1).nonzero().flatten()[:5]])
    with pytest.warns(FewSamplesWarning) as caught:
        GaussianDensity().fit(z[keep], y[keep])
    assert [str(warning.message) for warning in caught] == [
        "The covariance of 1 of 3 classes is singular, with no more samples than features (8): 1 (5 samples). "
        "The pooled covariance of all classes fills in (shrinkage='auto'). For a sharper density give each class more "
        "than 8 samples, or use covariance='shared', 'low_rank' or pca=."
    ]


@pytest.mark.parametrize("call", ["fit", "log_density"])
def test_the_warning_of_few_samples_points_at_the_callers_line(blobs: Blobs, call: str) -> None:
    z, y = blobs(per_class=3, dim=8)
    density = GaussianDensity().update(z, y)
    with pytest.warns(FewSamplesWarning) as caught:
        density.fit(z, y) if call == "fit" else density.log_density(z)
    assert caught[0].filename == __file__


def test_plenty_of_samples_are_not_warned_of(blobs: Blobs) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GaussianDensity().fit(*blobs(per_class=9, dim=8))
        GaussianDensity("shared").fit(*blobs(per_class=3, dim=8))


# What comes in


@pytest.mark.parametrize(
    "disguise",
    [
        lambda z: z.numpy(),
        lambda z: z.numpy().astype(">f8"),
        lambda z: np.asfortranarray(z.numpy()),
        lambda z: np.repeat(z.numpy(), 2, axis=1)[:, ::2],
        lambda z: np.ascontiguousarray(z.numpy()[:, ::-1])[:, ::-1],
        lambda z: np.lib.stride_tricks.as_strided(z.numpy(), writeable=False),
        lambda z: z.T.contiguous().T,
        lambda z: z.clone().requires_grad_(),
    ],
    ids=["numpy", "byte-swapped", "fortran", "strided", "reversed", "read-only", "transposed", "with-gradient"],
)
def test_the_layout_of_the_features_does_not_matter(blobs: Blobs, disguise: Callable[[Tensor], Any]) -> None:
    z, y = blobs()
    expected = GaussianDensity().fit(z, y).log_density(z)
    density = GaussianDensity().fit(disguise(z), y.numpy().astype(">i2"))
    scores = density.log_density(disguise(z))
    assert type(scores) is type(disguise(z))
    assert not getattr(scores, "requires_grad", False)
    close(scores, expected, 1e-12)


def test_unit_length_does_not_depend_on_layout_scale_or_overflow(blobs: Blobs) -> None:
    z, y = blobs(dim=100, per_class=150)
    z = z.float()
    density = GaussianDensity(normalize=True).fit(z, y)
    close(
        GaussianDensity(normalize=True).fit(z.T.contiguous().T, y).log_density(z.double()),
        density.log_density(z.double()),
    )
    large = GaussianDensity(normalize=True).fit(z * 2.0**100, y)
    assert_close(large.log_density(z * 2.0**100), density.log_density(z), rtol=0, atol=0)
    assert torch.isfinite(density.log_density(torch.zeros(1, 100))).all()


def test_inputs_are_left_untouched(blobs: Blobs) -> None:
    z, y = blobs()
    z_before, y_before = z.clone(), y.clone()
    GaussianDensity(normalize=True, standardize=True).fit(z, y).downdate(z[:9], y[:9]).log_density(z)
    assert torch.equal(z, z_before)
    assert torch.equal(y, y_before)


@pytest.mark.parametrize(
    ("dtype", "scored"),
    [("f2", "f4"), ("f4", "f4"), ("f8", "f8"), ("i2", "f8"), ("u1", "f8"), ("u4", "f8"), ("?", "f8")],
)
def test_any_real_dtype_is_scored_in_single_or_double_precision(dtype: str, scored: str) -> None:
    generator = np.random.default_rng(0)
    z = generator.integers(0, 2 if dtype == "?" else 50, (60, 3)).astype(dtype)
    y = np.arange(60) % 2
    expected = GaussianDensity().fit(z.astype("f8"), y).log_density(z.astype("f8"))
    scores = GaussianDensity().fit(z, y).log_density(z)
    assert isinstance(scores, np.ndarray)
    assert scores.dtype == scored
    close(scores, expected, 1e-4 if scored == "f4" else 1e-12)


def test_bfloat16_features_are_scored_as_they_are(blobs: Blobs) -> None:
    z, y = blobs()
    half = z.bfloat16()
    close(GaussianDensity().fit(half, y).log_density(half), GaussianDensity().fit(half.float(), y).log_density(half))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_no_rows_give_no_scores(blobs: Blobs, covariance: Any) -> None:
    density = GaussianDensity(covariance, background=True).fit(*blobs())
    none = torch.empty(0, 4)
    assert density.log_density(none).shape == (0,)
    assert density.class_log_density(none).shape == (0, 3)
    assert density.posterior(none).shape == (0, 3)
    assert density.relative_log_density(none).shape == (0,)
    assert density.log_density(none.numpy()).shape == (0,)


def test_updating_with_no_rows_changes_nothing(blobs: Blobs) -> None:
    z, y = blobs()
    density = GaussianDensity().fit(z, y)
    before = density.log_density(z)
    density.update(z[:0], y[:0]).downdate(z[:0], y[:0])
    assert_close(density.log_density(z), before, rtol=0, atol=0)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_one_class_is_one_gaussian(blobs: Blobs, covariance: Any) -> None:
    z, y = blobs(classes=1)
    density = GaussianDensity(covariance, rank=4, **PLAIN).fit(z, y)
    matrix = np.cov(z.numpy().T)
    matrix = np.diag(matrix.diagonal()) if covariance == "diagonal" else matrix
    close(density.log_density(z), gaussian(z.numpy().mean(0), matrix).logpdf(z))
    assert torch.equal(density.posterior(z), torch.ones(50, 1, dtype=torch.float64))


# Awkward features


@pytest.mark.parametrize("constant", [0.0, 0.1, -3e4])
@pytest.mark.parametrize("params", EVERY_KIND, ids=str)
def test_dead_features_do_not_matter_inside_and_give_away_what_is_outside(
    blobs: Blobs, params: dict[str, Any], constant: float
) -> None:
    z, y = blobs()
    dead = torch.cat([z, torch.full((len(z), 2), constant, dtype=torch.float64)], dim=1)
    density = GaussianDensity(**params).fit(dead, y)
    scores = density.log_density(dead)
    assert torch.isfinite(scores).all()
    if not params.get("normalize") and not params.get("pca"):
        spread = float(z.std())
        nudged = dead + torch.tensor([0.0] * 4 + [1e-9 * spread, 0.0])
        close(density.log_density(nudged), scores, 1e-3)
        if params.get("covariance") != "low_rank":  # which spreads what it left out evenly over the rest
            revived = dead + torch.tensor([0.0] * 4 + [spread, 0.0])
            assert density.log_density(revived).max() < scores.min()


# Unit length is not invariant to a shift
@pytest.mark.parametrize("params", [kind for kind in EVERY_KIND if "normalize" not in kind], ids=str)
def test_a_mean_a_million_deviations_away_costs_no_more_digits_than_the_data_lost(
    blobs: Blobs, params: dict[str, Any]
) -> None:
    z, y = blobs()
    # A grid of 2⁻²⁰, so that the shift itself loses nothing
    z = (z * 2**20).round() / 2**20
    here, there = GaussianDensity(**params).fit(z, y), GaussianDensity(**params).fit(z + 2**20, y)
    close(there.log_density(z + 2**20), here.log_density(z), 1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("dim", [4, 128])
def test_log_density_is_finite_and_falls_along_a_ray_over_decades(
    blobs: Blobs, covariance: Any, dtype: torch.dtype, dim: int
) -> None:
    z, y = blobs(classes=4, per_class=200, dim=dim)
    density = GaussianDensity(covariance, rank=2).fit(z, y)
    direction = torch.randn(dim, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    decades = torch.logspace(2, 12, 41, dtype=torch.float64)
    scores = density.log_density((decades[:, None] * direction).to(dtype))
    assert torch.isfinite(scores).all()
    assert (scores.diff() < 0).all()
    # Far away it is the squared distance that counts: a decade costs a factor of a hundred
    assert_close((scores[8:] / scores[:-8] / 10**4)[20:].log10(), torch.zeros(13, dtype=dtype), rtol=0, atol=1e-3)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_posteriors_far_beyond_single_precision_are_still_probabilities(blobs: Blobs, covariance: Any) -> None:
    z, y = blobs()
    density = GaussianDensity(covariance, rank=2, background=True).fit(z, y)
    far = torch.full((1, 4), 1e30)
    assert_close(density.posterior(far).sum(1), torch.ones(1))
    assert density.log_density(far) < density.log_density(torch.full((1, 4), 1e10))
    assert not density.relative_log_density(far).isnan().any()
    assert torch.isfinite(density.mahalanobis(far)).all()
    assert torch.isfinite(density.relative_mahalanobis(far)).all()


# Refusals


def nothing_happens(density: GaussianDensity) -> Callable[[], None]:
    """A check that the density is, to the last bit, as it is now."""
    before = {name: tensor.clone() for name, tensor in density.state_tensors().items()}
    z = torch.linspace(-3, 3, 5 * before["mean"].shape[1], dtype=torch.float64).view(5, -1)
    scores = density.log_density(z)

    def check() -> None:
        after = density.state_tensors()
        assert after.keys() == before.keys()
        assert all(torch.equal(after[name], before[name]) for name in before)
        assert torch.equal(density.log_density(z), scores)

    return check


def bad(z: Tensor, row: int, column: int, value: float) -> Tensor:
    z = z.clone()
    z[row, column] = value
    return z


Z = torch.randn(6, 4, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 0, 1, 2])
REFUSALS = {
    "nan": (
        bad(Z, 2, 1, float("nan")),
        Y,
        FeatureError,
        "1 of 6 rows of features are not finite; the first value is nan at row 2, column 1. Check the network's "
        "weights and inputs, or drop those rows.",
    ),
    "infinite": (
        bad(Z, 5, 0, -float("inf")),
        Y,
        FeatureError,
        "1 of 6 rows of features are not finite; the first value is -inf at row 5, column 0. Check the network's "
        "weights and inputs, or drop those rows.",
    ),
    "overflowed half": (
        bad(Z, 1, 3, 1e6).half(),
        Y,
        FeatureError,
        "1 of 6 rows of features are not finite; the first value is inf at row 1, column 3. float16 overflows beyond "
        "65504: run the network in float32 or bfloat16.",
    ),
    "other width": (
        Z[:, :3],
        Y,
        FeatureError,
        "The density was fitted on 4 features, these have 3. Use features of the same layer of the same network, or "
        "fit again.",
    ),
    "one row": (
        Z[0],
        Y[:1],
        FeatureError,
        "Features must have shape (samples, features). Got (4,): reshape a single sample with z[None, :].",
    ),
    "maps": (
        Z[:, :, None, None],
        Y,
        FeatureError,
        "Features must have shape (samples, features). Got (6, 4, 1, 1): pool or flatten them first.",
    ),
    "float labels": (
        Z,
        Y.float(),
        LabelError,
        "Labels must be integers from 0 to the number of classes - 1. Got dtype torch.float32: convert class indices "
        "with y.long(), one-hot or soft labels with y.argmax(1).",
    ),
    "negative label": (
        Z,
        torch.tensor([0, 1, 2, 0, -1, 2]),
        LabelError,
        "Labels must not be negative. Got -1 at position 4: drop unlabelled samples before fitting.",
    ),
    "label out of range": (
        Z,
        torch.tensor([0, 1, 2, 3, 1, 2]),
        LabelError,
        "Labels must be below the number of classes, 3. Got 3 at position 3: check that labels are indices from 0 to "
        "2.",
    ),
    "fewer labels": (
        Z,
        Y[:5],
        LabelError,
        "There are 6 rows of features but 5 labels: give one label per row.",
    ),
}


@pytest.mark.parametrize("action", ["update", "downdate"])
@pytest.mark.parametrize("kind", REFUSALS)
def test_bad_input_is_refused_and_the_density_left_as_it_was(blobs: Blobs, kind: str, action: str) -> None:
    z, y, error, message = REFUSALS[kind]
    density = GaussianDensity(num_classes=3).fit(*blobs())
    unchanged = nothing_happens(density)
    with pytest.raises(error) as caught:
        getattr(density, action)(z, y)
    assert str(caught.value) == message
    unchanged()


@pytest.mark.parametrize("kind", ["nan", "infinite", "overflowed half", "other width", "one row", "maps"])
@pytest.mark.parametrize("method", ["log_density", "class_log_density", "posterior"])
def test_bad_features_are_not_scored(blobs: Blobs, kind: str, method: str) -> None:
    z, _, error, message = REFUSALS[kind]
    density = GaussianDensity().fit(*blobs())
    with pytest.raises(error) as caught:
        getattr(density, method)(z)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 0, 1, 1, 3, 3], "Class 2 has 0 of the 6 samples, out of 4 classes. Every class needs at least 2 to have a "
         "density: add samples, or number the classes that do occur from 0 without gaps."),
        ([1, 1, 3, 3, 3, 3], "Classes 0, 2 have 0 of the 6 samples, out of 4 classes. Every class needs at least 2 to "
         "have a density: add samples, or number the classes that do occur from 0 without gaps."),
        ([0, 0, 1, 2, 2, 2], "Class 1 has 1 sample, and a variance needs at least 2: add samples, or leave the class "
         "out."),
        ([0, 0, 1, 2, 3, 3], "Classes 1, 2 have 1 sample, and a variance needs at least 2: add samples, or leave the "
         "class out."),
    ],
)  # fmt: skip
def test_a_refused_fit_keeps_the_earlier_one(blobs: Blobs, labels: list[int], message: str) -> None:
    density = GaussianDensity().fit(*blobs())
    unchanged = nothing_happens(density)
    with pytest.raises(LabelError) as caught:
        density.fit(Z, torch.tensor(labels))
    assert str(caught.value) == message
    unchanged()


def test_forgetting_more_than_was_seen_is_refused(blobs: Blobs) -> None:
    z, y = blobs()
    density = GaussianDensity().fit(z, y)
    unchanged = nothing_happens(density)
    with pytest.raises(LabelError) as caught:
        density.downdate(torch.cat([z, Z]), torch.cat([y, torch.full((6,), 2)]))
    assert str(caught.value) == (
        "Cannot forget 56 samples of class 2: only 50 have been seen. Give downdate the samples that were given to "
        "fit or update."
    )
    unchanged()


def test_forgetting_what_was_never_seen_is_refused() -> None:
    z = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0], [0.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    density = GaussianDensity().fit(z, torch.tensor([0, 0, 0, 1, 1, 1]))
    unchanged = nothing_happens(density)
    with pytest.raises(FeatureError) as caught:
        density.downdate(torch.tensor([[0.0, 0.0], [11.0, 1.0]]), torch.tensor([0, 1]))
    assert str(caught.value) == (
        "These 1 samples of class 1 spread further (113.8) than all 3 that have been seen (2.667), so they were not "
        "among them. Give downdate the samples that were given to fit or update."
    )
    unchanged()


def test_merging_another_width_or_other_parameters_is_refused(blobs: Blobs) -> None:
    density = GaussianDensity().fit(*blobs())
    unchanged = nothing_happens(density)
    with pytest.raises(FeatureError) as caught:
        density.merge(GaussianDensity().fit(*blobs(dim=3)))
    assert str(caught.value) == ("A density of 4 features does not merge with one of 3: fit both on the same layer.")
    with pytest.raises(InputError) as caught:
        density.merge(GaussianDensity("shared", shrinkage=0.5).fit(*blobs()))
    assert str(caught.value) == (
        "Densities with different parameters do not merge: covariance='auto' and 'shared', shrinkage='auto' and 0.5. "
        "Make both alike."
    )
    unchanged()


@pytest.mark.parametrize("method", ["log_density", "class_log_density", "posterior"])
def test_scoring_before_fitting_is_refused(method: str) -> None:
    with pytest.raises(NotFittedError) as caught:
        getattr(GaussianDensity(), method)(Z)
    assert str(caught.value) == (
        "This GaussianDensity has seen no samples yet. Call fit(z, y) or update(z, y) before scoring."
    )


def test_forgetting_before_fitting_is_refused() -> None:
    with pytest.raises(NotFittedError):
        GaussianDensity().downdate(Z, Y)


def test_a_density_with_a_class_of_one_is_not_scored_until_there_are_two(blobs: Blobs) -> None:
    z, y = blobs()
    density = GaussianDensity().update(z, y).update(z[:1], torch.tensor([3]))
    with pytest.raises(LabelError, match=r"^Class 3 has 1 sample, and a variance needs at least 2"):
        density.log_density(z)
    density.update(z[1:9], torch.full((8,), 3))
    assert torch.isfinite(density.log_density(z)).all()


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.filterwarnings("ignore::ddu.errors.FewSamplesWarning")
def test_a_singular_covariance_without_any_regularisation_is_refused_in_words(blobs: Blobs, covariance: Any) -> None:
    z, y = blobs(per_class=3, dim=4)
    singular = torch.cat([z, torch.zeros(len(z), 1)], dim=1)[:-1]
    with pytest.raises(FeatureError) as caught:
        GaussianDensity(covariance, rank=2, **PLAIN).fit(singular, y[:-1])
    assert str(caught.value) == (
        f"A covariance of 5 features is singular, from 2 samples in class {int(y[-1])}, the smallest: some direction "
        "has no variance. Use shrinkage='auto', or a regularization above 0."
    )


def test_features_that_never_vary_are_refused() -> None:
    with pytest.raises(FeatureError) as caught:
        GaussianDensity("shared").fit(torch.ones(6, 4), Y)
    assert str(caught.value) == (
        "Every feature is constant within every class, so there is no variance to fit a Gaussian to. Tap an earlier "
        "layer, or check that the network's features differ between inputs."
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"covariance": "tied"}, "The 'covariance' parameter of GaussianDensity must be one of 'auto', 'full', "
         "'shared', 'diagonal', 'low_rank'. Got 'tied' instead."),
        ({"shrinkage": 3}, "The 'shrinkage' parameter of GaussianDensity must be a float in [0, 1]. Got 3 instead."),
        ({"shrinkage": "lw"}, "The 'shrinkage' parameter of GaussianDensity must be None, a float in [0, 1], 'auto', "
         "'oas' or 'ledoit_wolf'. Got 'lw' instead."),
        ({"regularization": -1.0}, "The 'regularization' parameter of GaussianDensity must be a finite float of at "
         "least 0. Got -1.0 instead."),
        ({"prior": "flat"}, "The 'prior' parameter of GaussianDensity must be 'empirical' or 'uniform'. Got 'flat' "
         "instead."),
        ({"rank": 0}, "The 'rank' parameter of GaussianDensity must be an integer of at least 1 and below 2³¹. "
         "Got 0 instead."),
        ({"pca": 1.5}, "The 'pca' parameter of GaussianDensity must be None, a number of components, or a share of "
         "the variance between 0 and 1. Got 1.5 instead."),
        ({"num_classes": 0}, "The 'num_classes' parameter of GaussianDensity must be None or an integer of at least "
         "1. Got 0 instead."),
    ],
)  # fmt: skip
def test_wrong_parameters_are_named(blobs: Blobs, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        GaussianDensity(**params).fit(*blobs())
    assert str(caught.value) == message


def test_ledoit_wolf_without_full_matrices_is_not_supported(blobs: Blobs) -> None:
    with pytest.raises(NotSupportedError) as caught:
        GaussianDensity("diagonal", shrinkage="ledoit_wolf").fit(*blobs())
    assert str(caught.value) == (
        "shrinkage='ledoit_wolf' needs covariance='full' without standardize or pca. Got covariance='diagonal', "
        "standardize=False, pca=None: use shrinkage='oas', which goes with all of them."
    )


def test_repr_is_the_call_that_makes_it() -> None:
    density = GaussianDensity("shared", shrinkage=0.5, pca=3)
    assert eval(repr(density)).get_params() == density.get_params()


@pytest.mark.parametrize("covariance", ["full", "shared", "diagonal", "low_rank"])
@pytest.mark.parametrize("options", [{}, {"standardize": True}, {"pca": 2}, {"normalize": True}], ids=str)
def test_distances_belong_to_the_log_densities_and_are_differentiable(covariance, options):
    generator = torch.Generator().manual_seed(0)
    z, y = torch.randn(200, 4, dtype=torch.float64, generator=generator), torch.arange(200) % 2
    density = GaussianDensity(covariance, rank=1, background=True, **options).fit(z, y)
    distances, background = density.mahalanobis(z), density.background_mahalanobis(z)
    # log N = log_norm - D² / 2, with the same log_norm for every sample
    gap = density.class_log_density(z) + distances / 2
    np.testing.assert_allclose(gap, gap[:1].expand_as(gap), rtol=1e-9)
    gap = density.background_log_density(z) + background / 2
    np.testing.assert_allclose(gap, gap[:1].expand_as(gap), rtol=1e-9)
    point = z[:3].clone().requires_grad_()
    assert torch.autograd.gradcheck(density.mahalanobis, (point,))
    assert torch.autograd.gradcheck(density.background_mahalanobis, (point,))


def test_far_along_a_nearly_degenerate_direction_classes_and_background_cancel():
    random = np.random.default_rng(0)
    spread = np.array([1.0, 1.0, 1.0, 1e-2])  # the classes differ in the first three only
    labels = np.arange(600) % 3
    z = spread * random.standard_normal((600, 4)) + 5 * np.eye(4)[labels] * [1, 1, 1, 0]
    density = GaussianDensity("shared", shrinkage=None, background=True).fit(z, labels)
    far = torch.tensor([[0.0, 0.0, 0.0, 50.0]], dtype=torch.float64)

    # Either distance is some 2.5e7, and the difference what the estimated means differ by in that direction
    found = float(density.relative_mahalanobis(far).amin())
    assert float(density.background_mahalanobis(far)[0]) > 1e7
    within, means = density.covariances_[0].numpy(), density.means_.numpy()
    total = within + np.cov(means.T, ddof=0)
    nearest = min(float((far.numpy()[0] - m) @ np.linalg.solve(within, far.numpy()[0] - m)) for m in means)
    centre = far.numpy()[0] - means.mean(0)
    assert found == pytest.approx(nearest - float(centre @ np.linalg.solve(total, centre)), rel=1e-6)


# What is stored

SCORED: list[dict[str, Any]] = [
    *EVERY_KIND,
    *(kind | {"background": True} for kind in EVERY_KIND),
    {"standardize": True, "pca": 0.9, "covariance": "full"},
]


@pytest.mark.parametrize("params", SCORED, ids=str)
def test_a_density_restored_from_its_factors_scores_the_same_to_the_last_bit(
    blobs: Blobs, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    z, y = blobs(classes=4, dim=8)
    density = GaussianDensity(**params).fit(z, y)
    tensors = density.state_tensors(moments=False, factors=True)
    assert {tensor.dtype for name, tensor in tensors.items() if name != "count"} == {torch.float32}
    expected, points = density.log_density(z.float()), torch.cat([z.float(), torch.full((1, 8), 1e30)])
    exact = density.log_density(z)
    for name in ("cholesky_ex", "eigh", "svd", "qr", "solve_triangular"):
        monkeypatch.setattr(torch.linalg, name, None)
    restored = GaussianDensity.restore(density.get_params(), {name: one.clone() for name, one in tensors.items()})
    assert torch.equal(restored.log_density(z.float()), expected)
    assert torch.equal(restored.mahalanobis(z.float()), density.mahalanobis(z.float()))
    assert torch.equal(restored.posterior(z.float()), density.posterior(z.float()))
    if density.background:
        assert torch.equal(restored.relative_log_density(z.float()), density.relative_log_density(z.float()))
    assert restored.covariance_ == density.covariance_
    assert restored.num_features_ == 8
    assert restored.counts_.tolist() == density.counts_.tolist()
    # Double precision is scored with the factors of single precision
    close(restored.log_density(z), exact, 1e-4)
    assert restored.log_density(z).dtype == torch.float64
    assert torch.isfinite(restored.log_density(points)).all()
    again = restored.to("cpu").state_tensors(moments=False, factors=True)
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    assert again.keys() == tensors.keys()


@pytest.mark.parametrize("action", ["update", "downdate", "merge", "merge into", "covariances_", "state_tensors"])
def test_without_moments_it_cannot_learn_and_says_so(blobs: Blobs, action: str) -> None:
    z, y = blobs()
    density = GaussianDensity().fit(z, y)
    restored = GaussianDensity.restore(density.get_params(), density.state_tensors(moments=False, factors=True))
    before = restored.log_density(z)
    actions: dict[str, Callable[[], Any]] = {
        "update": lambda: restored.update(z, y),
        "downdate": lambda: restored.downdate(z, y),
        "merge": lambda: restored.merge(density),
        "merge into": lambda: density.merge(restored),
        "covariances_": lambda: restored.covariances_,
        "state_tensors": lambda: restored.state_tensors(),
    }
    with pytest.raises(NotSupportedError) as caught:
        actions[action]()
    assert str(caught.value) == (
        "This GaussianDensity was loaded without its moments: it scores, and cannot learn, forget, merge or show its "
        "covariances. Save the detector with moments=True, or fit again."
    )
    assert torch.equal(restored.log_density(z), before)
    assert restored.fit(z, y).update(z, y).counts_.sum() == 300


@pytest.mark.parametrize("params", EVERY_KIND, ids=str)
def test_with_moments_it_scores_at_once_and_learns_on(blobs: Blobs, params: dict[str, Any]) -> None:
    z, y = blobs()
    density = GaussianDensity(**params).fit(z, y)
    restored = GaussianDensity.restore(density.get_params(), density.state_tensors(moments=True, factors=True))
    assert [dtype for _, dtype in restored._cache] == [torch.float32]
    assert torch.equal(restored.log_density(z.float()), density.log_density(z.float()))
    assert torch.equal(restored.log_density(z), density.log_density(z))
    same_density(restored.update(z[:20], y[:20]), density.update(z[:20], y[:20]), z, rtol=0)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "scorer.whitening",
            lambda tensor: -tensor,
            "The learned tensor 'scorer.whitening' must be triangular, with a diagonal above 0.",
        ),
        (
            "scorer.whitening",
            lambda tensor: tensor.unflatten(1, (4, 4)).mT.flatten(1).contiguous(),
            "The learned tensor 'scorer.whitening' must be triangular, with a diagonal above 0.",
        ),
        (
            "scorer.mean",
            lambda tensor: tensor * float("nan"),
            "The learned tensor 'scorer.mean' has 12 of 12 values that are not finite.",
        ),
        (
            "scorer.centre",
            lambda tensor: tensor[:3],
            "The learned tensor 'scorer.centre' must be torch.float32 of shape (4,). Got torch.float32 of shape (3,) "
            "instead.",
        ),
        (
            "scorer.log_norm",
            lambda tensor: tensor.double(),
            "The learned tensor 'scorer.log_norm' must be torch.float32 of shape (3,). Got torch.float64 of shape (3,) "
            "instead.",
        ),
        (
            "transform.scale",
            lambda tensor: -tensor,
            "The learned tensor 'transform.scale' must be above 0. Got -",
        ),
    ],
)
def test_factors_that_cannot_be_are_refused(
    blobs: Blobs, name: str, change: Callable[[Tensor], Tensor], message: str
) -> None:
    density = GaussianDensity(standardize=True).fit(*blobs())
    tensors = density.state_tensors(moments=False, factors=True)
    tensors[f"factors.{name}"] = change(tensors[f"factors.{name}"])
    with pytest.raises(InputError) as caught:
        GaussianDensity.restore(density.get_params(), tensors)
    assert str(caught.value).startswith(message)


def test_factors_and_moments_of_different_densities_are_refused(blobs: Blobs) -> None:
    one, other = GaussianDensity().fit(*blobs()), GaussianDensity().fit(*blobs(classes=4))
    tensors = one.state_tensors() | other.state_tensors(moments=False, factors=True) | {"count": one.counts_}
    with pytest.raises(InputError, match="belong to different densities"):
        GaussianDensity.restore(one.get_params(), tensors)
    del tensors["mean"], tensors["scatter"], tensors["squares"], tensors["count"]
    with pytest.raises(InputError, match="There must be an entry 'count'"):
        GaussianDensity.restore(one.get_params(), tensors)


# Devices

WITH_BACKGROUND = [kind | {"background": True} for kind in EVERY_KIND]


@pytest.mark.parametrize("params", EVERY_KIND + WITH_BACKGROUND, ids=str)
def test_to_moves_every_tensor_and_keeps_its_precision(blobs: Blobs, params: dict[str, Any]) -> None:
    z, y = blobs(dim=16)
    density = GaussianDensity(**params).fit(z, y)
    for points in (z, z.float()):
        density.log_density(points)
    before = {path: tensor.dtype for path, tensor in tensors_in(density)}
    assert len(before) > 6
    assert density.to("meta") is density
    after = dict(tensors_in(density))
    assert {tensor.device.type for tensor in after.values()} == {"meta"}
    assert {tensor.dtype for tensor in after.values()} <= {
        torch.float64,
        torch.int64,
        own_precision(density.covariance_),
    }
    assert len(after) < len(before)  # the other precision is worked out again where it is asked for
    assert density.moments_.device.type == "meta"


@pytest.mark.parametrize("params", EVERY_KIND, ids=str)
def test_a_density_that_was_moved_is_the_same_to_the_last_bit(blobs: Blobs, params: dict[str, Any]) -> None:
    z, y = blobs(dim=16)
    stayed, moved = (GaussianDensity(**params).update(z[:100], y[:100]) for _ in range(2))
    for step in (lambda one: one, lambda one: one.update(z[100:], y[100:]), lambda one: one.downdate(z[:5], y[:5])):
        step(stayed)
        step(moved.to("cpu")).to(torch.device("cpu"))
        for points in (z, z.float()):
            assert torch.equal(moved.log_density(points), stayed.log_density(points))
            assert torch.equal(moved.mahalanobis(points), stayed.mahalanobis(points))
        restored = GaussianDensity.restore(moved.get_params(), moved.state_tensors()).to("cpu")
        assert torch.equal(restored.log_density(z), stayed.log_density(z))
        assert all(torch.equal(tensor, stayed.state_tensors()[name]) for name, tensor in moved.state_tensors().items())


def test_factors_are_moved_not_worked_out_again(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = blobs()
    density = GaussianDensity().fit(z, y)
    monkeypatch.setattr(torch.linalg, "cholesky_ex", None)
    density.to("cpu").log_density(z)


def test_factors_are_copied_to_a_device_once(blobs: Blobs) -> None:
    z, y = blobs()
    density = GaussianDensity().fit(z, y)
    meta = torch.device("meta")
    assert density._factors(torch.float32, meta) is density._factors(torch.float32, meta)


def test_a_device_without_double_precision_gets_the_factors_alone(blobs: Blobs) -> None:
    density = GaussianDensity().fit(*blobs())
    assert density.to("mps").moments_.device.type == "cpu"


def test_to_before_fit_and_to_no_device_do_nothing(blobs: Blobs) -> None:
    z, y = blobs()
    density = GaussianDensity().to("cpu").fit(z, y)
    assert torch.equal(density.to().log_density(z), GaussianDensity().fit(z, y).log_density(z))


def test_to_refuses_a_dtype_in_words(blobs: Blobs) -> None:
    density = GaussianDensity().fit(*blobs())
    with pytest.raises(InputError) as caught:
        density.to(torch.float32)
    assert str(caught.value) == (
        "to() takes a device, such as 'cuda' or torch.device('cpu'). Got torch.float32 instead. Learned tensors keep "
        "their precision; features are scored in their own."
    )
