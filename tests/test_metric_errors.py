"""Standard errors against formulas written out, the plain bootstrap and repeated samples."""

import numpy as np
import pytest
import torch

from ddu.errors import InputError
from ddu.metrics import auroc, auroc_standard_error, fpr_at_tpr, fpr_standard_error


def _scores(n: int, m: int, *, ties: bool = False, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    negative, positive = torch.randn(n, generator=generator), 1 + torch.randn(m, generator=generator)
    return (negative.round(), positive.round()) if ties else (negative, positive)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("n", "m"), [(40, 60), (2, 30), (100, 3)])
def test_delongs_error_equals_the_formula_of_all_pairs(n, m, ties):
    negative, positive = (scores.double().numpy() for scores in _scores(n, m, ties=ties))
    right = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    expected = np.sqrt(right.mean(1).var(ddof=1) / m + right.mean(0).var(ddof=1) / n)
    assert auroc_standard_error(torch.from_numpy(negative), torch.from_numpy(positive)) == pytest.approx(expected)


def test_delongs_error_is_the_spread_of_the_auroc_over_samples():
    values = [auroc(*_scores(100, 150, seed=seed)) for seed in range(1000)]
    # The spread of 1,000 values is known to 1 / sqrt(2000) = 2.2 %, and one estimate of the error to a few per cent
    error = np.mean([auroc_standard_error(*_scores(100, 150, seed=seed)) for seed in range(20)])
    assert error == pytest.approx(np.std(values), rel=0.1)


@pytest.mark.parametrize("ties", [False, True])
def test_the_error_of_the_fpr_equals_that_of_the_plain_bootstrap(ties):
    negative, positive = _scores(200, 300, ties=ties)
    generator = torch.Generator().manual_seed(1)

    def again(scores: torch.Tensor) -> torch.Tensor:
        return scores[torch.randint(len(scores), (len(scores),), generator=generator)]

    values = [fpr_at_tpr(again(negative), again(positive)) for _ in range(2000)]
    assert fpr_standard_error(negative, positive) == pytest.approx(np.std(values), rel=0.08)  # known to about 2 %


def test_kinds_that_are_apart_have_no_error():
    negative, positive = torch.arange(50.0), 100 + torch.arange(50.0)
    assert auroc_standard_error(negative, positive) == 0
    assert fpr_standard_error(negative, positive) == 0


def test_the_errors_leave_the_random_state_alone():
    before = torch.random.get_rng_state()
    fpr_standard_error(*_scores(10, 10))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_kind_without_scores_is_refused():
    with pytest.raises(InputError, match=r"AUROC needs scores of both kinds\. Got 0 negative and 3 positive\."):
        auroc_standard_error(torch.zeros(0), torch.zeros(3))
