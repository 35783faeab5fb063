"""Held-out data that was in the training pass is noticed, and new data is left alone."""

import numpy as np
import pytest
import torch

import ddu
from ddu.detectors import Mahalanobis
from ddu.detectors.inputs import InputSample
from ddu.errors import OverlapWarning
from tests.detectors.blobs import blob_classifier, blobs


@pytest.fixture
def model():
    return blob_classifier()


@pytest.mark.parametrize("make", [ddu.DDU, Mahalanobis])
def test_calibrating_on_training_data_is_warned_of(model, make):
    x, y = blobs()
    detector = make(model).fit([(x[:150], y[:150]), (x[150:].numpy(), y[150:].numpy())])
    with pytest.warns(OverlapWarning) as caught:
        detector.calibrate([(x, y)], 0.1)
    assert str(caught[0].message).startswith(
        "About 100% of the 300 held-out inputs were in the training pass (300 of 300 that were compared). "
    )
    assert caught[0].filename == __file__
    with pytest.warns(OverlapWarning, match="^About 50% of the 300 held-out inputs"):
        detector.calibrate([(torch.cat([x[:150], blobs(seed=1)[0][150:]]), y)], 0.1)
    with pytest.warns(OverlapWarning):
        detector.calibrate(x, 0.1, labels=False)


def test_new_data_and_the_papers_threshold_are_not_warned_of(model):
    detector = ddu.DDU(model).fit([blobs()])
    detector.calibrate([blobs(seed=1)], 0.1)
    detector.calibrate([blobs()], 0.1, threshold="training_quantile")


def test_a_warning_that_is_made_an_error_leaves_the_calibration_as_it_was(model):
    detector = ddu.DDU(model).fit([blobs()]).calibrate([blobs(seed=1)], 0.1)
    before = detector.calibration
    with pytest.raises(OverlapWarning):
        detector.calibrate([blobs()], 0.2)
    assert detector.calibration is before


@pytest.mark.parametrize("values", [3, 6])
def test_rows_of_few_values_that_recur_by_nature_are_not_warned_of(values):
    """Of 4 columns of 3 or 6 values there are 81 or 1,296 rows."""
    generator = torch.Generator().manual_seed(0)
    train, new = InputSample(), InputSample()
    for sample in (train, new):
        for _ in range(4):
            sample.add(torch.randint(0, values, (250, 4), generator=generator).float())
    assert (int(new.copies.sum()), new.seen) == (1000, 1000)
    train.warn_of_overlap(new)
    merged = InputSample()
    merged.merge(new)
    merged.merge(new)
    assert np.array_equal(merged.copies, 2 * new.copies)


def test_a_few_copies_among_the_inputs_count_once(model):
    x, y = blobs()
    detector = ddu.DDU(model).fit([(x, y)])
    new, _ = blobs(seed=1)
    new[:20] = x[0]  # a blank image, say
    detector.calibrate([(new, y)], 0.1)
    x[:20] = x[0]
    with pytest.warns(OverlapWarning, match=r"281 of 281 that were compared"):
        detector.calibrate([(x, y)], 0.1)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 1.0])
def test_a_share_is_found_in_memory_that_does_not_grow(share):
    generator = np.random.default_rng(0)
    train, new = (generator.random((20_000, 3, 5), dtype=np.float32) for _ in range(2))
    known = int(share * len(new))
    new[:known] = train[:known]
    samples = InputSample(), InputSample()
    for sample, data in zip(samples, (train, new), strict=True):
        for part in np.array_split(generator.permutation(data), 40):
            sample.add(torch.from_numpy(part))
        assert len(sample.hashes) == 4096
    if share < 0.1:
        samples[0].warn_of_overlap(samples[1])
        return
    with pytest.warns(OverlapWarning) as caught:
        samples[0].warn_of_overlap(samples[1])
    found = float(str(caught[0].message).split()[1].rstrip("%")) / 100
    assert found == pytest.approx(share, abs=0.08)  # of about 4,000 that are compared


def test_few_held_out_inputs_of_many_are_compared_by_the_hashes_that_both_samples_keep():
    """The smallest 4,096 of 50,000 hashes reach as far as about 25 of 300."""
    train, held_out = InputSample(), InputSample()
    x = torch.rand(50_000, 4, generator=torch.Generator().manual_seed(0))
    train.add(x)
    held_out.add(x[:300])
    with pytest.warns(OverlapWarning, match="^About 100% of the 300 held-out inputs"):
        train.warn_of_overlap(held_out)
