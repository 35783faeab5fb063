"""The claims of the paper's tables on made rows, once as the paper has them and once the other way round."""

from dataclasses import replace

import pytest

from ddu.errors import NotMeasuredError
from ddu.experiments.ood_tables import (
    ENSEMBLES,
    RIVALS,
    SCORES,
    ablation,
    judge_ablation,
    judge_corruptions,
    judge_imagenet,
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
    assert "against cifar100: density 90.00%, best rival (energy) 99.00%; asked: density ahead: no." in judgement.words


def test_a_rival_that_failed_and_an_ensemble_that_is_not_there_are_not_asked():
    assert judge_ood([row("softmax", 0.8, ood="svhn"), row("ddu_paper", 0.9, ood="svhn")]).verdict == "holds"


def imagenet_rows(residual: float, straight: float):
    return [
        row(name, value, network=network, data="imagenet", ood="imagenet_o")
        for network, density in (("resnet50", residual), ("vgg16", straight))
        for name, value in (("softmax", 0.5), ("ddu_paper", density), ("ensemble_pe", 0.51), ("ensemble_mi", 0.56))
    ]


@pytest.mark.parametrize(
    ("residual", "straight", "verdict", "refuted"),
    [
        (0.59, 0.52, "holds", "none"),
        (0.555, 0.52, "holds in part", "better score of the ensemble 56.00%; asked: density ahead"),
        (0.59, 0.58, "holds in part", "better score of the ensemble 56.00%; asked: density not ahead"),
    ],
)
def test_on_imagenet_the_density_beats_the_ensemble_but_for_vgg(residual, straight, verdict, refuted):
    judgement = judge_imagenet(imagenet_rows(residual, straight))
    assert judgement.verdict == verdict
    assert [words for words, part in judgement.parts.items() if not part and refuted not in words] == []


def test_what_decides_and_was_not_measured_is_named():
    with pytest.raises(NotMeasuredError, match="No row has auroc of detector=ddu_paper, ood=svhn"):
        judge_ood([row("softmax", 0.8, ood="svhn")])
    with pytest.raises(NotMeasuredError, match="No rival on resnet18 against svhn has an AUROC"):
        judge_ood([row("ddu_paper", 0.8, ood="svhn")])
    with pytest.raises(NotMeasuredError, match=r"one VGG-16 without spectral norm\. They have 0"):
        judge_ablation([one for one in ablation_rows() if one.network != "vgg16"])
    with pytest.raises(NotMeasuredError, match="No ensemble on svhn has an AUROC"):
        judge_ablation([one for one in ablation_rows() if one.detector not in ENSEMBLES])
    softmax = [one for one in corruption_rows((0.6, 0.9), (0.55, 0.8)) if one.detector == "softmax"]
    with pytest.raises(NotMeasuredError, match=r"one density on resnet18\. They have 0"):
        judge_corruptions(softmax)


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
        ({"residual": 0.85}, "holds in part", "asked: spectral norm adds, but less"),
        ({"residual": 0.96}, "holds in part", "Spectral norm adds -1.00% to the density of resnet"),
        ({"entropy": 0.97}, "holds in part", "entropy 97.00%"),
        ({"vgg": 0.99, "entropy": 0.97}, "does not hold", "asked: the first ahead"),
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


def test_another_rival_at_another_severity_is_enough_and_severities_have_their_numbers():
    weak = [
        row("sngp", value, ood=f"cifar10_c:{kind}", severity=severity, network="resnet18+sn")
        for severity, value in ((1, 0.2), (5, 0.95))
        for kind in ("fog", "snow")
    ]
    judgement = judge_corruptions([*corruption_rows((0.7, 0.9), (0.6, 0.8)), *weak])
    assert "On resnet18: severities at which a rival is ahead of the density: 5; asked: none: no." in judgement.words


def test_each_network_has_its_own_part():
    of_one = corruption_rows((0.6, 0.9), (0.55, 0.8))
    other = {"resnet18": "resnet50", "resnet18+sn": "resnet50+sn"}
    both = [*of_one, *(replace(one, network=other[one.network]) for one in of_one)]
    assert len(judge_corruptions(both).parts) == 2 * len(judge_corruptions(of_one).parts)


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
