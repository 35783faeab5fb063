"""The claims of the paper's tables on made rows, once as the paper has them and once the other way round."""

import pytest

from ddu.experiments.ood_tables import (
    ENSEMBLES,
    RIVALS,
    SCORES,
    ablation,
    judge_ablation,
    judge_corruptions,
    judge_ood,
    rivals,
)
from ddu.training import RECIPES

from .rows import row

QUICK = RECIPES["quick"]


def ood_rows(density: float, rival: float = 0.9, ensemble: float = 0.95, **facts):
    others = dict.fromkeys(RIVALS, rival) | dict.fromkeys(ENSEMBLES, ensemble)
    smooth = {"network": "resnet18+sn", "ood": "svhn", **facts}
    rows = [row(name, value, **{"ood": "svhn", **facts}) for name, value in others.items() if name != "sngp"]
    return [*rows, row("sngp", rival, **smooth), row("ddu_paper", density, **smooth)]


@pytest.mark.parametrize(
    ("density", "verdict"), [(0.96, "holds"), (0.945, "holds"), (0.92, "holds in part"), (0.85, "does not hold")]
)
def test_the_density_must_beat_every_single_network_and_keep_up_with_the_ensemble(density, verdict):
    assert judge_ood(ood_rows(density)).verdict == verdict


def test_one_strong_rival_is_enough_to_refute_the_table():
    rows = [*ood_rows(0.96), row("energy", 0.99, ood="cifar100"), row("ddu_paper", 0.9, ood="cifar100")]
    judgement = judge_ood(rows)
    assert judgement.verdict == "holds in part"
    assert "against cifar100 the density (90.00%) is ahead of the best rival, energy (99.00%): no." in judgement.words


def test_a_rival_that_failed_and_an_ensemble_that_is_not_there_are_not_asked():
    assert judge_ood([row("softmax", 0.8, ood="svhn"), row("ddu_paper", 0.9, ood="svhn")]).verdict == "holds"


def ablation_rows(vgg: float = 0.8, residual: float = 0.93, full: float = 0.95, entropy: float = 0.9):
    values = {"vgg16": vgg, "vgg16+sn": vgg, "resnet18": residual, "resnet18+sn": full}
    rows = [row("ddu_paper", value, network=name, ood="svhn") for name, value in values.items()]
    rows += [row(score, 0.88, network="vgg16", ood="svhn", members=3) for score in ENSEMBLES]
    return [*rows, *(row(score, entropy, network="resnet18+sn", ood="svhn") for score in ("softmax", "energy"))]


@pytest.mark.parametrize(
    ("changes", "verdict", "refuted"),
    [
        ({}, "holds", None),
        ({"vgg": 0.9}, "holds in part", "ahead of its ensemble"),
        ({"residual": 0.85}, "holds in part", "less than residual connections"),
        ({"residual": 0.96}, "holds in part", "Spectral norm adds"),
        ({"entropy": 0.97}, "holds in part", "the entropy (97.00%)"),
        ({"vgg": 0.99, "entropy": 0.97}, "does not hold", "ahead of that of vgg16"),
    ],
)
def test_the_ablation_needs_residual_connections_first_and_spectral_norm_second(changes, verdict, refuted):
    judgement = judge_ablation(ablation_rows(**changes))
    assert judgement.verdict == verdict
    no = [part for part in judgement.words.split(". ") if part.rstrip(".").endswith(": no")]
    assert (not no) if refuted is None else any(refuted in part for part in no)


def corruption_rows(density: tuple[float, float], softmax: tuple[float, float]):
    return [
        row(name, value + shift, ood=f"cifar10_c:{kind}", severity=severity, network=network)
        for name, network, values in (("ddu_paper", "resnet18+sn", density), ("softmax", "resnet18", softmax))
        for severity, value in zip((1, 5), values, strict=True)
        for kind, shift in (("fog", -0.01), ("snow", 0.01))
    ]


@pytest.mark.parametrize(
    ("density", "softmax", "verdict"),
    [
        ((0.6, 0.9), (0.55, 0.8), "holds"),
        ((0.6, 0.9), (0.65, 0.7), "holds in part"),
        ((0.6, 0.5), (0.65, 0.7), "does not hold"),
    ],
)
def test_corruptions_are_judged_by_their_mean_at_each_severity(density, softmax, verdict):
    assert judge_corruptions(corruption_rows(density, softmax)).verdict == verdict


def test_each_score_stands_on_the_network_that_it_wants():
    made = rivals(["resnet18"], {"softmax": QUICK, "ddu": QUICK, "sngp": QUICK}, members=3)
    assert [one.name for one in made["detectors"]] == [name for name in SCORES if name != "duq"]
    assert set(made["networks"]) == {"resnet18-softmax", "resnet18-ddu", "resnet18-sngp"}
    assert {one.name: one.members for one in made["detectors"] if one.members > 1} == dict.fromkeys(ENSEMBLES, 3)


def test_an_ablation_has_all_scores_on_all_networks_and_ensembles_of_plain_ones():
    made = ablation(["vgg16", "resnet18"], QUICK, members=2)
    assert len(made["networks"]) == 4
    assert len(made["detectors"]) == 4 * 4 + 2 * 2
    assert {one.network for one in made["detectors"] if one.members == 2} == {"vgg16-softmax", "resnet18-softmax"}
