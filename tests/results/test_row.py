"""Rows say what was measured, or what went wrong."""

import math

import pytest
import torch

import ddu
from ddu.errors import InputError
from ddu.results import Row, RowKey, latest, source

RUN = {"detector": "ddu", "network": "resnet18+sn", "data": "mnist", "seed": 3, "run": "12ab34cd56ef"}


def auroc(value: float, ood: str = "fashion_mnist", **changes) -> Row:
    return Row(**RUN | {"ood": ood, "metric": "auroc", "value": value} | changes)


def test_the_key_is_what_was_measured_and_not_what_came_out():
    assert auroc(0.9).key == RowKey(
        "ddu", "resnet18+sn", "mnist", 3, "12ab34cd56ef", 1, "fashion_mnist", None, None, "auroc"
    )
    assert auroc(0.9, seconds=1.0).key == auroc(0.8, seconds=2.0, command="ddu compare").key
    assert auroc(0.9).key == auroc(0.9, reductions="epochs 50 -> 1", commit="abc").key


@pytest.mark.parametrize(
    "other", [{"severity": 2}, {"run": "ef56cd34ab12"}, {"members": 5}, {"labels": 100}, {"seed": 4}]
)
def test_another_severity_run_size_or_number_of_labels_is_another_question(other):
    assert auroc(0.9).key != auroc(0.9, **other).key
    assert latest([auroc(0.9), auroc(0.8, **other)]) == [auroc(0.9), auroc(0.8, **other)]


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_value_that_is_no_number_is_not_ok(value):
    with pytest.raises(InputError) as caught:
        auroc(value)
    assert str(caught.value) == (
        f"A row with status 'ok' needs a metric and a finite value. Got 'auroc' and {value!r}: record the run with "
        "Row.failed and say why."
    )


def test_a_failure_says_what_went_wrong_and_has_no_value():
    row = Row.failed(RuntimeError("out of memory"), **RUN)
    assert (row.status, row.error, row.value, row.metric) == ("failed", "RuntimeError: out of memory", None, None)
    assert Row.failed("killed", **RUN, ood="svhn").error == "killed"
    with pytest.raises(InputError) as caught:
        Row(**RUN, status="failed", value=0.5, error="killed")
    assert str(caught.value) == ("A row with status 'failed' needs an error and no value. Got 'killed' and 0.5.")
    with pytest.raises(InputError) as caught:
        auroc(0.5, status="done")
    assert str(caught.value) == "The status of a row is 'ok' or 'failed'. Got 'done'."


def test_the_later_of_two_rows_with_one_key_counts():
    first, other, again = auroc(0.8), auroc(0.7, ood="svhn"), auroc(0.9)
    assert latest([first, other, again]) == [again, other]


def test_a_failure_stays_until_a_later_value_makes_it_good():
    whole, on_svhn = Row.failed("no memory", **RUN), Row.failed("no file", **RUN, ood="svhn")
    assert latest([auroc(0.8), whole, on_svhn]) == [auroc(0.8), whole, on_svhn]
    assert latest([whole, on_svhn, auroc(0.8)]) == [on_svhn, auroc(0.8)]
    assert latest([whole, on_svhn, auroc(0.8, ood="svhn")]) == [auroc(0.8, ood="svhn")]
    elsewhere = auroc(0.8, seed=4)
    assert latest([whole, elsewhere]) == [whole, elsewhere]


def test_the_source_of_a_row_names_what_its_value_may_depend_on(monkeypatch):
    monkeypatch.setattr("ddu.provenance.commit", lambda: "0123456789ab+changes")
    found = source("ddu compare")
    assert found.keys() == {"command", "versions", "commit"}
    assert (found["command"], found["commit"]) == ("ddu compare", "0123456789ab+changes")
    assert str(found["versions"]).startswith(f"ddu {ddu.__version__}, python 3.")
    assert f"torch {torch.__version__}, numpy " in str(found["versions"])
    assert source("")["command"] is None


def test_a_failure_of_one_run_is_not_made_good_by_another():
    lost = Row.failed("no memory", **RUN)
    other = auroc(0.8, run="ef56cd34ab12")
    assert latest([lost, other]) == [lost, other]


def test_the_subject_names_set_severity_labels_and_seed():
    assert auroc(0.9, severity=2).subject == "ddu on resnet18+sn against fashion_mnist severity 2, seed 3"
    learner = Row.failed("no memory", **RUN, labels=1250)
    assert learner.subject == "ddu on resnet18+sn with 1,250 labels, seed 3"
