"""The paper's protocols: their numbers, the samples they draw, and what is said of every reduction."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ddu.data import ArrayDataset, DataInfo
from ddu.errors import DataError, InputError
from ddu.experiments.active_protocols import (
    PROTOCOLS,
    Protocol,
    Source,
    _balanced,
    draw_sets,
    find_protocol,
    read_source,
)
from ddu.experiments.learning_curves import Curve
from ddu.provenance import fingerprint
from ddu.results import RowFile


def sets_of(protocol, seed=0, root=None):
    return draw_sets(protocol, seed, read_source(protocol, root))


def test_the_papers_numbers_are_kept():
    for name in ("mnist", "dirty_mnist"):
        protocol = PROTOCOLS[name]
        assert (protocol.initial, protocol.per_round, protocol.until) == (20, 5, 300)
        assert (protocol.network, protocol.options) == ("resnet18", {})
        recipe = protocol.recipe
        assert (recipe.optimiser, recipe.epochs, recipe.select, recipe.lr) == ("adam", 100, "best", 1e-3)
    assert (PROTOCOLS["dirty_mnist"].pool, PROTOCOLS["dirty_mnist"].ambiguous) == (1000, 60_000)
    cifar = PROTOCOLS["cifar10"]
    assert (cifar.initial, cifar.per_round, cifar.until) == (1000, 500, 20_000)


def test_a_reduced_protocol_keeps_labels_and_rounds_and_says_what_it_reduces():
    for name in PROTOCOLS:
        assert PROTOCOLS[name].reductions() is None
    reduced = find_protocol("dirty_mnist", "cpu", epochs=3, candidates=700)
    for name in PROTOCOLS:
        for kept in ("initial", "per_round", "until", "network", "pool", "ambiguous"):
            assert getattr(find_protocol(name, "cpu"), kept) == getattr(PROTOCOLS[name], kept)
    words = reduced.reductions() or ""
    assert "candidates all -> 700" in words
    assert "epochs 100 -> 3" in words
    assert "options default -> " in words
    assert "image_size original -> 14" in words
    assert find_protocol("mnist", until=50).reductions() is None
    assert find_protocol("dirty_mnist", copies=False).reductions() == "copies yes -> no"


@pytest.mark.parametrize("seed", [0, 1])
def test_samples_of_a_run_are_balanced_and_clean_and_in_one_set_only(seed):
    protocol = PROTOCOLS["dirty_digits"]
    sets = sets_of(protocol, seed)
    assert np.bincount(sets.labelled.labels).tolist() == [2] * 10
    assert (len(sets.validation), len(sets.pool), len(sets.test)) == (100, 1000, 500)
    assert (int(sets.ambiguous.sum()), int((~sets.ambiguous).sum())) == (900, 100)
    clean = np.concatenate([sets.labelled.inputs, sets.validation.inputs, sets.pool.inputs[~sets.ambiguous]])
    known = {row.tobytes() for row in sets_of(PROTOCOLS["digits"], seed).pool.inputs} | {
        row.tobytes() for row in clean[:120]
    }
    assert len({row.tobytes() for row in clean}) == len(clean)
    assert all(row.tobytes() in known for row in clean)
    assert not any(row.tobytes() in known for row in sets.pool.inputs[sets.ambiguous])


def test_samples_depend_on_the_seed_alone():
    same, again, other = (sets_of(PROTOCOLS["dirty_digits"], seed) for seed in (0, 0, 1))
    assert same.digest == other.digest != sets_of(PROTOCOLS["digits"]).digest
    assert np.array_equal(same.pool.inputs, again.pool.inputs)
    assert not np.array_equal(same.labelled.inputs, other.labelled.inputs)


def test_images_are_made_large_enough_where_they_are_scaled():
    reduced = find_protocol("mnist", "cpu")
    assert reduced.with_images_of(None) == reduced
    larger = reduced.with_images_of(16)
    assert larger.image_size == 16
    assert "image_size original -> 16" in (larger.reductions() or "")
    assert PROTOCOLS["mnist"].with_images_of(16) == PROTOCOLS["mnist"]


def test_what_is_younger_than_the_first_rows_is_a_setting_only_where_it_is_changed():
    younger = {"copies", "ambiguous_start"}
    assert not younger & find_protocol("dirty_mnist", "cpu").settings().keys()
    changed = find_protocol("dirty_mnist", "cpu", copies=False, ambiguous_start=True).settings()
    assert {name: changed[name] for name in younger} == {"copies": False, "ambiguous_start": True}


def test_rows_in_the_repository_are_those_of_the_protocol():
    protocol = find_protocol("mnist", "cpu")
    try:
        digest = read_source(protocol).digest
    except DataError as error:
        pytest.skip(str(error))
    rows = RowFile(Path(__file__).parents[2] / "results/reproduction/active-mnist/cpu/rows.csv").read()
    runs = {row.run for row in rows if row.detector == "density"}
    assert runs == {fingerprint(Curve(protocol, "density").settings(digest))}


def test_the_end_of_a_curve_is_not_one_of_its_settings():
    assert find_protocol("mnist", until=50).settings() == PROTOCOLS["mnist"].settings()
    assert find_protocol("mnist", epochs=3).settings() != PROTOCOLS["mnist"].settings()


@pytest.mark.parametrize("count", [10, 20, 23])
def test_initial_labels_are_spread_over_the_classes(count):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 7))
    positions = _balanced(labels, count, 10)
    counts = np.bincount(labels[positions], minlength=10)
    assert len(set(positions.tolist())) == count
    assert counts.max() - counts.min() <= 1
    # The first ones of each class: the order is already random
    assert all(labels[: positions[labels[positions] == c].max()].tolist().count(c) == counts[c] - 1 for c in range(10))


def test_the_real_protocols_draw_what_they_say(real_data):
    sets = sets_of(PROTOCOLS["mnist"], 0, real_data)
    assert np.bincount(sets.labelled.labels).tolist() == [2] * 10
    assert (len(sets.validation), len(sets.pool), len(sets.test)) == (6000, 60_000 - 6020, 10_000)
    assert not sets.ambiguous.any()
    reduced = sets_of(find_protocol("mnist", "cpu"), 0, real_data)
    assert len(reduced.pool) == 60_000 - 20 - len(reduced.validation)
    for small in (reduced.labelled, reduced.validation, reduced.pool, reduced.test):
        assert small[0][0].shape == (1, 14, 14)
    blocks = sets.labelled[0][0].unfold(1, 2, 2).unfold(2, 2, 2).mean((3, 4))
    again = sets_of(find_protocol("mnist", image_size=14), 0, real_data).labelled[0][0]
    assert torch.corrcoef(torch.stack([blocks.flatten(), again.flatten()]))[0, 1] > 0.98  # the same digit, smaller


def test_mistakes_are_named():
    with pytest.raises(InputError, match=r"^There is no protocol for 'dirty_minst'\. Did you mean 'dirty_mnist'\?$"):
        find_protocol("dirty_minst")
    with pytest.raises(InputError, match=r"^A recipe has no field 'epoch'\. Did you mean 'epochs'\?$"):
        find_protocol("mnist", epoch=3)
    with pytest.raises(
        InputError,
        match=r"^The protocol for dirty_digits wants 2,000 clean samples in the pool, and there are only 1,177\.$",
    ):
        sets_of(find_protocol("dirty_digits", pool=2000))
    with pytest.raises(InputError, match=r"^5 initial labels cannot be spread over 10 classes of 1197 samples\.$"):
        sets_of(find_protocol("digits", initial=5, until=55))


def _dirty() -> Source:
    """Twenty clean samples of each of two classes, and forty ambiguous images with three labels each."""
    labels = np.concatenate([np.arange(40) % 2, np.random.default_rng(0).integers(0, 2, 120)])
    groups = np.concatenate([np.arange(40), 40 + np.arange(120) // 3])
    points = groups[:, None].astype(np.float32)
    samples = ArrayDataset(points, labels, DataInfo("toy", (1,), ("even", "odd"), mean=(), std=()), groups)
    return Source(samples, samples.subset(range(10)), 40)


@pytest.mark.parametrize("copies", [True, False])
def test_without_copies_each_ambiguous_image_is_in_the_pool_once(copies):
    protocol = Protocol("toy", initial=4, validation=6, pool=20, ambiguous=30, copies=copies)
    images = [int(x) for x in draw_sets(protocol, 0, _dirty()).pool.inputs[:, 0] if x >= 40]
    assert len(images) == 30
    assert (len(set(images)) == 30) != copies


def test_an_ambiguous_start_is_balanced_and_leaves_the_pool():
    source = _dirty()
    clean, ambiguous = (
        draw_sets(Protocol("toy", initial=4, validation=6, pool=20, ambiguous=120, ambiguous_start=start), 0, source)
        for start in (False, True)
    )
    assert (clean.labelled.inputs < 40).all()
    assert (ambiguous.labelled.inputs >= 40).all()
    assert np.bincount(ambiguous.labelled.labels).tolist() == [2, 2]
    assert (int(clean.ambiguous.sum()), int(ambiguous.ambiguous.sum())) == (120, 116)
    assert int((~ambiguous.ambiguous).sum()) == 20
