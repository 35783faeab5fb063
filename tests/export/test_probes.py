"""Probes have the shapes and types of the inputs, and are of every kind."""

import numpy as np

from ddu.export.probes import make_probes

KINDS = ["random", "ambiguous", "far out", "degenerate"]


def test_probes_of_images_are_bytes_and_hold_flat_ones():
    example = {"pixels": np.random.default_rng(0).integers(0, 256, (4, 6, 8, 3), np.uint8)}
    found = make_probes(example, None)
    assert list(found) == KINDS
    for batch in found.values():
        assert batch["pixels"].dtype == np.uint8
        assert batch["pixels"].shape[1:] == (6, 8, 3)
    flat = found["degenerate"]["pixels"].reshape(len(found["degenerate"]["pixels"]), -1)
    assert {0, 255} <= {int(row[0]) for row in flat if len(set(row)) == 1}
    assert list(make_probes(example, example)) == ["given", *KINDS]


def test_probes_of_vectors_go_far_out_and_hold_nan_and_infinity():
    example = {"input": np.random.default_rng(0).normal(5, 2, (100, 3)).astype(np.float32)}
    found = make_probes(example, example)
    assert all(batch["input"].dtype == np.float32 for batch in found.values())
    assert found["far out"]["input"].std() > 5 * example["input"].std()
    assert np.isnan(found["degenerate"]["input"]).sum() == 1
    assert np.isinf(found["degenerate"]["input"]).sum() == 1
    two = make_probes({"a": example["input"], "b": example["input"]}, None)
    assert all(np.isfinite(values).all() for batch in two.values() for values in batch.values())


def test_probes_of_text_have_known_tokens_and_given_masks():
    random = np.random.default_rng(0)
    ids, mask = random.integers(10, 90, (20, 7)), (np.arange(7) < random.integers(2, 8, (20, 1))).astype(np.int64)
    found = make_probes({"input_ids": ids, "attention_mask": mask}, None)
    for kind in KINDS:
        assert np.isin(found[kind]["input_ids"], ids).all()
        assert {tuple(row) for row in found[kind]["attention_mask"]} <= {tuple(row) for row in mask}
        assert found[kind]["input_ids"].dtype == ids.dtype
        assert len(found[kind]["input_ids"]) == len(found[kind]["attention_mask"])
