"""The scikit-learn estimators: scikit-learn's own checks, and its answers against those of independent models."""

import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import ddu
from ddu.errors import InputError, LabelError
from ddu.sklearn import DetectorClassifier, GaussianDensityClassifier
from ddu.types import Verdict

# Every check counts: those of array libraries are skipped unless scipy was imported with this variable set.
_ALL_CHECKS = """
import warnings
warnings.simplefilter("error")
from sklearn.utils.estimator_checks import check_estimator
from ddu.errors import FewSamplesWarning
from ddu.sklearn import GaussianDensityClassifier
warnings.simplefilter("ignore", FewSamplesWarning)  # some checks fit a handful of samples
results = check_estimator(GaussianDensityClassifier(), on_skip=None, on_fail="raise")
print(len(results), {result["status"] for result in results})
"""


def data(samples=300, seed=0, labels=("apple", "bear", "car")):
    rng = np.random.default_rng(seed)
    y = np.arange(samples) % len(labels)
    mixing = rng.normal(size=(len(labels), 3, 3))
    X = np.einsum("nij,nj->ni", mixing[y], rng.normal(size=(samples, 3))) + 2 * rng.normal(size=(len(labels), 3))[y]
    return X, np.array(labels)[y]


def test_every_check_of_scikit_learn_passes():
    run = subprocess.run(
        [sys.executable, "-c", _ALL_CHECKS],
        env=os.environ | {"SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    count, statuses = run.stdout.split(maxsplit=1)
    assert statuses.strip() == "{'passed'}"
    assert int(count) > 40


def spread(X, y, factor):
    """The same class means, with deviations that are `factor` times as large."""
    mean = np.array([X[y == label].mean(0) for label in y])
    return mean + factor * (X - mean)


def test_unshrunk_full_covariance_equals_quadratic_discriminant_analysis():
    X, y = data()
    ours = GaussianDensityClassifier(shrinkage=None, regularization=0.0).fit(X, y)
    # We divide a class's scatter by n - 1, sklearn by n, and before 1.9 by n - 1
    reference = QuadraticDiscriminantAnalysis(store_covariance=True).fit(X, y)
    ratio = X[y == "apple", 0].var(ddof=1) / reference.covariance_[0][0, 0]
    reference.fit(spread(X, y, np.sqrt(ratio)), y)
    np.testing.assert_array_equal(ours.predict(X), reference.predict(X))
    np.testing.assert_allclose(ours.predict_proba(X), reference.predict_proba(X), rtol=1e-7)


def test_shared_covariance_equals_linear_discriminant_analysis():
    X, y = data()
    ours = GaussianDensityClassifier("shared", shrinkage=None, regularization=0.0).fit(X, y)
    # sklearn divides the pooled scatter by N = 300, we by N - C
    reference = LinearDiscriminantAnalysis(solver="lsqr").fit(spread(X, y, np.sqrt(300 / 297)), y)
    np.testing.assert_array_equal(ours.predict(X), reference.predict(X))
    np.testing.assert_allclose(ours.predict_proba(X), reference.predict_proba(X), rtol=1e-7)


def log_normal(X, samples):
    cov: Any = np.cov(samples.T)
    return multivariate_normal.logpdf(X, samples.mean(0), cov)


def test_score_samples_is_the_log_density_of_the_mixture():
    X, y = data()
    ours = GaussianDensityClassifier(shrinkage=None, regularization=0.0).fit(X, y)
    parts = [np.log(np.mean(y == c)) + log_normal(X, X[y == c]) for c in ours.classes_]
    np.testing.assert_allclose(ours.score_samples(X), logsumexp(parts, axis=0), rtol=1e-9)


def test_log_probabilities_stay_finite_far_from_all_classes():
    X, y = data()
    far = 1e4 * np.ones((1, 3))
    log_proba = GaussianDensityClassifier().fit(X, y).predict_log_proba(far)
    assert np.isfinite(log_proba).all()
    assert log_proba.min() < -1000


def test_partial_fit_in_pieces_equals_fit():
    X, y = data()
    whole = GaussianDensityClassifier().fit(X, y)
    pieces = GaussianDensityClassifier().partial_fit(X[:1], y[:1], classes=["car", "bear", "apple"])
    pieces.partial_fit(X[1:100], y[1:100]).partial_fit(X[100:], y[100:])
    np.testing.assert_array_equal(pieces.classes_, whole.classes_)
    np.testing.assert_allclose(pieces.predict_log_proba(X), whole.predict_log_proba(X), rtol=1e-7, atol=1e-9)


def test_fit_after_partial_fit_forgets():
    X, y = data()
    other, names = data(seed=1, labels=("x", "y"))
    refitted = GaussianDensityClassifier().fit(other, names).fit(X, y)
    np.testing.assert_array_equal(refitted.score_samples(X), GaussianDensityClassifier().fit(X, y).score_samples(X))


def test_grid_search_in_a_pipeline_and_pickling_work():
    X, y = data()
    search = GridSearchCV(
        make_pipeline(StandardScaler(), GaussianDensityClassifier()),
        {"gaussiandensityclassifier__covariance": ["full", "shared", "diagonal", "low_rank"]},
        cv=2,
    ).fit(X, y)
    # the classes differ in their covariances, not only in their variances
    assert search.best_params_ == {"gaussiandensityclassifier__covariance": "full"}
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict_proba(X), search.predict_proba(X))


def test_every_parameter_of_the_density_that_concerns_a_classifier_is_a_parameter():
    theirs = set(ddu.GaussianDensity().get_params()) - {"background", "num_classes"}
    assert set(GaussianDensityClassifier().get_params()) == theirs


def test_partial_fit_needs_to_know_the_classes():
    X, y = data()
    with pytest.raises(InputError) as caught:
        GaussianDensityClassifier().partial_fit(X, y)
    assert str(caught.value) == "The first call of partial_fit needs classes=, all labels that there will ever be."


def test_partial_fit_refuses_new_classes():
    X, y = data()
    model = GaussianDensityClassifier().partial_fit(X[y != "car"], y[y != "car"], classes=["apple", "bear"])
    before = model.score_samples(X)
    with pytest.raises(LabelError) as caught:
        model.partial_fit(X, y)
    assert str(caught.value) == (
        "The labels ['car'] are not among the 2 classes of the first partial_fit: name them there, or fit again."
    )
    np.testing.assert_array_equal(model.score_samples(X), before)


def test_a_class_of_one_sample_is_refused_and_leaves_the_earlier_fit():
    X, y = data()
    model = GaussianDensityClassifier().fit(X, y)
    before = model.predict(X)
    with pytest.raises(LabelError, match="Class 1 has 1 sample, and a variance needs at least 2"):
        model.fit(X[:3], ["one", "one", "two"])
    np.testing.assert_array_equal(model.predict(X), before)


@pytest.fixture(scope="module")
def network():
    """Trained on the first 3,000 of 5,000 samples."""
    X, y = (one[:3000] for one in data(5000))
    inputs, labels = torch.from_numpy(X).float(), torch.from_numpy(np.unique(y, return_inverse=True)[1])
    model = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3))
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    return model.eval()


def halves():
    X, y = (one[3000:] for one in data(5000))
    return (X[::2], y[::2]), (X[1::2], y[1::2])


@pytest.mark.parametrize(
    ("method", "options"),
    [("ddu", {"features": ["1", "3"]}), ("ddu", None), ("ddu_paper", None), ("mahalanobis", None), ("energy", None)],
)
def test_a_detector_of_several_layers_or_none_is_an_estimator(method, options, network):
    (X, y), (X_test, y_test) = halves()
    classifier = DetectorClassifier(network, method, options=options, false_alarm_rate=0.05).fit(X, y)
    with torch.no_grad():
        label = network(torch.from_numpy(X_test).float()).argmax(1).numpy()
    np.testing.assert_array_equal(classifier.predict(X_test), np.array(["apple", "bear", "car"])[label])
    assert classifier.score(X_test, y_test) == np.mean(classifier.predict(X_test) == y_test) > 0.7
    np.testing.assert_allclose(classifier.predict_proba(X_test).sum(1), 1, rtol=1e-5)
    judged = classifier.judge(X_test)
    assert judged.p_value is not None
    # 160 held-out samples or more set the threshold: three standard errors of the rate that follows
    assert np.mean(judged.p_value.numpy() <= 0.05) < 0.05 + 3 * np.sqrt(0.05 * 0.95 * (1 / 160 + 1 / 1000))
    np.testing.assert_array_equal(classifier.score_samples(X_test), -judged.epistemic.numpy())
    if method.startswith("ddu"):
        assert set(classifier.judge(X_test + 300).verdict) == {Verdict.OUT_OF_DISTRIBUTION}


def test_the_same_verdicts_as_the_detector_alone(network):
    (X, y), held_out = halves()
    classifier = DetectorClassifier(network, options={"features": ["1", "3"]}).fit(X, y, calibration=held_out)
    batches = [
        (torch.from_numpy(one).float(), torch.from_numpy(np.unique(labels, return_inverse=True)[1]))
        for one, labels in ((X, y), held_out)
    ]
    alone = ddu.DDU(network, features=["1", "3"]).fit(batches[:1]).calibrate(batches[1:])
    x = 3 * X[:50]
    found, expected = classifier.judge(x), alone.predict(torch.from_numpy(x).float())
    torch.testing.assert_close(found.epistemic, expected.epistemic, rtol=1e-4, atol=1e-4)  # other batches of features
    torch.testing.assert_close(found.probs, expected.probs)
    assert list(found.verdict) == list(expected.verdict)


def test_a_detector_is_cloned_searched_and_pickled(network):
    (X, y), (X_test, _) = halves()
    classifier = DetectorClassifier(network, options={"features": ["1", "3"]}, false_alarm_rate=0.05)
    assert len(cross_val_score(clone(classifier), X, y, cv=3)) == 3
    search = GridSearchCV(classifier, {"method": ["ddu", "ddu_paper"], "options": [None]}, cv=2).fit(X, y)
    assert search.best_params_["method"] in ("ddu", "ddu_paper")
    fitted = classifier.fit(X, y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.score_samples(X_test), fitted.score_samples(X_test))


def test_labels_may_be_named_in_the_order_of_the_networks_outputs(network):
    (X, y), (X_test, _) = halves()
    order = nn.Linear(3, 3)
    order.load_state_dict({"weight": torch.eye(3)[[2, 0, 1]], "bias": torch.zeros(3)})
    swapped = nn.Sequential(*network, order)
    classifier = DetectorClassifier(swapped, "energy", classes=["car", "apple", "bear"]).fit(X, y)
    expected = DetectorClassifier(network, "energy").fit(X, y).predict(X_test)
    np.testing.assert_array_equal(classifier.predict(X_test), expected)


def test_labels_that_the_network_does_not_have_are_refused(network):
    (X, y), _ = halves()
    with pytest.raises(LabelError) as caught:
        DetectorClassifier(network, classes=["apple", "bear", "dog"]).fit(X, y)
    assert str(caught.value) == (
        "The labels ['car'] are not among the 3 classes of the network: name the label of each of its outputs by "
        "classes=."
    )


@pytest.mark.parametrize("method", ["ddu", "energy"])
@pytest.mark.parametrize(("classes", "kept"), [(None, ["apple", "car"]), (["apple", "bear", "car", "dog"], None)])
def test_other_labels_than_the_network_has_outputs_are_refused(method, classes, kept, network):
    (X, y), _ = halves()
    rows = np.isin(y, kept or y)
    with pytest.raises(InputError, match=r"^There are \d class names for 3 classes: give one for each\.$"):
        DetectorClassifier(network, method, classes=classes).fit(X[rows], y[rows])


def test_arrays_may_be_reversed_or_read_only(network):
    (X, y), (X_test, _) = halves()
    X.flags.writeable = False
    classifier = DetectorClassifier(network, "energy").fit(X, y)
    np.testing.assert_array_equal(classifier.predict(X_test[::-1]), classifier.predict(X_test)[::-1])
