"""The claim of Figure 1 on made rows."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ddu.experiments.dirty_mnist import AMBIGUOUS, FIGURE, draw, judge
from ddu.experiments.measure import SCORES
from ddu.experiments.reproductions import REPRODUCTIONS
from ddu.experiments.scores import Judged, Scores, scores_folder
from ddu.experiments.seeds import ARRAYS
from ddu.files import write_arrays
from ddu.results import RowFile

from .rows import row


def rows(density: float, lenet: float = 0.7, entropy: float = 0.85, doubt: float = 0.95, confused: float = 0.6):
    made = []
    for network, value in (("lenet", lenet), ("resnet18+sn", density)):
        for ood in ("fashion_mnist", "noisy:fashion_mnist"):
            # Without noise everything would be found by noise: it must not count
            shown = value if ood.startswith("noisy") else 1.0
            made += [
                row("ddu_paper", shown, network=network, ood=ood),
                row("softmax", entropy, network=network, ood=ood),
            ]
        made += [
            row("softmax", doubt, "auroc_ambiguous", network=network),
            row("ddu_paper", confused, "auroc_ambiguous", network=network),
        ]
    return made


def test_it_holds_as_the_paper_has_it():
    assert judge(rows(0.999)).verdict == "holds"


def test_the_set_with_noise_decides_in_any_order():
    assert judge(sorted(rows(0.95), key=lambda one: one.ood or "", reverse=True)).verdict == "holds in part"


@pytest.mark.parametrize("with_scores", [["lenet"], ["lenet", "resnet18+sn"]])
def test_the_figure_is_drawn_anew_only_with_the_scores_of_every_network(tmp_path, with_scores):
    experiment: Any = REPRODUCTIONS["dirty-mnist"].experiment("smoke", 1)
    contenders = [one for one in experiment.detectors if one.name == "ddu_paper"][:2]
    facts = {"data": experiment.data, "ood": experiment.ood[-1]}
    made = [row("ddu_paper", 0.9, network=experiment.label(one), **facts) for one in contenders]
    RowFile(tmp_path / "rows.csv").append(made)
    (tmp_path / FIGURE).write_bytes(b"the figure of all networks")
    write_arrays(tmp_path / ARRAYS, {AMBIGUOUS: np.arange(20) >= 10})
    for one in made[: len(with_scores)]:
        judged = Judged(torch.rand(20), torch.rand(20))
        scores = Scores(torch.rand(20, 10), torch.zeros(20), 1.0, 0.5, judged, {facts["ood"]: judged})
        scores.save(scores_folder(tmp_path / SCORES, one))
        scores.save(scores_folder(tmp_path / SCORES, one), facts["ood"])
    assert experiment.write_page(tmp_path) == [tmp_path / FIGURE]
    drawn = (tmp_path / FIGURE).read_bytes() != b"the figure of all networks"
    assert drawn == (len(with_scores) == len(made))


def test_one_digit_that_lies_far_out_does_not_set_the_scale_of_the_figure():
    random = torch.Generator().manual_seed(0)
    near, far = torch.randn(1000, generator=random), 20 + torch.randn(1000, generator=random)
    near[0] = 1e8
    known, unknown = (SimpleNamespace(aleatoric=one.abs(), epistemic=one) for one in (near, far))
    scores: Any = {"lenet": SimpleNamespace(test=known, ood={"noisy:fashion_mnist": unknown})}
    _, below = draw(scores, np.arange(1000) >= 500, "noisy:fashion_mnist").axes
    low, high = below.get_xlim()
    assert -10 < low < high < 30
    assert below.get_xlabel() == "− log density"


@pytest.mark.parametrize(
    ("changes", "refuted"),
    [
        ({"density": 0.95}, "at least 99 %"),
        ({"density": 0.999, "lenet": 0.98}, "all lower by at least five per cent"),
        ({"density": 0.999, "entropy": 0.97}, "all below 95 %"),
        ({"density": 0.999, "doubt": 0.8}, "all at least 90 %"),
        ({"density": 0.999, "confused": 0.9}, "at most half as far from chance"),
    ],
)
def test_each_part_can_be_refuted_alone(changes, refuted):
    judgement = judge(rows(**changes))
    assert judgement.verdict == "holds in part"
    (no,) = [words for words, part in judgement.parts.items() if not part]
    assert refuted in no
