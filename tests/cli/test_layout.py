"""How commands show results."""

import io

import pytest
from rich.console import Console

from ddu.cli._layout import print_results
from ddu.results import Row, tabulate

SETS = ("svhn", "cifar100", "tiny_imagenet", "lsun")


def printed(width: int) -> list[str]:
    rows = [
        Row(
            detector=detector,
            network="wide_resnet28_10+sn",
            data="cifar10",
            seed=0,
            run="12ab",
            ood=ood,
            metric="auroc",
            value=0.9,
        )
        for detector in ("ddu", "relative_mahalanobis")
        for ood in SETS
    ]
    console = Console(width=width, file=io.StringIO())
    (table,) = tabulate(rows)
    print_results(console, table)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "parts"), [(60, 4), (80, 2), (200, 1)])
def test_a_table_too_wide_for_the_screen_comes_in_parts_with_nothing_cut_off(width, parts):
    lines = printed(width)
    assert all(len(line.rstrip()) <= width for line in lines)
    assert sum("relative_mahalanobis" in line for line in lines) == parts
    assert sum(line.count("wide_resnet28_10+sn") for line in lines) == 2 * parts
    assert [word for line in lines for word in line.split() if word in SETS] == list(SETS)
    assert sum(line.count("90.00") for line in lines) == 8
    assert sum("Bold: the best." in line for line in lines) == 1
