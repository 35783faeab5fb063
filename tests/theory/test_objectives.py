"""Three objectives of one mixture, against scipy and scikit-learn."""

from functools import partial

import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.mixture import GaussianMixture

from ddu import data
from ddu.errors import InputError
from ddu.theory import Mixture, cross_entropies, fit_conditional, fit_joint, fit_marginal


@pytest.fixture(scope="module")
def points():
    points = data.load("three_gaussians")
    return torch.from_numpy(points.inputs).double(), torch.from_numpy(points.labels)


@pytest.fixture(scope="module")
def gda(points) -> Mixture:
    return fit_joint(*points)


def test_the_joint_fit_has_the_moments_of_each_class(points, gda):
    z, labels = points
    for label in range(3):
        own = z[labels == label]
        assert float(gda.log_weights[label].exp()) == pytest.approx(len(own) / len(z))
        torch.testing.assert_close(gda.means[label], own.mean(0))
        torch.testing.assert_close(gda.factors[label] @ gda.factors[label].T, own.T.cov(correction=0))


def test_a_shared_covariance_is_that_of_linear_discriminant_analysis(points):
    z, labels = points
    lda = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(z, labels)
    found = fit_joint(z, labels, shared=True)
    torch.testing.assert_close(found.factors[1] @ found.factors[1].T, torch.from_numpy(lda.covariance_))


def test_the_objectives_are_those_of_scipys_gaussians(points, gda):
    z, labels = points
    log_joint = torch.stack(
        [
            gda.log_weights[c]
            + torch.from_numpy(multivariate_normal(gda.means[c], gda.factors[c] @ gda.factors[c].T).logpdf(z))
            for c in range(3)
        ],
        dim=1,
    ).numpy()
    found = cross_entropies(gda, z, labels)
    assert found.joint == pytest.approx(-log_joint[range(len(z)), labels].mean())
    assert found.marginal == pytest.approx(-logsumexp(log_joint, axis=1).mean())
    conditional = log_joint - logsumexp(log_joint, axis=1, keepdims=True)
    assert found.conditional == pytest.approx(-conditional[range(len(z)), labels].mean())
    assert found.joint == pytest.approx(found.conditional + found.marginal, rel=1e-12)
    torch.testing.assert_close(gda.log_density(z), torch.from_numpy(logsumexp(log_joint, axis=1)))


def test_expectation_maximisation_finds_what_scikit_learn_finds_from_its_own_start(points, gda):
    z, labels = points
    other = GaussianMixture(3, tol=1e-9, max_iter=10_000, reg_covar=0, random_state=0).fit(z)
    assert cross_entropies(fit_marginal(z, gda), z, labels).marginal == pytest.approx(-other.score(z), abs=1e-6)


def test_expectation_maximisation_begins_with_the_mixture_that_it_is_given(points, gda):
    z, _ = points
    by_hand = gda
    for _ in range(2):  # scikit-learn notices after the second step that it may stop
        share = by_hand.log_joint(z).softmax(1)
        counts = share.sum(0)
        means = share.T @ z / counts[:, None]
        centred = z[:, None] - means
        covariances = torch.einsum("nc,nci,ncj->cij", share, centred, centred) / counts[:, None, None]
        by_hand = Mixture.from_covariances(counts / len(z), means, covariances)
    found = fit_marginal(z, gda, tolerance=1e9)
    torch.testing.assert_close(found.means, by_hand.means, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.factors, by_hand.factors, rtol=1e-9, atol=1e-12)


def test_with_a_shared_covariance_the_best_classifier_is_logistic_regression(points):
    z, labels = points
    softmax = LogisticRegression(C=1e10, tol=1e-10, max_iter=1000).fit(z, labels)
    found = fit_conditional(z, labels, fit_joint(z, labels, shared=True), shared=True)
    assert (found.factors == found.factors[0]).all()
    assert cross_entropies(found, z, labels).conditional == pytest.approx(
        log_loss(labels, softmax.predict_proba(z)), abs=1e-7
    )
    probs = found.log_joint(z).softmax(1)
    torch.testing.assert_close(probs, torch.from_numpy(softmax.predict_proba(z)), rtol=0, atol=1e-4)


def test_each_fit_is_the_best_at_its_own_objective(points, gda):
    z, labels = points
    fits = {"conditional": fit_conditional(z, labels, gda), "joint": gda, "marginal": fit_marginal(z, gda)}
    scores = {name: cross_entropies(fit, z, labels) for name, fit in fits.items()}
    for objective in fits:
        ranked = sorted(scores, key=lambda name: getattr(scores[name], objective))
        assert ranked[0] == objective
        assert getattr(scores[ranked[1]], objective) > getattr(scores[objective], objective) + 0.05


def test_no_small_step_from_the_joint_fit_lowers_the_joint_objective(points, gda):
    z, labels = points
    best = cross_entropies(gda, z, labels).joint
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        moved = [part + 1e-2 * torch.randn(part.shape, generator=generator).double() for part in gda]
        other = Mixture(moved[0].log_softmax(0), moved[1], moved[2].tril())
        assert cross_entropies(other, z, labels).joint > best


def test_classes_that_are_well_apart_share_one_optimum():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    z = 100 * torch.eye(3)[labels][:, :2].double() + torch.randn(300, 2, generator=generator, dtype=torch.float64)
    gda = fit_joint(z, labels)
    found, by_em = cross_entropies(gda, z, labels), cross_entropies(fit_marginal(z, gda), z, labels)
    assert found.conditional == pytest.approx(0, abs=1e-12)
    assert by_em.marginal == pytest.approx(found.marginal, abs=1e-6)


def test_a_class_with_too_few_samples_is_refused_by_name():
    with pytest.raises(InputError, match=r"^Class 1 has 2 samples, and a Gaussian in 2 dimensions needs at least 3: "):
        fit_joint(torch.randn(6, 2), torch.tensor([0, 0, 0, 0, 1, 1]))
    with pytest.raises(InputError, match=r"^Class 1 has 0 samples, .* at least 1: "):
        fit_joint(torch.randn(6, 2), torch.tensor([0, 0, 0, 0, 2, 2]), shared=True)


@pytest.mark.parametrize(
    ("z", "labels", "words"),
    [
        (torch.zeros(6, 2), torch.zeros(5).long(), r"Got the shapes \(6, 2\) and \(5,\)"),
        (torch.zeros(6), torch.zeros(6).long(), r"Got the shapes \(6,\) and \(6,\)"),
        (torch.zeros(0, 2), torch.zeros(0).long(), r"Got the shapes \(0, 2\) and \(0,\)"),
        (torch.zeros(6, 2), torch.zeros(6), r"Labels must be integers, .* Got torch.float32"),
        (torch.zeros(6, 2), torch.full((6,), -1), r"Labels must be integers, .* from -1 to -1"),
    ],
)
def test_points_without_a_label_each_are_refused(gda, z, labels, words):
    for use in (fit_joint, partial(cross_entropies, gda), lambda z, labels: fit_conditional(z, labels, gda)):
        with pytest.raises(InputError, match=words):
            use(z, labels)


def test_points_and_labels_that_the_mixture_does_not_know_are_refused(gda):
    with pytest.raises(InputError, match=r"^Labels must be integers, 0 to 2\. Got torch\.int64 from 3 to 3\.$"):
        cross_entropies(gda, torch.zeros(4, 2), torch.full((4,), 3))
    with pytest.raises(InputError, match=r"^The mixture has 2 features\. Got points with 5\.$"):
        cross_entropies(gda, torch.zeros(4, 5), torch.zeros(4).long())


@pytest.mark.parametrize("shared", [False, True])
def test_points_on_a_line_are_refused(shared):
    line = torch.arange(12.0)[:, None].expand(-1, 2)
    with pytest.raises(InputError, match=r"^The covariance of class 0 is not positive definite: .* than 2 dimensions"):
        fit_joint(line, torch.arange(12) % 3, shared=shared)
