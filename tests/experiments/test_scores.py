"""Scores: all that metrics and figures are made from."""

import pytest
import torch

from ddu.experiments import Judged, Scores
from ddu.experiments.scores import IN_DISTRIBUTION_METRICS, OOD_METRICS
from ddu.metrics import auroc, risk_coverage


@pytest.fixture
def scores():
    generator = torch.Generator().manual_seed(0)

    def judged(count, shift):
        epistemic = torch.randn(count, generator=generator) + shift
        return Judged(epistemic, torch.rand(count, generator=generator))

    logits = torch.randn(200, 3, generator=generator)
    labels = torch.where(torch.arange(200) % 4 == 0, 0, logits.argmax(1))
    return Scores(logits, labels, 2.0, 1.5, judged(200, 0), {"near": judged(150, 1), "far": judged(100, 4)})


def test_the_metrics_are_those_that_a_comparison_waits_for(scores):
    assert tuple(scores.in_distribution_metrics()) == IN_DISTRIBUTION_METRICS
    assert tuple(scores.ood_metrics("near")) == OOD_METRICS


def test_metrics_are_those_of_the_scores(scores):
    known, far = scores.test.epistemic, scores.ood["far"].epistemic
    assert scores.ood_metrics("far")["auroc"] == auroc(known, far)
    assert scores.ood_metrics("far")["detection_rate"] == float((far > 1.5).double().mean())
    found = scores.in_distribution_metrics()
    assert found["false_alarm_rate"] == float((known > 1.5).double().mean())
    assert found["accuracy"] == float(scores.correct.double().mean())
    assert found["temperature"] == 2.0


def test_what_is_flagged_is_refused_first_by_epistemic_and_the_rest_by_aleatoric(scores):
    order, correct = scores.refusal("far")
    epistemic = torch.cat([scores.test.epistemic, scores.ood["far"].epistemic])
    aleatoric = torch.cat([scores.test.aleatoric, scores.ood["far"].aleatoric])

    def key(index):
        flagged = bool(epistemic[index] > 1.5)
        return (flagged, float(epistemic[index] if flagged else aleatoric[index]))

    assert order.argsort(descending=True).tolist() == sorted(range(300), key=key, reverse=True)
    assert correct[:200].tolist() == scores.correct.tolist()
    assert not correct[200:].any()
    assert scores.ood_metrics("far")["aurc"] == risk_coverage(order, correct).area


def test_equal_scores_are_refused_together(scores):
    tied = Scores(scores.logits, scores.labels, 1.0, -9.0, Judged(torch.zeros(200), scores.test.aleatoric), {})
    assert tied.refusal()[0].unique().numel() == 1


def test_a_score_that_is_its_own_ambiguity_orders_by_itself(scores):
    entropy = scores.test.aleatoric
    softmax = Scores(scores.logits, scores.labels, 1.0, 0.9, Judged(entropy, entropy), {})
    assert softmax.refusal()[0].argsort().tolist() == entropy.argsort().tolist()


def test_saved_scores_come_back_as_they_were(scores, tmp_path):
    folder = tmp_path / "deep" / "scores"
    assert Scores.load(folder) is None
    for ood in ("near", "far"):
        scores.save(folder, ood)
    assert Scores.load(folder) is None  # nothing of the test set yet
    scores.save(folder)
    loaded = Scores.load(folder)
    assert loaded is not None
    assert loaded.in_distribution_metrics() == scores.in_distribution_metrics()
    assert set(loaded.ood) == {"near", "far"}
    for name in loaded.ood:
        assert loaded.ood_metrics(name) == scores.ood_metrics(name)
    assert torch.equal(loaded.probs, scores.probs)


def test_every_set_has_a_file_of_its_own_and_its_name_whatever_that_is(scores, tmp_path):
    names = ("npz:/data/my images.npz", "test set", "cifar10_c:fog:3")
    for name in names:
        scores = scores.with_ood(name, scores.ood["near"])
        scores.save(tmp_path, name)
    scores.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4
    loaded = Scores.load(tmp_path)
    assert loaded is not None
    assert set(loaded.ood) == set(names)
