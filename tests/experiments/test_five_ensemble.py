"""Five networks in one dimension."""

import math

import pytest
import torch

from ddu.experiments.five_ensemble import METRIC, REGIONS, FiveEnsemble, judge, summarise_members
from ddu.results import Row


def test_measures_of_members_that_are_sure_and_disagree():
    logits = torch.tensor([[[40.0, 0.0]], [[0.0, 40.0]]], dtype=torch.float64)
    found = {name: (count, float(value)) for name, (count, value) in summarise_members(logits).items()}
    assert found["softmax entropy, highest"] == (1, pytest.approx(0, abs=1e-12))
    assert found["predictive entropy"] == (2, pytest.approx(math.log(2)))
    assert found["mutual information"] == (2, pytest.approx(math.log(2)))


def test_the_lowest_and_the_highest_member_enclose_the_mean():
    logits = torch.randn(5, 100, 2, generator=torch.Generator().manual_seed(0)).double()
    low, mean, high = (
        summarise_members(logits)[f"softmax entropy, {which}"][1] for which in ("lowest", "mean", "highest")
    )
    assert (low < mean).all()
    assert (mean < high).all()


def made_rows(**changes: float) -> list[Row]:
    """Means as the paper would have them, by measure and region."""
    values = {
        ("softmax entropy, lowest", "ambiguous"): 0.45,
        ("softmax entropy, lowest", "gap"): 0.01,
        ("softmax entropy, highest", "gap"): 0.6,
        ("predictive entropy", "gap"): 0.5,
        ("predictive entropy", "ambiguous"): 0.5,
        ("predictive entropy", "clear"): 0.02,
        ("mutual information", "gap"): 0.3,
        ("mutual information", "ambiguous"): 0.01,
    } | {tuple(name.replace("_", " ").split(" in ")): value for name, value in changes.items()}
    facts = {"network": "fc_net4_128", "data": "one_d", "seed": 0, "run": "12ab", "metric": METRIC}
    return [Row(detector=name, ood=region, value=value, **facts) for (name, region), value in values.items()]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "holds"),
        ({"mutual_information_in_ambiguous": 0.2}, "holds in part"),
        ({"predictive_entropy_in_clear": 0.2}, "holds in part"),
        ({"predictive_entropy_in_ambiguous": 0.03}, "holds in part"),
    ],
)
def test_each_part_of_the_claim_counts(changes, verdict):
    assert judge(made_rows(**changes)).verdict == verdict


def test_an_answer_says_what_was_measured_and_what_is_asked():
    words, *_ = judge(made_rows(**{"softmax_entropy,_lowest_in_ambiguous": 0.309})).parts
    assert words == (
        "Lowest entropy of a member where labels are ambiguous 0.309 nats (0.5 by the odds of the labels); asked: "
        "above 0.35"
    )


def test_the_regions_are_those_of_the_paper():
    assert REGIONS == {"gap": ((0, 2),), "ambiguous": ((3.5, 4.5),), "clear": ((2, 3.5), (4.5, 6))}


def test_members_have_seeds_of_their_own_and_share_everything_else():
    experiment = FiveEnsemble()
    (work,) = experiment.work()
    assert (work.networks, work.samples, work.spec.label) == (5, 1000, "fc_net4_128")
