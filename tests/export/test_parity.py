"""A graph that disagrees with PyTorch is found, and the message says where."""

import numpy as np
import pytest
import torch

from ddu.errors import ExportError
from ddu.export import VERDICTS
from ddu.export.parity import check
from ddu.export.probes import make_probes
from tests.small_networks import PREPROCESSING, draw_images

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained

OOD = VERDICTS.index("out_of_distribution")


@pytest.fixture(scope="module")
def probes():
    images, _ = draw_images(40, seed=3)
    pixels = {"pixels": images[..., None].numpy()}
    return make_probes(pixels, pixels)


def answers(detector, batch, changed=lambda found: None):
    """What a faithful graph answers, after a change."""
    known = detector.predict(PREPROCESSING.of_arrays(batch["pixels"]))
    found = {
        name: getattr(known, name).numpy().copy() for name in ("probs", "label", "aleatoric", "epistemic", "p_value")
    }
    found["candidates"] = known.candidates.numpy().copy()
    found["parts"] = torch.stack(list(known.parts.values()), 1).numpy().copy()
    found["verdict"] = np.array([VERDICTS.index(one) for one in known.verdict])
    changed(found)
    return found


def compare(detector, probes, changed=lambda found: None):
    return check(
        lambda batch: answers(detector, batch, changed),
        lambda batch: detector.predict(PREPROCESSING.of_arrays(batch["pixels"])),
        probes,
        detector.calibration,
    )


def test_a_faithful_graph_agrees_on_all_inputs(detector, probes):
    found = compare(detector, probes)
    assert list(found) == ["given", "random", "ambiguous", "far out", "degenerate"]
    assert [one.inputs for one in found.values()] == [len(batch["pixels"]) for batch in probes.values()]
    assert all(one.score < 2e-6 and one.probability < 1e-6 for one in found.values())
    assert sum(one.verdicts for one in found.values()) > 0.9 * sum(one.inputs for one in found.values())


def test_batches_have_several_sizes(detector, probes):
    sizes = []
    compare(
        detector,
        {"given": {"pixels": np.tile(probes["given"]["pixels"], (4, 1, 1, 1))}},
        lambda found: sizes.append(len(found["label"])),
    )
    assert sizes == [1, 7, 64, 64, 24]


def add(name, amount):
    def change(found):
        found[name][-1] += amount

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (add("epistemic", 0.01), "the score of input"),
        (add("parts", np.array([0, 0.01, 0, 0])), "the part 'input of 5' of input"),
        (add("probs", np.array([0.001, -0.001])), "the probability of input"),
        (add("aleatoric", 0.001), "the entropy of input"),
        (add("p_value", 0.3), "the p-value of input"),
        (lambda found: found["label"].__setitem__(slice(None), 1 - found["label"]), "the label of input"),
        (lambda found: found["candidates"].__setitem__(slice(None), True), "the candidate of input"),
        (lambda found: found["verdict"].__setitem__(slice(None), (found["verdict"] + 1) % 3), "the verdict of input"),
        (lambda found: found["verdict"].__setitem__(slice(None), 3), "the verdict of input"),
        (lambda found: found["epistemic"].__setitem__(slice(None), np.nan), "the score of input"),
    ],
)
def test_every_kind_of_disagreement_is_found(detector, probes, change, words):
    with pytest.raises(ExportError, match=f"on given inputs: {words}.*Nothing was written"):
        compare(detector, probes, change)


def test_the_message_names_the_part_that_differs(detector, probes):
    def change(found):
        found["parts"][:, 3] += 0.5
        found["epistemic"] += 0.5

    with pytest.raises(ExportError, match=r"may differ by .*; the part 'energy' differs by 0\.5"):
        compare(detector, probes, change)


def test_a_verdict_may_differ_within_rounding_of_a_threshold_alone(detector, probes):
    """Rates put the threshold on one input's score: that one may be called either, and the next may not."""
    batch = probes["given"]
    known = detector.predict(PREPROCESSING.of_arrays(batch["pixels"]))
    held_out = detector.calibration.held_out.epistemic
    row = int((known.verdict == "in_distribution").argmax())
    close = held_out.clone()
    close[int((held_out - known.epistemic[row]).abs().argmin())] = float(known.epistemic[row])

    from dataclasses import replace

    from ddu.calibration import HeldOut

    kept = detector.calibration.held_out
    moved = replace(
        detector.calibration,
        held_out=HeldOut(close, kept.predicted, kept.entropy, kept.correct, kept.label_prob),
        false_alarm_rate=float((close >= known.epistemic[row]).sum() + 0.5) / (len(close) + 1),
    )
    before, detector.calibration = detector.calibration, moved
    try:

        def flip(found):
            code = found["verdict"][0]
            found["verdict"][0] = 0 if code == OOD else OOD

        one = {"given": {"pixels": batch["pixels"][row : row + 1]}}
        assert compare(detector, one, flip)["given"].verdicts == 0
        other = int((known.verdict == "in_distribution").nonzero()[0][-1])
        sure = {"given": {"pixels": batch["pixels"][other : other + 1]}}
        if abs(float(known.epistemic[other] - known.epistemic[row])) > 0.1:
            with pytest.raises(ExportError, match="not within rounding of a threshold"):
                compare(detector, sure, flip)
    finally:
        detector.calibration = before
