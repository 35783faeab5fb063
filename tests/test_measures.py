"""Measures of uncertainty against scipy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import logsumexp, softmax
from scipy.stats import entropy as scipy_entropy

from ddu.measures import (
    distance_ratios,
    energy,
    entropy,
    expected_entropy,
    log_mean_softmax,
    mutual_information,
    one_minus_confidence,
    predictive_entropy,
)

MEMBERS = arrays(
    np.float64, st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6)), elements=st.floats(-50, 50)
)
LOGITS = arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.floats(-50, 50))


@given(logits=LOGITS)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_measures_equal_scipys(logits: np.ndarray) -> None:
    tensor = torch.from_numpy(logits)
    probs = softmax(logits, axis=1)
    np.testing.assert_allclose(entropy(tensor), scipy_entropy(probs, axis=1), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(one_minus_confidence(tensor), 1 - probs.max(1), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(energy(tensor), -logsumexp(logits, axis=1), rtol=1e-9, atol=1e-12)


@given(logits=LOGITS, shift=st.floats(-100, 100))
@settings(derandomize=True, deadline=None, max_examples=30)
def test_a_shift_of_all_logits_moves_the_energy_alone(logits: np.ndarray, shift: float) -> None:
    tensor = torch.from_numpy(logits)
    torch.testing.assert_close(entropy(tensor + shift), entropy(tensor), rtol=1e-7, atol=1e-11)
    torch.testing.assert_close(
        one_minus_confidence(tensor + shift), one_minus_confidence(tensor), rtol=1e-7, atol=1e-11
    )
    torch.testing.assert_close(energy(tensor + shift), energy(tensor) - shift, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e4, 1e30])
def test_measures_of_extreme_logits_are_finite(scale: float) -> None:
    logits = scale * torch.tensor([[1.0, -1.0, 0.5], [-1.0, -1.0, -1.0]])
    for measure in (entropy, one_minus_confidence, energy):
        assert torch.isfinite(measure(logits)).all()
    assert entropy(logits)[1] == pytest.approx(np.log(3))
    assert entropy(logits)[0] <= entropy(logits)[1]


def test_impossible_classes_add_no_entropy() -> None:
    logits = torch.tensor([0.0, 0.0, -torch.inf])
    assert entropy(logits) == pytest.approx(np.log(2))


def test_measures_reduce_the_last_dimension() -> None:
    logits = torch.zeros(2, 3, 5)
    for measure in (entropy, one_minus_confidence, energy):
        assert measure(logits).shape == (2, 3)


@given(logits=MEMBERS)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_measures_of_several_members_equal_scipys(logits: np.ndarray) -> None:
    tensor = torch.from_numpy(logits)
    probs = softmax(logits, axis=-1)
    mean = probs.mean(0)
    np.testing.assert_allclose(log_mean_softmax(tensor).exp(), mean, rtol=1e-7, atol=1e-30)
    np.testing.assert_allclose(predictive_entropy(tensor), scipy_entropy(mean, axis=-1), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(expected_entropy(tensor), scipy_entropy(probs, axis=-1).mean(0), rtol=1e-7, atol=1e-12)
    divergence = scipy_entropy(probs, np.broadcast_to(mean, probs.shape), axis=-1).mean(0)
    np.testing.assert_allclose(mutual_information(tensor), divergence, rtol=1e-7, atol=1e-12)


@given(logits=MEMBERS)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_members_disagree_on_no_more_than_who_they_are(logits: np.ndarray) -> None:
    information = mutual_information(torch.from_numpy(logits))
    assert (information >= -1e-14).all()
    assert (information <= np.log(len(logits)) + 1e-12).all()


def test_classes_that_no_member_allows_add_nothing() -> None:
    logits = torch.tensor([[3.0, 0.0, -torch.inf], [0.0, 3.0, -torch.inf]])
    assert mutual_information(logits) == mutual_information(logits[:, :2])


def test_distance_ratios_of_a_linear_map_lie_between_its_singular_values():
    generator = torch.Generator().manual_seed(0)
    weight, x, other = (torch.randn(*shape, generator=generator) for shape in ((5, 4), (1000, 4), (1000, 4)))
    ratios = distance_ratios(x, other, x @ weight.T, other @ weight.T)
    values = torch.linalg.svdvals(weight)
    assert values[-1] <= ratios.min() < ratios.max() <= values[0] * (1 + 1e-6)
    assert ratios.max() > 0.9 * values[0]  # a thousand pairs come near to the largest


def test_distance_ratios_do_not_depend_on_the_shape_of_inputs():
    x, other = torch.rand(3, 2, 4, 4), torch.rand(3, 2, 4, 4)
    expected = distance_ratios(x.flatten(1), other.flatten(1), x.flatten(1), other.flatten(1))
    torch.testing.assert_close(distance_ratios(x, other, x, other), expected)
    torch.testing.assert_close(expected, torch.ones(3))
