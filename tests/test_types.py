"""Predictions print, index, iterate and become frames."""

import json
import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pandas
import pytest
import torch

import ddu
from ddu import Detector, Prediction, Verdict
from ddu.errors import CalibrationWarning, InputError, MissingExtraError, NotFittedError

VERDICTS = [Verdict.IN_DISTRIBUTION, Verdict.AMBIGUOUS, Verdict.OUT_OF_DISTRIBUTION]

TABLE = """\
   label  confidence  candidates  aleatoric  epistemic  log_density  p_value              verdict
0    cat         0.9         cat      0.325       3.25        -3.25      0.5      in_distribution
1    cat         0.5  cat or dog     0.6931        4.5         -4.5     0.25            ambiguous
2    dog        0.75         dog     0.5623  1.235e+06   -1.235e+06     0.01  out_of_distribution"""


@pytest.fixture
def prediction():
    return Prediction(
        probs=torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.25, 0.75]]),
        label=torch.tensor([0, 0, 1]),
        aleatoric=torch.tensor([0.325, 0.6931, 0.5623]),
        epistemic=torch.tensor([3.25, 4.5, 1234567.0]),
        log_density=torch.tensor([-3.25, -4.5, -1234567.0]),
        verdict=np.array(VERDICTS, dtype=object),
        p_value=torch.tensor([0.5, 0.25, 0.01], dtype=torch.float64),
        candidates=torch.tensor([[True, False], [True, True], [False, True]]),
        least_p_value=0.01,
        class_names=("cat", "dog"),
    )


def test_prints_as_a_table(prediction):
    assert repr(prediction) == TABLE


def test_prints_the_hint_where_there_are_no_verdicts(prediction):
    bare = replace(prediction, verdict=None, p_value=None, candidates=None, class_names=None)
    assert repr(bare[:1]) == (
        "   label  confidence  aleatoric  epistemic  log_density\n"
        "0      0         0.9      0.325       3.25        -3.25\n"
        "No verdicts: calibrate the detector on held-out data first."
    )


def test_a_single_prediction_prints_as_a_table_of_one_row(prediction):
    assert repr(prediction[1]).splitlines() == [
        "   label  confidence  candidates  aleatoric  epistemic  log_density  p_value    verdict",
        "0    cat         0.5  cat or dog     0.6931        4.5         -4.5     0.25  ambiguous",
    ]


def test_a_long_one_prints_ten_rows_and_counts_the_others(prediction):
    lines = repr(prediction[torch.arange(25) % 3]).splitlines()
    assert len(lines) == 12
    assert lines[10].startswith("9 ")
    assert lines[11] == "... and 15 more"
    assert len(repr(prediction[torch.arange(12) % 3]).splitlines()) == 13


def test_an_empty_one_prints_its_header(prediction):
    header = "  label  confidence  candidates  aleatoric  epistemic  log_density  p_value  verdict"
    assert repr(prediction[:0]) == header


@pytest.mark.parametrize(
    "index",
    [
        [2, 0],
        np.array([2, 0]),
        torch.tensor([2, 0]),
        slice(None, None, 2),
        [True, False, True],
        np.array([True, False, True]),
        torch.tensor([True, False, True]),
    ],
    ids=["list", "array", "tensor", "slice", "list mask", "array mask", "tensor mask"],
)
def test_an_index_picks_the_same_rows_of_everything(prediction, index):
    picked = prediction[index]
    rows = [2, 0] if len(picked) == 2 and picked.label[0] == 1 else [0, 2]
    assert picked.label.tolist() == [prediction.label.tolist()[i] for i in rows]
    assert picked.verdict.tolist() == [VERDICTS[i] for i in rows]
    for name in ("probs", "aleatoric", "epistemic", "log_density", "p_value", "candidates"):
        assert torch.equal(getattr(picked, name), getattr(prediction, name)[rows])
    assert picked.class_names == ("cat", "dog")


def test_a_number_picks_one(prediction):
    one = prediction[-1]
    assert one.verdict is Verdict.OUT_OF_DISTRIBUTION
    assert one.label == 1
    assert one.probs.tolist() == [0.25, 0.75]
    with pytest.raises(TypeError, match="A single prediction has no length"):
        len(one)
    with pytest.raises(IndexError):
        prediction[3]


def test_iteration_gives_one_after_the_other(prediction):
    assert len(prediction) == 3
    assert [one.verdict for one in prediction] == VERDICTS
    assert [float(one.epistemic) for one in prediction] == prediction.epistemic.tolist()


def test_becomes_a_frame(prediction):
    expected = pandas.DataFrame(
        {
            "label": ["cat", "cat", "dog"],
            "confidence": [0.9, 0.5, 0.75],
            "candidates": ["cat", "cat or dog", "dog"],
            "aleatoric": [0.325, 0.6931, 0.5623],
            "epistemic": [3.25, 4.5, 1234567.0],
            "log_density": [-3.25, -4.5, -1234567.0],
            "p_value": [0.5, 0.25, 0.01],
            "verdict": ["in_distribution", "ambiguous", "out_of_distribution"],
            "prob_cat": [0.9, 0.5, 0.25],
            "prob_dog": [0.1, 0.5, 0.75],
        }
    )
    # the values are single precision
    pandas.testing.assert_frame_equal(prediction.to_pandas(), expected, check_dtype=False, rtol=1e-6)
    pandas.testing.assert_frame_equal(
        prediction[2].to_pandas(), expected.iloc[[2]].reset_index(drop=True), check_dtype=False, rtol=1e-6
    )


def test_a_frame_without_verdicts_and_names_has_numbers_for_names(prediction):
    frame = replace(prediction, verdict=None, p_value=None, candidates=None, class_names=None).to_pandas()
    assert list(frame) == ["label", "confidence", "aleatoric", "epistemic", "log_density", "prob_0", "prob_1"]
    assert frame["label"].tolist() == ["0", "0", "1"]


def test_becomes_what_json_takes(prediction):
    found = prediction.with_invalid(np.array(["", "", "it has NaN or infinity"], dtype=object)).to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["label"] == ["cat", "cat", ""]
    assert found["candidates"] == [["cat"], ["cat", "dog"], []]
    assert found["p_value"] == [0.5, 0.25, None]
    assert found["verdict"] == ["in_distribution", "ambiguous", "invalid"]
    assert found["reason"] == ["", "", "it has NaN or infinity"]
    assert found["probs"][1:] == [{"cat": 0.5, "dog": 0.5}, {"cat": None, "dog": None}]
    single = prediction[1].to_dict()
    assert (single["label"], single["candidates"], single["p_value"]) == ("cat", ["cat", "dog"], 0.25)
    assert "reason" not in single


@pytest.mark.parametrize(
    ("fits", "words"),
    [([5, 2], "5 or 2"), ([5, 2, 0], "5, 2 or 0"), ([5, 2, 0, 1], "5, 2 or 2 more"), ([5], "5")],
)
def test_candidates_are_named_the_likeliest_first(fits, words):
    probs, candidates = torch.zeros(1, 6), torch.zeros(1, 6, dtype=torch.bool)
    probs[0, fits] = torch.linspace(0.5, 0.1, len(fits))
    candidates[0, fits] = True
    number = torch.zeros(1)
    shown = Prediction(probs, torch.tensor([5]), number, number, candidates=candidates)
    assert shown.to_pandas()["candidates"].tolist() == [words]


def test_parts_join_to_the_whole(prediction):
    whole = replace(prediction, parts={"energy": torch.arange(3.0)})
    joined = Prediction.join([whole[:1], whole[1], whole[2:]])
    assert repr(joined) == repr(whole)
    for name in ("probs", "label", "aleatoric", "epistemic", "log_density", "p_value", "candidates"):
        assert torch.equal(getattr(joined, name), getattr(whole, name))
    assert joined.parts is not None
    assert joined.parts["energy"].tolist() == [0, 1, 2]
    assert (joined.class_names, joined.least_p_value, joined.reason) == (("cat", "dog"), 0.01, None)


def test_reasons_join_with_valid_predictions(prediction):
    bad = prediction[:1].with_invalid(np.array(["it has NaN or infinity"], dtype=object))
    joined = Prediction.join([prediction, bad, bad])
    assert np.asarray(joined.reason).tolist() == ["", "", "", "it has NaN or infinity", "it has NaN or infinity"]
    assert joined.label.tolist() == [0, 0, 1, -1, -1]
    assert np.asarray(joined.verdict).tolist() == [*VERDICTS, Verdict.INVALID, Verdict.INVALID]
    assert repr(joined).splitlines()[-1] == "Invalid: input 3 and 1 more: it has NaN or infinity."
    assert repr(joined[3]).splitlines()[1].split() == ["0", "nan", "nan", "nan", "nan", "nan", "invalid"]


def test_what_does_not_belong_together_is_not_joined(prediction):
    with pytest.raises(InputError) as caught:
        Prediction.join([prediction, replace(prediction, verdict=None)])
    assert str(caught.value) == (
        "Some of these predictions have 'verdict' and others have none: join those of one detector."
    )
    others = [replace(prediction, class_names=("dog", "cat")), replace(prediction, probs=torch.eye(3))]
    for other in others:
        with pytest.raises(InputError, match="These predictions are of different classes: join those of one detector"):
            Prediction.join([prediction, other])
    with pytest.raises(InputError, match="The scores of these predictions have different parts: join those of one"):
        Prediction.join([replace(prediction, parts={name: torch.zeros(3)}) for name in ("energy", "layer4")])
    with pytest.raises(InputError, match="There is nothing to join: give at least one prediction"):
        Prediction.join([])


def test_outliers_control_the_false_discovery_rate(prediction):
    p_value = torch.tensor([0.01, 0.02, 0.9, torch.nan], dtype=torch.float64)
    several = replace(prediction[[0, 1, 2, 2]], p_value=p_value)
    assert several.outliers(0.1).tolist() == [True, True, False, False]
    assert bool(prediction[2].outliers(0.1))
    with pytest.raises(NotFittedError, match="There are no p-values: calibrate the detector on held-out data first"):
        replace(prediction, p_value=None).outliers()
    with pytest.raises(InputError, match=r"The false-discovery rate must be a float between 0 and 1. Got 5 instead"):
        several.outliers(5)


def test_outliers_that_the_held_out_data_cannot_resolve_are_warned_of(prediction):
    many = prediction[torch.arange(300) % 3]
    with pytest.warns(CalibrationWarning) as caught:
        assert many.outliers(0.1).sum() == 100
    assert str(caught[0].message) == (
        "The p-values here are at least 0.01, so that among 300 inputs at a false-discovery rate of 0.1 either none or "
        "at least 30 are found: hold out 2,999 inputs to find single ones."
    )
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("inputs", "rate"), [(3, 0.1), (3, 0.3), (24, 0.3), (48, 0.3), (1307, 0.01)])
def test_as_many_held_out_inputs_as_single_outliers_need_are_enough(prediction, inputs, rate):
    several = prediction[torch.arange(inputs) % 3]
    held_out = round(inputs / rate) - 1
    replace(several, least_p_value=1 / (held_out + 1)).outliers(rate)
    with pytest.warns(CalibrationWarning, match=f"hold out {held_out:,} inputs to find single ones"):
        replace(several, least_p_value=1 / held_out).outliers(rate)


def test_is_frozen(prediction):
    with pytest.raises(FrozenInstanceError):
        prediction.label = torch.zeros(3)


def test_without_pandas_the_error_names_the_extra(prediction, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    with pytest.raises(MissingExtraError) as caught:
        prediction.to_pandas()
    assert str(caught.value) == (
        "Prediction.to_pandas needs the 'pandas' extra: pip install 'ddu[pandas]', or in a clone: pip install "
        "'.[pandas]'."
    )


def test_verdicts_are_strings():
    assert [str(verdict) for verdict in Verdict] == ["in_distribution", "ambiguous", "out_of_distribution", "invalid"]
    assert Verdict("ambiguous") is Verdict.AMBIGUOUS


def test_ddu_follows_the_protocol_and_a_density_does_not():
    assert isinstance(ddu.DDU(torch.nn.Linear(2, 2)), Detector)
    assert not isinstance(ddu.GaussianDensity(), Detector)
