"""Softmax entropy and confidence."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from torch import nn

from ddu.detectors import Softmax
from ddu.errors import InputError
from ddu.testing import check_detector


class Logits(nn.Module):
    """A model whose inputs are its logits: no layer to find features at."""

    def forward(self, x):
        return x


LOGITS = 5 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("score", ["entropy", "confidence"])
def test_it_keeps_to_the_contract(score):
    check_detector(lambda model: Softmax(model, score=score), distance_aware=False)


def test_entropy_and_confidence_are_those_of_the_softmax():
    probs = scipy.special.softmax(LOGITS.double().numpy(), axis=1)
    entropy, confidence = (Softmax(Logits(), score=s).predict(LOGITS) for s in ("entropy", "confidence"))
    np.testing.assert_allclose(entropy.epistemic, scipy.stats.entropy(probs, axis=1), rtol=1e-6)
    np.testing.assert_allclose(confidence.epistemic, 1 - probs.max(1), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(entropy.probs, probs, rtol=1e-4)


def test_the_temperature_leaves_the_score_alone():
    labels = torch.softmax(LOGITS / 3, 1).multinomial(1, generator=torch.Generator().manual_seed(0)).squeeze(1)
    plain = Softmax(Logits())
    calibrated = Softmax(Logits()).calibrate([(LOGITS, labels)], false_alarm_rate=0.1)
    assert calibrated.temperature > 1.5
    assert torch.equal(calibrated.predict(LOGITS).epistemic, plain.predict(LOGITS).epistemic)


@pytest.mark.parametrize("score", ["entropy", "confidence"])
def test_very_sure_predictions_still_have_an_order(score):
    """Where single precision has 1 for the largest probability."""
    logits = torch.tensor([[20.0, 0.0], [24.0, 0.0], [30.0, 0.0]])
    a, b, c = Softmax(Logits(), score=score).predict(logits).epistemic
    assert a > b > c > 0


def test_an_unknown_score_is_refused():
    with pytest.raises(InputError) as caught:
        Softmax(Logits(), score="margin")
    assert (
        str(caught.value) == "The 'score' parameter of Softmax must be 'entropy' or 'confidence'. Got 'margin' instead."
    )
