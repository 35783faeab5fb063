"""What is measured of a set."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from ddu.data.dirty_mnist_format import read_arrays, read_manifest
from ddu.dirty_mnist import measure_quality, read_quality
from ddu.dirty_mnist.fitting import adam
from ddu.dirty_mnist.quality import entropy_histogram


class Constant(nn.Module):
    """Says the same of every image: a little more for class 1, then for class 7."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(10).index_fill(0, torch.tensor([1, 7]), 1e-3))

    def forward(self, x):
        assert x.shape[1:] == (1, 28, 28)
        return self.logits.expand(len(x), 10)


@pytest.fixture
def copied(made, tmp_path):
    """The small set, to be measured and changed."""
    return shutil.copytree(made, tmp_path / "copied")


@pytest.fixture
def of_constant(copied, train_digits, test_digits):
    return measure_quality(copied, train_digits, test_digits, Constant(), "constant", recipe=adam(epochs=1, lr=0.0))


def test_a_network_that_knows_nothing_scores_as_chance_does(made, of_constant, test_digits):
    arrays, _ = read_arrays(made, "test")
    soft_labels = arrays["soft_labels"].astype(float)
    assert of_constant.auroc_clean == of_constant.auroc_redrawn == 0.5
    assert of_constant.accuracy_clean == pytest.approx((test_digits.labels == 1).mean())
    assert of_constant.accuracy_ambiguous == pytest.approx((arrays["labels"][:, 0] == 1).mean())
    assert of_constant.accuracy_ambiguous_best == pytest.approx(soft_labels.max(1).mean())
    readings = np.sort(soft_labels.argsort(1)[:, -2:], axis=1)
    assert of_constant.same_readings == pytest.approx((readings == [1, 7]).all(1).mean())
    # KL(p ‖ uniform) = log 10 - H[p]; the preference of 1e-3 is below the tolerance
    assert of_constant.divergence == pytest.approx(math.log(10) - stats.entropy(soft_labels, axis=1).mean(), abs=1e-3)


def test_the_histogram_counts_every_image_by_class_and_entropy(made, of_constant):
    edges = np.array(of_constant.entropy_edges)
    assert (edges[0], edges[-1]) == (0.3, 2.0)
    for split in ("train", "test"):
        soft_labels = read_arrays(made, split)[0]["soft_labels"].astype(float)
        expected, _, _ = np.histogram2d(
            soft_labels.argmax(1), stats.entropy(soft_labels, axis=1), [np.arange(11) - 0.5, edges]
        )
        np.testing.assert_array_equal(of_constant.entropy_histogram[split], expected)
    assert np.sum(entropy_histogram(made, "train", np.array([0.5, 1.0]))) == 150  # what lies outside is not lost


def test_the_shares_of_filter_results_sum_to_one(of_constant):
    for shares in of_constant.filter_results.values():
        assert set(shares) == {"kept", "plain", "muddled", "junk", "faint"}
        assert sum(shares.values()) == pytest.approx(1)


def test_what_was_measured_can_be_read_again(copied, of_constant):
    assert read_quality(copied) == of_constant
    content = json.loads((copied / "quality.json").read_text())
    assert content["key"] == read_manifest(copied)["key"]


def test_what_was_measured_of_another_set_is_not_taken_for_this_one(copied, of_constant):
    path = copied / "quality.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"key": "another"}))
    assert read_quality(copied) is None
    path.unlink()
    assert read_quality(copied) is None


def test_a_fresh_network_finds_ambiguous_images_ambiguous(copied, train_digits, test_digits):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    recipe, told = adam(epochs=24, batch_size=64, milestones=(18,)), []
    quality = measure_quality(
        copied,
        train_digits,
        test_digits,
        network,
        "perceptron",
        samples=1000,
        recipe=recipe,
        progress=lambda stage, done, note: told.append(stage),
    )
    assert (quality.network, quality.samples, quality.epochs) == ("perceptron", 1000, 24)
    assert quality.auroc_clean > 0.7
    assert quality.accuracy_clean > 0.8
    assert quality.same_readings > 0.3
    assert 0 < quality.divergence < 1
    assert list(dict.fromkeys(told)) == ["Train a fresh network", "Judge test images"]
