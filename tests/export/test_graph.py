"""The module that gets exported says what the detector says, before anything is exported."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import ddu
from ddu.calibration import Calibration, HeldOut
from ddu.detectors import BaseDetector, Energy, Ensemble, Mahalanobis, Softmax
from ddu.errors import NotFittedError, NotSupportedError
from ddu.export import VERDICTS, Graph
from ddu.export.graph import RATE, THRESHOLD, Ranks
from ddu.layers import spectral_norm
from tests.small_networks import PREPROCESSING, draw_images, make_network, to_inputs

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained

DETECTORS: dict[str, Any] = {
    "default": ddu.DDU,
    "paper": ddu.DDU.paper,
    "shared": lambda model: ddu.DDU(model, density={"covariance": "shared", "background": True}),
    "low rank": lambda model: ddu.DDU(model, view="raw", density={"covariance": "low_rank", "rank": 3}),
    "diagonal": lambda model: ddu.DDU(model, density={"covariance": "diagonal", "standardize": True}),
    "softmax": Softmax,
    "confidence": lambda model: Softmax(model, score="confidence"),
    "energy": Energy,
    "mahalanobis": lambda model: Mahalanobis(model, layers="stages"),
    "relative mahalanobis": lambda model: Mahalanobis(model, relative=True),
}


def calibrated(make: Any = ddu.DDU, model: nn.Module | None = None, **settings: Any) -> Any:
    made = make(model or make_network()).fit([to_inputs(*draw_images(400, seed=1))])
    return made.calibrate([to_inputs(*draw_images(300, seed=2))], 0.05, **settings)


def everywhere() -> torch.Tensor:
    """Inputs like those of the training, noise, and flat images."""
    images, _ = draw_images(30, seed=3)
    noise = torch.randint(0, 256, (20, 12, 12), generator=torch.Generator().manual_seed(0)).byte()
    flat = torch.tensor([0, 100, 255], dtype=torch.uint8)[:, None, None].expand(3, 12, 12)
    return torch.cat([images, noise, flat])[..., None]


def run(graph: Graph, inputs: dict[str, torch.Tensor], **thresholds: float) -> dict[str, torch.Tensor]:
    given = {name: torch.tensor(value, dtype=torch.float64) for name, value in {**graph.defaults, **thresholds}.items()}
    return graph(inputs, given[RATE], given[THRESHOLD])


def graph_of(detector: Any) -> Graph:
    return Graph(detector, {"pixels": everywhere()[:4]}, PREPROCESSING)


@pytest.mark.parametrize("name", DETECTORS)
def test_the_graph_of_every_detector_says_what_the_detector_says(name):
    detector, pixels = calibrated(DETECTORS[name]), everywhere()
    graph, known = graph_of(detector), detector.predict(PREPROCESSING(pixels.numpy()))
    found = run(graph, {"pixels": pixels})
    assert list(found) == graph.outputs
    spread = float(detector.calibration.held_out.epistemic.std())
    assert_close(found["epistemic"], known.epistemic, rtol=1e-5, atol=1e-5 * spread)
    assert_close(found["probs"], known.probs, rtol=1e-5, atol=1e-7)
    assert_close(found["aleatoric"], known.aleatoric, rtol=1e-4, atol=1e-6)
    assert_close(found["p_value"], known.p_value, rtol=0, atol=1e-12)
    assert torch.equal(found["label"], known.label)
    assert torch.equal(found["candidates"], known.candidates)
    assert [VERDICTS[code] for code in found["verdict"]] == list(known.verdict)
    assert len(set(known.verdict)) > 1
    if known.parts is None:
        assert "parts" not in found
    else:
        assert_close(found["parts"], torch.stack(list(known.parts.values()), 1), rtol=1e-5, atol=1e-5 * spread)


def test_the_graph_of_some_classes_leaves_the_others_out():
    network = make_network()
    head, wider = network[-1], nn.Linear(8, 4)
    with torch.no_grad():  # classes 3 and 1 are those of the data
        wider.weight[[3, 1]], wider.bias[[3, 1]] = head.weight, head.bias
    network[-1] = wider
    detector, pixels = calibrated(lambda model: ddu.DDU(model, classes=[3, 1]), network), everywhere()
    known = detector.predict(PREPROCESSING(pixels.numpy()))
    found = run(graph_of(detector), {"pixels": pixels})
    assert_close(found["probs"], known.probs, rtol=1e-5, atol=1e-7)
    assert_close(found["epistemic"], known.epistemic, rtol=1e-5, atol=1e-4)
    assert found["probs"].shape[1] == 2


def test_rates_and_thresholds_can_be_overridden(detector):
    pixels, graph = everywhere(), graph_of(detector)
    known = detector.predict(PREPROCESSING(pixels.numpy()))
    assert known.p_value is not None
    for rate in (0.01, 0.05, 0.3):
        found = run(graph, {"pixels": pixels}, false_alarm_rate=rate)
        flagged = found["verdict"] == VERDICTS.index("out_of_distribution")
        assert torch.equal(flagged, known.p_value <= rate)
    moved = run(graph, {"pixels": pixels}, false_alarm_rate=0.0, entropy_threshold=0.3)
    assert torch.equal(moved["verdict"] == VERDICTS.index("ambiguous"), known.aleatoric > 0.3)
    detector.false_alarm_rate = 0.2
    try:
        by_detector = detector.predict(PREPROCESSING(pixels.numpy())).verdict
    finally:
        detector.false_alarm_rate = 0.05
    by_graph = run(graph, {"pixels": pixels}, false_alarm_rate=0.2)["verdict"]
    assert [VERDICTS[code] for code in by_graph] == list(by_detector)


@pytest.mark.parametrize("samples", [99, 100, 101, 1000])
@pytest.mark.parametrize("threshold", ["conformal", "training_quantile"])
@pytest.mark.parametrize("per_class", [False, True])
def test_ranks_are_those_of_the_calibration_also_for_equal_scores(samples, threshold, per_class):
    generator = torch.Generator().manual_seed(samples)
    scores = torch.randint(0, 50, (samples,), generator=generator).double()  # with many of each
    predicted = torch.randint(0, 3, (samples,), generator=generator)  # and none of class 3
    settings: dict[str, Any] = {"threshold": threshold, "per_class": per_class, "false_alarm_rate": 0.1}
    calibration = Calibration(HeldOut(scores, predicted), **settings)
    asked = torch.cat([torch.arange(-1, 51), torch.tensor([0.5, 48.5, math.inf, -math.inf, 1e30])]).float()
    label = torch.arange(len(asked)) % 4
    found = Ranks(calibration, 4)(asked, label)
    assert_close(found, calibration.p_values(asked, label), rtol=0, atol=0)


def test_a_confidence_is_a_smaller_p_value():
    detector = calibrated(confidence=0.9)
    pixels, graph = everywhere(), graph_of(detector)
    assert graph.defaults[RATE] < 0.05
    found = run(graph, {"pixels": pixels})["verdict"]
    assert [VERDICTS[code] for code in found] == list(detector.predict(PREPROCESSING(pixels.numpy())).verdict)
    with pytest.raises(NotSupportedError, match="per_class=False or confidence=None"):
        graph_of(calibrated(confidence=0.5, per_class=True))


def test_without_labels_nothing_is_ambiguous_and_there_are_no_candidates():
    detector = ddu.DDU(make_network()).fit([to_inputs(*draw_images(400, seed=1))])
    detector.calibrate(to_inputs(*draw_images(300, seed=2))[0], 0.05, labels=False)
    graph = graph_of(detector)
    assert "candidates" not in graph.outputs
    assert graph.defaults[THRESHOLD] == math.inf
    found = run(graph, {"pixels": everywhere()})["verdict"]
    assert VERDICTS.index("ambiguous") not in found


def test_an_input_that_is_not_finite_is_invalid_and_disturbs_no_other():
    x, y = torch.randn(400, 4), torch.arange(400) % 2
    x[:, 0] += 4 * y
    detector = ddu.DDU(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))).fit([(x[:200], y[:200])])
    detector.calibrate([(x[200:], y[200:])], 0.05)
    graph = Graph(detector, {"input": x[:3]})
    bad = x[:5].clone()
    bad[1, 2], bad[3, 0] = torch.nan, torch.inf
    found, known = run(graph, {"input": bad}), detector.predict(bad)
    assert [VERDICTS[code] for code in found["verdict"]] == list(known.verdict)
    assert found["label"].tolist() == known.label.tolist()
    assert_close(found["epistemic"], known.epistemic, equal_nan=True, rtol=1e-5, atol=1e-5)
    assert found["p_value"].isnan().tolist() == [False, True, False, True, False]
    assert not found["candidates"][1].any()


def test_spectral_norms_are_folded_and_the_network_is_left_alone():
    model = make_network()
    spectral_norm(model[0], 0.5)
    model.train()
    detector = calibrated(model=model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    graph, pixels = graph_of(detector), everywhere()
    assert not any("parametrizations" in name for name, _ in graph.network.named_parameters())
    assert_close(
        run(graph, {"pixels": pixels})["probs"],
        detector.predict(PREPROCESSING(pixels.numpy())).probs,
        rtol=1e-4,
        atol=1e-6,
    )
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_cannot_be_a_graph_is_refused_in_words():
    model = make_network()
    fitted = ddu.DDU(model).fit([to_inputs(*draw_images(400, seed=1))])
    with pytest.raises(NotFittedError, match="Call calibrate first"):
        graph_of(fitted)
    with pytest.raises(NotSupportedError, match="Ensemble runs several networks, and a graph has one"):
        graph_of(calibrated(lambda model: Ensemble([model, make_network()])))
    with pytest.raises(NotSupportedError, match="export DDU, Softmax, Energy, or Mahalanobis"):
        BaseDetector.graph(fitted)
    with pytest.raises(NotSupportedError, match="takes a step along a gradient"):
        graph_of(calibrated(lambda model: Mahalanobis(model, perturbation=0.01)))
    with pytest.raises(NotSupportedError, match="name a layer instead"):
        graph_of(calibrated(lambda model: ddu.DDU.paper(model, features=lambda x: model[:4](x))))


def test_the_verdict_of_a_rate_is_that_of_the_detector_at_the_edge_of_every_rank(detector):
    calibration = detector.calibration
    assert calibration is not None
    scores = calibration.held_out.epistemic[::7].float()
    label = torch.zeros(len(scores), dtype=torch.int64)
    p_values = Ranks(calibration, 2)(scores, label)
    for rate in np.arange(1, 100) / 100:
        by_rank = replace(calibration, false_alarm_rate=float(rate)).verdicts(scores, torch.zeros(len(scores)), label)
        assert ((p_values <= rate).numpy() == (by_rank == "out_of_distribution")).all()
