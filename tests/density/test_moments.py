"""Moments: however the samples arrive, they are those of all samples together."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from ddu.density import ClassMoments
from ddu.density.moments import FullScatter, NoScatter, PooledScatter, ScatterForm, SketchedScatter

DIM, CLASSES = 5, 3
FORMS = {
    "none": NoScatter(),
    "full": FullScatter(),
    "pooled": PooledScatter(),
    "sketched": SketchedScatter.of_size(DIM, 2),
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> ScatterForm:
    return FORMS[request.param]


def samples(count: int = 60, seed: int = 0, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, DIM, generator=generator, dtype=torch.float64) + offset
    return z, torch.arange(count) % CLASSES


def moments_of(form: ScatterForm, *batches: tuple[Tensor, Tensor], quartic: bool = False) -> ClassMoments:
    moments = ClassMoments(form, CLASSES, DIM, quartic=quartic)
    for z, y in batches:
        moments.add(z, y)
    return moments


def assert_same(left: ClassMoments, right: ClassMoments, rtol: float = 1e-9) -> None:
    """Equal relative to the largest entry: single entries of a scatter matrix may cross zero."""
    assert left.tensors().keys() == right.tensors().keys()
    for name, value in left.tensors().items():
        other = right.tensors()[name]
        scale = float(other.abs().max()) if other.numel() else 1.0
        assert_close(value, other, rtol=0, atol=rtol * scale, msg=lambda text, name=name: f"{name}: {text}")


def test_moments_equal_numpys() -> None:
    z, y = samples()
    full = moments_of(FullScatter(), (z, y))
    pooled = moments_of(PooledScatter(), (z, y))
    for label in range(CLASSES):
        rows = z[y == label].numpy()
        scatter = np.cov(rows.T) * (len(rows) - 1)
        assert int(full.count[label]) == len(rows)
        np.testing.assert_allclose(full.mean[label], rows.mean(0), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(full.scatter[label], scatter, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(full.squares[label], scatter.diagonal(), rtol=1e-12)
    assert_close(pooled.scatter[0], full.scatter.sum(0), rtol=1e-12, atol=1e-13)


def test_a_sketch_is_the_scatter_times_its_test_matrix() -> None:
    form = SketchedScatter.of_size(DIM, 2)
    sketch, full = moments_of(form, samples()), moments_of(FullScatter(), samples())
    assert_close(sketch.scatter, full.scatter @ form.test_matrix, rtol=1e-12, atol=1e-12)


@given(
    cuts=st.lists(st.integers(0, 60), max_size=8),
    seed=st.integers(0, 2**16),
    offset=st.sampled_from([0.0, -3.0, 1e6]),
    kind=st.sampled_from(sorted(FORMS)),
)
@settings(derandomize=True, deadline=None, max_examples=40)
def test_any_split_order_or_number_of_shards_gives_the_same_moments(
    cuts: list[int], seed: int, offset: float, kind: str
) -> None:
    z, y = samples(offset=offset)
    form = FORMS[kind]
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    shards = [moments_of(form, (z[part], y[part])) for part in order.tensor_split(sorted(cuts))]
    merged = moments_of(form)
    for shard in shards:
        merged.merge(shard)
    streamed = moments_of(form, *((z[part], y[part]) for part in order.tensor_split(sorted(cuts))))
    assert_same(merged, moments_of(form, (z, y)))
    assert_same(streamed, moments_of(form, (z, y)))


def test_a_thousand_single_samples_equal_one_batch(form: ScatterForm) -> None:
    z, y = samples(1000, offset=1e6)
    assert_same(moments_of(form, *((z[i : i + 1], y[i : i + 1]) for i in range(1000))), moments_of(form, (z, y)))


def test_merging_moments_of_fewer_classes_touches_no_other_class(form: ScatterForm) -> None:
    z, y = samples()
    fewer = ClassMoments(form, 1, DIM)
    more, _ = samples(7, seed=1)
    fewer.add(more, torch.zeros(7, dtype=torch.int64))
    merged = moments_of(form, (z, y))
    merged.merge(fewer)
    assert_same(merged, moments_of(form, (z, y), (more, torch.zeros(7, dtype=torch.int64))))


def test_removing_undoes_adding(form: ScatterForm) -> None:
    first, second = samples(), samples(30, seed=1, offset=2.0)
    moments = moments_of(form, first, second)
    moments.remove(*second)
    assert_same(moments, moments_of(form, first))


def test_a_class_with_all_samples_removed_is_exactly_empty(form: ScatterForm) -> None:
    z, y = samples(offset=0.1)
    moments = moments_of(form, (z, y), samples(30, seed=1))
    moments.remove(z, y)
    moments.remove(*samples(30, seed=1))
    assert not moments.count.any()
    assert not moments.mean.any()
    assert not moments.squares.any()
    assert isinstance(form, PooledScatter) or not moments.scatter.any()


def test_removal_never_leaves_a_negative_variance() -> None:
    z, y = samples(offset=1e3)
    constant = z.clone()
    constant[:, 0] = 0.1
    moments = moments_of(NoScatter(), (constant, y))
    for part in torch.arange(60).split(7)[:-1]:
        moments.remove(constant[part], y[part])
    assert (moments.squares >= 0).all()


@pytest.mark.parametrize("offset", [0.0, 50.0])
def test_quartic_moments_equal_direct_sums_after_merge_and_removal(offset: float) -> None:
    z, y = samples(90, offset=offset)
    moments = moments_of(FullScatter(), (z[:20], y[:20]), (z[60:], y[60:]), quartic=True)
    moments.merge(moments_of(FullScatter(), (z[20:60], y[20:60]), quartic=True))
    moments.remove(z[75:], y[75:])
    assert moments.cubes is not None
    assert moments.quarts is not None
    for label in range(CLASSES):
        x = z[:75][y[:75] == label]
        x = x - x.mean(0)
        assert_close(moments.cubes[label], (x.square().sum(1, keepdim=True) * x).sum(0), rtol=1e-9, atol=1e-9)
        assert_close(moments.quarts[label], x.square().sum(1).square().sum(), rtol=1e-9, atol=0)


def test_total_is_the_moments_of_all_samples_as_one_class() -> None:
    z, y = samples()
    z = z + y[:, None] * 3.0
    for form in (NoScatter(), FullScatter(), PooledScatter(), SketchedScatter.of_size(DIM, 2)):
        alone = ClassMoments(form, 1, DIM)
        alone.add(z, torch.zeros_like(y))
        assert_same(moments_of(form, (z, y)).total(), alone)
    alone = ClassMoments(FullScatter(), 1, DIM, quartic=True)
    alone.add(z, torch.zeros_like(y))
    assert_same(moments_of(FullScatter(), (z, y), quartic=True).total(), alone)


def test_room_for_more_classes_keeps_what_was_learned(form: ScatterForm) -> None:
    z, y = samples()
    grown = ClassMoments(form, 1, DIM)
    grown.add(z[y == 0], y[y == 0])
    grown.resize(CLASSES)
    grown.add(z[y > 0], y[y > 0])
    assert_same(grown, moments_of(form, (z, y)))


def test_moments_are_double_whatever_comes_in() -> None:
    z, y = samples()
    moments = moments_of(FullScatter(), (z.float(), y))
    assert moments.mean.dtype == moments.scatter.dtype == moments.squares.dtype == torch.float64
    assert_same(moments, moments_of(FullScatter(), (z.float().double(), y)), rtol=0)
