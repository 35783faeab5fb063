"""The proposition about ensembles, on random members."""

import math

import pytest
import torch
from scipy.special import entr, softmax

from ddu.errors import InputError
from ddu.theory import compare_entropies


def random_logits(members: int = 5, pairs: int = 2000, classes: int = 3):
    generator = torch.Generator().manual_seed(0)
    scale = 10 ** torch.empty(pairs, 1).uniform_(-1, 1.5, generator=generator)
    shape = (members, pairs, classes)
    return tuple(scale * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))


def test_the_gaps_are_those_of_entropies_by_scipy():
    first, second = random_logits(pairs=3)
    order = compare_entropies(first, second)
    p, q = softmax(first.numpy(), axis=-1), softmax(second.numpy(), axis=-1)
    members_p, members_q = entr(p).sum(-1), entr(q).sum(-1)
    mean_p, mean_q = entr(p.mean(0)).sum(-1), entr(q.mean(0)).sum(-1)
    information = (mean_p - members_p.mean(0)) - (mean_q - members_q.mean(0))
    torch.testing.assert_close(order.information_gap, torch.from_numpy(information))
    torch.testing.assert_close(order.entropy_gap, torch.from_numpy(abs(mean_p - mean_q)))
    torch.testing.assert_close(order.guaranteed_drop, torch.from_numpy(information - abs(mean_p - mean_q)))
    torch.testing.assert_close(order.largest_drop, torch.from_numpy((members_q - members_p).max(0)))
    torch.testing.assert_close(order.share, torch.from_numpy((members_p < members_q).mean(0)))


def test_some_member_has_the_guaranteed_drop_and_so_many_have_a_lower_entropy():
    order = compare_entropies(*random_logits())
    assert (order.guaranteed_drop > 0).float().mean() > 0.1
    assert (order.largest_drop >= order.guaranteed_drop - 1e-12).all()
    assert (order.share >= order.guaranteed_share - 1e-12).all()


def test_both_bounds_are_reached():
    # All members are sure of the first input and disagree; all of them are ignorant of the second
    first = 100 * torch.eye(3, dtype=torch.float64)[:, None]
    order = compare_entropies(first, torch.zeros_like(first))
    assert float(order.guaranteed_drop) == pytest.approx(math.log(3))
    assert float(order.largest_drop) == pytest.approx(math.log(3))
    assert float(order.share) == 1
    assert float(order.guaranteed_share) == pytest.approx(1)


def test_nothing_is_implied_where_predictive_entropies_are_further_apart():
    # The members disagree on the first input, and every one of them has a higher entropy there
    first, second = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), torch.tensor([[[9.0, 0.0]], [[9.0, 0.0]]])
    order = compare_entropies(first, second)
    assert float(order.information_gap) > 0
    assert float(order.guaranteed_drop) < 0
    assert float(order.share) == 0
    assert float(order.guaranteed_share) == 0


@pytest.mark.parametrize("shapes", [((5, 2), (4, 2)), ((5, 1), (5, 1)), ((2,), (2,))])
def test_shapes_that_do_not_fit_are_refused(shapes):
    with pytest.raises(InputError, match=r"^Both inputs need logits"):
        compare_entropies(*map(torch.zeros, shapes))
