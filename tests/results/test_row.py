"""Rows say what was measured, or what went wrong."""

import math

import pytest
import torch

import ddu
from ddu.errors import InputError
from ddu.results import Row, RowKey, latest, versions

RUN = {"detector": "ddu", "network": "resnet18+sn", "data": "mnist", "seed": 3}


def auroc(value: float, ood: str = "fashion_mnist", **changes) -> Row:
    return Row(**RUN | {"ood": ood, "metric": "auroc", "value": value} | changes)


def test_the_key_is_what_was_measured_and_not_what_came_out():
    assert auroc(0.9).key == RowKey("ddu", "resnet18+sn", "mnist", 3, "fashion_mnist", None, "auroc")
    assert auroc(0.9, seconds=1.0).key == auroc(0.8, seconds=2.0, command="ddu compare").key
    assert auroc(0.9).key != auroc(0.9, severity=2).key


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


def test_versions_name_what_a_value_may_depend_on():
    assert versions().startswith(f"ddu {ddu.__version__}, python 3.")
    assert f"torch {torch.__version__}, numpy " in versions()
