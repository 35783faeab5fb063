"""Predictions print, index, iterate and become frames."""

import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pandas
import pytest
import torch

import ddu
from ddu import Detector, Prediction, Verdict
from ddu.errors import MissingExtraError

TABLE = """\
   label  confidence  aleatoric  epistemic  log_density              verdict
0    cat         0.9      0.325       3.25        -3.25      in_distribution
1    cat         0.5     0.6931        4.5         -4.5            ambiguous
2    dog        0.75     0.5623  1.235e+06   -1.235e+06  out_of_distribution"""


@pytest.fixture
def prediction():
    return Prediction(
        probs=torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.25, 0.75]]),
        label=torch.tensor([0, 0, 1]),
        aleatoric=torch.tensor([0.325, 0.6931, 0.5623]),
        epistemic=torch.tensor([3.25, 4.5, 1234567.0]),
        log_density=torch.tensor([-3.25, -4.5, -1234567.0]),
        verdict=np.array(list(Verdict), dtype=object),
        class_names=("cat", "dog"),
    )


def test_prints_as_a_table(prediction):
    assert repr(prediction) == TABLE


def test_prints_the_hint_where_there_are_no_verdicts(prediction):
    assert repr(replace(prediction, verdict=None, class_names=None)[:1]) == (
        "   label  confidence  aleatoric  epistemic  log_density\n"
        "0      0         0.9      0.325       3.25        -3.25\n"
        "No verdicts: calibrate the detector on held-out data first."
    )


def test_a_single_prediction_prints_as_a_table_of_one_row(prediction):
    assert repr(prediction[1]).splitlines() == [
        "   label  confidence  aleatoric  epistemic  log_density    verdict",
        "0    cat         0.5     0.6931        4.5         -4.5  ambiguous",
    ]


def test_a_long_one_prints_ten_rows_and_counts_the_others(prediction):
    lines = repr(prediction[torch.arange(25) % 3]).splitlines()
    assert len(lines) == 12
    assert lines[10].startswith("9 ")
    assert lines[11] == "... and 15 more"
    assert len(repr(prediction[torch.arange(12) % 3]).splitlines()) == 13


def test_an_empty_one_prints_its_header(prediction):
    assert repr(prediction[:0]) == "  label  confidence  aleatoric  epistemic  log_density  verdict"


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
    assert picked.verdict.tolist() == [list(Verdict)[i] for i in rows]
    for name in ("probs", "aleatoric", "epistemic", "log_density"):
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
    assert [one.verdict for one in prediction] == list(Verdict)
    assert [float(one.epistemic) for one in prediction] == prediction.epistemic.tolist()


def test_becomes_a_frame(prediction):
    expected = pandas.DataFrame(
        {
            "label": ["cat", "cat", "dog"],
            "confidence": [0.9, 0.5, 0.75],
            "aleatoric": [0.325, 0.6931, 0.5623],
            "epistemic": [3.25, 4.5, 1234567.0],
            "log_density": [-3.25, -4.5, -1234567.0],
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
    frame = replace(prediction, verdict=None, class_names=None).to_pandas()
    assert list(frame) == ["label", "confidence", "aleatoric", "epistemic", "log_density", "prob_0", "prob_1"]
    assert frame["label"].tolist() == ["0", "0", "1"]


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
    assert [str(verdict) for verdict in Verdict] == ["in_distribution", "ambiguous", "out_of_distribution"]
    assert Verdict("ambiguous") is Verdict.AMBIGUOUS


def test_ddu_follows_the_protocol_and_a_density_does_not():
    assert isinstance(ddu.DDU(torch.nn.Linear(2, 2)), Detector)
    assert not isinstance(ddu.GaussianDensity(), Detector)
