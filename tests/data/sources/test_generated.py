import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits, make_moons

from ddu.data import load
from ddu.data.sources.generated import GAUSSIAN_MEANS, GAUSSIAN_STD, LABEL_NOISE

NAMES = ["digits", "one_d", "three_gaussians", "two_moons"]


@pytest.mark.parametrize("name", NAMES)
def test_a_generated_set_needs_no_files_and_is_always_the_same(name, tmp_path):
    first, again = (load(name, root=tmp_path) for _ in range(2))
    np.testing.assert_array_equal(first.inputs, again.inputs)
    np.testing.assert_array_equal(first.labels, again.labels)
    assert first.labels.dtype == np.int64
    assert first[0][0].shape == first.info.shape
    assert set(first.labels) == set(range(first.info.num_classes))


@pytest.mark.parametrize("name", NAMES)
def test_train_and_test_share_no_input(name):
    train, test = ({row.tobytes() for row in load(name, split).inputs} for split in ("train", "test"))
    assert not train & test


def test_digits_are_those_of_scikit_learn_in_order():
    pixels, labels = load_digits(return_X_y=True)
    train, test = load("digits", "train"), load("digits", "test")
    np.testing.assert_array_equal(np.concatenate([train.inputs, test.inputs]).reshape(-1, 64) * 16, pixels)
    np.testing.assert_array_equal(np.concatenate([train.labels, test.labels]), labels)


def test_two_moons_are_those_of_the_paper():
    points, labels = make_moons(2000, noise=0.1, random_state=0)
    dataset = load("two_moons")
    np.testing.assert_array_equal(dataset.inputs, points.astype(np.float32))
    np.testing.assert_array_equal(dataset.labels, labels)


@pytest.mark.parametrize("split", ["train", "test"])
def test_one_d_is_ambiguous_where_the_paper_says_and_empty_between(split):
    dataset = load("one_d", split)
    x, y = dataset.inputs[:, 0], dataset.labels
    assert np.abs(x).min() >= 2
    assert np.abs(x).max() <= 6
    for low, high, label in ((-6, -4.5, 0), (-3.5, -2, 1), (2, 3.5, 0), (4.5, 6, 1)):
        inside = (low < x) & (x < high)
        assert inside.sum() > 100
        assert (y[inside] == label).all()
    for low, high in ((-4.5, -3.5), (3.5, 4.5)):
        inside = (low < x) & (x < high)
        assert 0.35 < y[inside].mean() < 0.65
        # The odds rise from 0 to 1 over the interval
        assert np.corrcoef(x[inside], y[inside])[0, 1] > 0.3


def test_three_gaussians_have_the_label_noise_and_the_entropy_of_the_paper():
    dataset = load("three_gaussians")
    density = np.stack([multivariate_normal(mean, GAUSSIAN_STD**2).pdf(dataset.inputs) for mean in GAUSSIAN_MEANS]).T
    wrong = (density.argmax(1) != dataset.labels).mean()
    assert abs(wrong - LABEL_NOISE) < 0.015
    assert np.bincount(dataset.labels).min() > 450
    # The cross-entropy of the best mixture, in nats; the paper's table has 4.7073
    entropy = -np.log(density.mean(1)).mean()
    assert abs(entropy - 4.7073) < 0.05
    # The paper marks a point near (0, -5) as ambiguous: two classes are as likely there
    at_the_star = [multivariate_normal(mean, GAUSSIAN_STD**2).pdf([0, -5]) for mean in GAUSSIAN_MEANS]
    assert at_the_star[1] == pytest.approx(at_the_star[2])
    assert at_the_star[0] < 0.01 * at_the_star[1]
