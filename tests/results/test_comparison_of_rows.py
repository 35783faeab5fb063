"""From features to a table: a small comparison on real digits, killed in the middle and taken up again."""

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor

from ddu import GaussianDensity
from ddu.measures import energy, entropy
from ddu.results import Row, RowFile, classification_metrics, latest, ood_metrics, tabulate

KNOWN = 7  # digits below are trained on; the others are out of distribution
OOD_METRICS = list(ood_metrics(torch.zeros(1), torch.ones(1)))
CLASSIFICATION_METRICS = list(classification_metrics(torch.eye(2), torch.arange(2)))


def scores(detector: str, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Uncertainties in and out of distribution, logits and labels of held-out digits."""
    images, digits = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    images, digits = images[order] / 16, digits[order]
    known = digits < KNOWN
    x, y, unknown = images[known], digits[known], images[~known]
    train, test = slice(0, 800), slice(800, None)
    classifier = LogisticRegression(max_iter=200).fit(x[train].numpy(), y[train].numpy())

    def logits(inputs: Tensor) -> Tensor:
        return torch.from_numpy(classifier.decision_function(inputs.numpy()))

    if detector == "density":
        density = GaussianDensity().fit(x[train], y[train])
        return -density.log_density(x[test]), -density.log_density(unknown), logits(x[test]), y[test]
    score = {"softmax": entropy, "energy": energy}[detector]
    return score(logits(x[test])), score(logits(unknown)), logits(x[test]), y[test]


def measure(run: dict, detector: str, seed: int) -> list[Row]:
    known, unknown, logits, labels = scores(detector, seed)
    found, in_distribution = ood_metrics(known, unknown), classification_metrics(logits, labels)
    return [Row(**run, ood="other_digits", metric=name, value=value) for name, value in found.items()] + [
        Row(**run, metric=name, value=value) for name, value in in_distribution.items()
    ]


def compare(file: RowFile, detectors: list[str], seeds: range, *, runs: int | None = None) -> int:
    """Measures what is missing, and stops after so many runs as if killed; returns how many runs were made."""
    made = 0
    for seed in seeds:
        for detector in detectors:
            run = {"detector": detector, "network": "linear", "data": "digits", "seed": seed, "run": "12ab"}
            wanted = {Row(**run, ood="other_digits", metric=metric, value=0).key for metric in OOD_METRICS}
            wanted |= {Row(**run, metric=metric, value=0).key for metric in CLASSIFICATION_METRICS}
            if file.done(wanted) == wanted:
                continue
            if made == runs:
                return made
            file.append(measure(run, detector, seed))
            made += 1
    return made


def test_a_killed_comparison_continues_where_it_was_and_ends_in_the_same_rows(tmp_path):
    detectors, seeds = ["density", "softmax", "energy"], range(2)
    straight, killed = RowFile(tmp_path / "straight.csv"), RowFile(tmp_path / "killed.csv")
    assert compare(straight, detectors, seeds) == 6
    assert compare(killed, detectors, seeds, runs=2) == 2
    # As if killed while the last row of the second run was being written: that run is made again
    killed.path.write_bytes(killed.path.read_bytes()[:-10])
    with pytest.warns(match="unfinished line"):
        assert compare(killed, detectors, seeds) == 5
    assert compare(killed, detectors, seeds) == 0
    assert latest(killed.read()) == straight.read()

    (table,) = tabulate(straight.read(), metrics=["accuracy", "auroc"])
    column = [column.metric for column in table.columns].index("auroc")
    found = {line.detector: cells[column] for line, cells in zip(table.lines, table.cells, strict=True)}
    for detector in detectors:
        expected = []
        for seed in seeds:
            known, unknown, *_ = scores(detector, seed)
            truth = [0] * len(known) + [1] * len(unknown)
            expected.append(roc_auc_score(truth, torch.cat([known, unknown]).numpy()))
        value = found[detector].value
        assert value is not None
        assert value.mean == pytest.approx(sum(expected) / 2, abs=1e-12)
        assert value.standard_error == pytest.approx(abs(expected[0] - expected[1]) / 2, abs=1e-12)
    # On raw pixels the density knows the other digits; a linear classifier does not
    assert found["density"].best
