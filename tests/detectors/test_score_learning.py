"""A sum of parts in memory; it learns on, forgets, is saved and loaded."""

import copy

import pytest
import torch

import ddu
from ddu.density import GaussianDensity
from ddu.errors import (
    CovarianceWarning,
    FeatureError,
    FewSamplesWarning,
    LabelError,
    NotSupportedError,
    OutOfMemoryError,
)
from tests.detectors.blobs import blobs
from tests.detectors.scored_blobs import X, calibrated, network

# Memory


@pytest.fixture
def forecasts() -> list[int]:
    """What one matrix per class takes in each of the parts."""
    score = ddu.DDU(network(), density={"covariance": "full"}).fit([blobs(600)]).score
    assert score is not None
    return [density.memory_needed_ for density in score.densities]


@pytest.fixture
def room(monkeypatch):
    """Sets how much memory there is; every density takes the moments that it holds from what is available."""
    held = list[int]()
    allocate = GaussianDensity._empty_moments

    def allocated(*arguments):
        moments = allocate(*arguments)
        held.append(sum(tensor.nbytes for tensor in moments.tensors().values()))
        return moments

    def leave(size: int) -> None:
        held.clear()
        monkeypatch.setattr("ddu.density.memory.available_memory", lambda device: size - sum(held))

    monkeypatch.setattr(GaussianDensity, "_empty_moments", allocated)
    return leave


def test_the_parts_of_a_sum_fit_into_memory_together(forecasts, room):
    first, second, third = forecasts
    room(first + second + 2 * third - 1)  # for any one of them, but not for all three
    with pytest.warns(CovarianceWarning, match="are available beside the other densities") as caught:
        detector = ddu.DDU(network()).fit([blobs(300), blobs(300, seed=2)])
    assert [warning.filename for warning in caught] == [__file__]
    assert detector.score is not None
    assert [density.covariance_ for density in detector.score.densities] == ["full", "full", "shared"]
    room(first + second + 2 * third)
    score = ddu.DDU(network()).fit([blobs(600)]).score
    assert score is not None
    assert {density.covariance_ for density in score.densities} == {"full"}


def test_parts_that_do_not_fit_together_are_refused(forecasts, room):
    room(sum(forecasts) - 1)
    with pytest.raises(OutOfMemoryError, match="are available beside the other densities"):
        ddu.DDU(network(), density={"covariance": "full"}).fit([blobs(600)])
    room(sum(forecasts))
    assert ddu.DDU(network(), density={"covariance": "full"}).fit([blobs(600)]).is_fitted


def test_warnings_of_the_densities_point_at_the_line_that_fits():
    with pytest.warns(FewSamplesWarning) as caught:
        ddu.DDU(network()).fit([blobs(12)])
    assert {warning.filename for warning in caught} == {__file__}


# Learning on, saving


def test_update_adds_to_every_density_what_a_fit_on_all_would_have_given():
    model, (x, y) = network(), blobs(300)
    whole, streamed = ddu.DDU(model).fit([(x, y)]), ddu.DDU(model).fit([(x[:150], y[:150])])
    streamed.update(streamed.tap(x[150:])._replace(labels=y[150:]))
    assert whole.score is not None
    assert streamed.score is not None
    for expected, density in zip(whole.score.densities, streamed.score.densities, strict=True):
        for name, tensor in expected.state_tensors().items():
            torch.testing.assert_close(density.state_tensors()[name], tensor, rtol=1e-7, atol=1e-9)


def test_downdate_forgets_in_every_density_as_if_the_samples_had_never_been(tmp_path):
    model, (x, y), (more, labels) = network(), blobs(300), blobs(90, seed=3)
    expected = ddu.DDU(model).fit([(x, y)]).score
    ddu.DDU(model).fit([(torch.cat([x, more]), torch.cat([y, labels]))]).save(tmp_path, moments=True)
    loaded = ddu.load(tmp_path, model)
    assert isinstance(loaded, ddu.DDU)
    batch = loaded.tap(more)._replace(labels=labels)
    loaded.downdate(batch)
    assert loaded.score is not None
    assert expected is not None
    for mine, theirs in zip(loaded.score.densities, expected.densities, strict=True):
        for name, tensor in theirs.state_tensors().items():
            torch.testing.assert_close(mine.state_tensors()[name], tensor, rtol=1e-6, atol=1e-6)
    z = loaded.tap(X)
    torch.testing.assert_close(
        loaded.score.values(z.features, z.logits), expected.values(z.features, z.logits), rtol=1e-4, atol=1e-4
    )
    ddu.DDU(model).fit([(x, y)]).save(tmp_path)
    without = ddu.load(tmp_path, model)
    assert isinstance(without, ddu.DDU)
    with pytest.raises(NotSupportedError, match="was loaded without its moments"):
        without.downdate(batch)


def test_samples_that_were_not_seen_are_forgotten_by_no_density():
    detector = ddu.DDU(network()).fit([blobs(60)])
    assert detector.score is not None
    x, y = blobs(60)
    before = detector.predict(X).epistemic
    batch = detector.tap(x)
    # The first density has seen these features, and the second one has not
    strange = torch.cat([batch.features[:, :8], 50 * batch.features[:, 8:].flip(0)], 1)
    rows = torch.arange(0, 30, 3)
    with pytest.raises(FeatureError, match="were not among them"):
        detector.downdate(batch._replace(features=strange[rows], logits=batch.logits[rows], labels=y[rows]))
    with pytest.raises(LabelError) as caught:
        detector.downdate(batch._replace(labels=y))
    assert str(caught.value) == (
        "Class 0 has 20 samples, of which 0 would be left, and a density needs at least 2: forget fewer, or fit again "
        "without this class."
    )
    with pytest.raises(FewSamplesWarning):  # an error under pytest: too few samples are left to prepare the scorer
        detector.downdate(detector.tap(x[:50])._replace(labels=y[:50]))
    with pytest.raises(
        LabelError, match=r"^This batch has no labels: give them by batch\._replace\(labels=labels\)\.$"
    ):
        detector.downdate(batch)
    assert [density.counts_.tolist() for density in detector.score.densities] == [[20, 20, 20]] * 3
    torch.testing.assert_close(detector.predict(X).epistemic, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("features", ["stages", lambda x: x, ["0", "4"]], ids=["stages", "callable", "names"])
def test_a_loaded_sum_is_the_same_sum(features, tmp_path):
    model = network()
    detector = calibrated(model, features=features, seed=7)
    detector.save(tmp_path)
    given = {"features": features} if callable(features) else {}
    loaded = ddu.load(tmp_path, copy.deepcopy(model), **given)
    assert isinstance(loaded, ddu.DDU)
    mine, theirs = detector.predict(X), loaded.predict(X)
    assert torch.equal(mine.epistemic, theirs.epistemic)
    assert mine.parts is not None
    assert theirs.parts is not None
    assert all(torch.equal(theirs.parts[name], part) for name, part in mine.parts.items())
    assert (loaded.seed, loaded.epistemic_threshold) == (7, detector.epistemic_threshold)
    again = loaded.calibrate([blobs(400, seed=1)], false_alarm_rate=0.05)
    assert again.epistemic_threshold == pytest.approx(detector.epistemic_threshold, rel=1e-6)
