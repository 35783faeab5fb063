"""Filters, strata and drawn labels."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ddu.data.dirty_mnist_format import numbers
from ddu.dirty_mnist import FilterResult, Filters, Stratification
from ddu.dirty_mnist.labellers import Labelled
from ddu.dirty_mnist.selection import allocate, draw_labels, judge, stratified
from ddu.errors import InputError

FILTERS = Filters(min_entropy=0.3, max_entropy=1.0, max_mutual_information=0.05, min_second=0.2, min_ink=0.5)


def result_of(probs=(0.7, 0.3, 0.0), information=0.01, ink=1.0) -> FilterResult:
    probs = torch.tensor([probs]).double()
    labels = Labelled(probs, torch.special.entr(probs).sum(1), torch.tensor([information]))
    image = torch.zeros(1, 784)
    image[:, :40] = ink
    return FilterResult(judge(labels, image, FILTERS)[0])


@pytest.mark.parametrize(
    ("mixture", "expected"),
    [
        ({}, FilterResult.KEPT),
        ({"probs": (0.95, 0.05, 0.0)}, FilterResult.PLAIN),
        ({"probs": (0.81, 0.10, 0.09)}, FilterResult.PLAIN),  # entropy 0.62, but no second reading
        ({"probs": (0.4, 0.3, 0.3)}, FilterResult.MUDDLED),
        ({"information": 0.06}, FilterResult.JUNK),
        ({"ink": 0.4}, FilterResult.FAINT),
        ({"information": 0.06, "ink": 0.4}, FilterResult.JUNK),  # the first reason counts
    ],
)
def test_a_mixture_is_rejected_for_the_first_reason_that_applies(mixture, expected):
    assert result_of(**mixture) is expected


def test_a_mixture_on_the_limits_is_kept():
    probs = torch.tensor([[0.8, 0.2, 0.0]], dtype=torch.float64)
    entropy = torch.special.entr(probs).sum(1)
    limits = Filters(entropy.item(), entropy.item(), 0.05, min_second=0.2, min_ink=0.5)
    labels = Labelled(probs, entropy, torch.tensor([0.05], dtype=torch.float64))
    assert judge(labels, torch.full((1, 784), 0.5), limits).tolist() == [FilterResult.KEPT]


@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=60), st.floats(0, 1), st.sampled_from([0.0, 0.2, 0.5, 1.0])
)
def test_an_allocation_is_exact_and_takes_no_more_than_there_is(counts, share, exponent):
    available = np.array(counts)
    wanted = int(share * available.sum())
    taken = allocate(available, wanted, exponent)
    assert taken.sum() == wanted
    assert (taken >= 0).all()
    assert (taken <= available).all()
    # Where there is enough, shares are in proportion to n^exponent, to within the rounding
    free = (taken < available) & (taken > 1)
    rate = taken[free] / available[free] ** exponent
    slack = 1 / available[free] ** exponent
    if free.sum() > 1:
        assert (rate - slack).max() <= (rate + slack).min() + 1e-9


def test_exponent_one_is_proportional_and_zero_is_even():
    available = np.array([1000, 4000, 5000])
    assert allocate(available, 100, 1.0).tolist() == [10, 40, 50]
    assert allocate(available, 99, 0.0).tolist() == [33, 33, 33]


def test_asking_for_more_than_passed_the_filters_is_refused():
    with pytest.raises(InputError) as error:
        allocate(np.array([3, 4]), 8, 0.2)
    assert str(error.value) == "8 images are wanted and only 7 mixtures passed the filters."


def candidates(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Soft labels of which low entropies and class 0 are the most frequent."""
    random = np.random.default_rng(0)
    second = 0.1 + 0.4 * random.random(count) ** 3
    label = (random.random(count) ** 2 * 4).astype(int)
    probs = np.zeros((count, 5))
    probs[np.arange(count), label] = 1 - second
    probs[np.arange(count), 4] = second
    return probs, np.asarray(stats.entropy(probs, axis=1))


def test_strata_are_flattened_and_counts_are_as_allocated():
    probs, entropies = candidates(30_000)
    filters = Filters(min_entropy=0.3, max_entropy=0.7, max_mutual_information=1)
    strata = Stratification(images=800, bins=8, exponent=0.2)
    rows = stratified(probs, entropies, filters, strata, numbers(0))
    assert len(set(rows)) == 800

    edges = np.linspace(0.3, 0.7, 9)
    everything = np.histogram2d(probs.argmax(1), entropies, [np.arange(6) - 0.5, edges])[0].astype(int)
    chosen = np.histogram2d(probs[rows].argmax(1), entropies[rows], [np.arange(6) - 0.5, edges])[0].astype(int)
    np.testing.assert_array_equal(chosen.ravel(), allocate(everything.ravel(), 800, 0.2))
    assert everything[:4].max() / everything[:4].min() > 10
    assert chosen[:4].max() / chosen[:4].min() < 2


def test_within_a_stratum_every_candidate_is_as_likely():
    probs, entropies = np.tile([[0.6, 0.4]], (20, 1)), np.full(20, 0.67)
    filters = Filters(min_entropy=0.3, max_entropy=0.7, max_mutual_information=1)
    strata = Stratification(images=5, bins=4)
    random = numbers(1)
    counts = np.bincount(
        np.concatenate([stratified(probs, entropies, filters, strata, random) for _ in range(800)]), minlength=20
    )
    assert stats.chisquare(counts).pvalue > 1e-3


def test_drawn_labels_follow_the_soft_labels():
    probs = np.array([[0.7, 0.3, 0.0], [0.2, 0.5, 0.3], [0.0, 0.0, 1.0]], dtype=np.float32)
    labels = draw_labels(probs, 20_000, numbers(0))
    assert labels.shape == (3, 20_000)
    counts = [np.bincount(row, minlength=3) for row in labels]
    assert stats.chisquare(counts[0][:2], [14_000, 6_000]).pvalue > 1e-3
    assert stats.chisquare(counts[1], [4_000, 10_000, 6_000]).pvalue > 1e-3
    assert counts[0][2] == 0
    assert counts[2].tolist() == [0, 0, 20_000]
