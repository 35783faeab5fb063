"""The energy score."""

import numpy as np
import scipy.special
import torch
from torch import nn

from ddu.detectors import Energy
from ddu.testing import check_detector


def test_it_keeps_to_the_contract():
    check_detector(Energy, distance_aware=False)


def test_the_score_is_minus_the_log_of_the_sum_of_exponentials():
    logits = 50 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    expected = -scipy.special.logsumexp(logits.double().numpy(), axis=1)
    np.testing.assert_allclose(Energy(nn.Identity()).predict(logits).epistemic, expected, rtol=1e-6)
