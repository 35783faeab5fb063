"""The claim about feature collapse on made rows."""

import pytest

from ddu.experiments.feature_collapse import HIGH, LOW, SMALL, judge

from .rows import row

NETWORKS = ("vgg16", "vgg16+sn", "resnet18", "resnet18+sn")


def rows(auroc=(0.8, 0.85, 0.97, 0.995), low=(0.1, 0.1, 0.5, 0.6), high=(5.0, 4.0, 3.0, 2.0)):
    return [
        row("ddu_paper", value, metric, network=network, ood=ood)
        for metric, values in (("auroc", auroc), (LOW, low), (HIGH, high))
        for network, value in zip(NETWORKS, values, strict=True)
        for ood in ("noisy:fashion_mnist", SMALL)
    ]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "holds"),
        ({"auroc": (0.8, 0.85, 0.999, 0.995)}, "holds in part"),
        ({"low": (0.7, 0.1, 0.5, 0.6)}, "holds in part"),
        ({"high": (5.0, 4.0, 1.0, 2.0)}, "holds in part"),
        (
            {"auroc": (0.99, 0.9, 0.9, 0.9), "low": (0.7, 0.7, 0.5, 0.1), "high": (1.0, 1.0, 1.0, 2.0)},
            "does not hold",
        ),
    ],
)
def test_the_regularised_network_must_have_the_best_density_and_treat_distances_alike(changes, verdict):
    assert judge(rows(**changes)).verdict == verdict
