"""Several processes that fit one detector, each from its shard."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from ddu import distributed
from ddu.detectors import BaseDetector
from ddu.detectors.labels import Agreement
from ddu.detectors.passes import Pass
from ddu.distributed import Ranks
from ddu.errors import InputError, NotSupportedError
from ddu.features import FeatureTap
from tests.ranks import DETECTORS, HELD_OUT, SAMPLES, SHARDS, batches, everything, fitted, learned, network, samples

SCRIPT = Path(__file__).parent / "ranks.py"


def start(case, folder, size):
    """Ranks without a launcher, so that nobody stops the others when one dies."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    return [
        subprocess.Popen(
            [sys.executable, SCRIPT, case, folder],
            env=os.environ | where | {"RANK": str(rank), "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def ended(processes, seconds):
    """The exit status and the last line of each process, all within so many seconds of the first end."""
    while all(process.poll() is None for process in processes):
        time.sleep(0.1)
    until, found = time.monotonic() + seconds, []
    for process in processes:
        _, errors = process.communicate(timeout=until - time.monotonic())
        found.append((process.returncode, (errors.strip().splitlines() or [""])[-1]))
    return found


def assert_same(found, expected):
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        # Some detectors score in single precision, whatever the model's
        tolerance = 1e-6 if key.startswith("calibration.") else 1e-9
        torch.testing.assert_close(found[key], value, rtol=tolerance, atol=tolerance, msg=key)


@pytest.mark.parametrize("name", DETECTORS)
def test_parts_learn_what_one_pass_learns(name):
    whole, together = (DETECTORS[name](network(name)) for _ in range(2))
    x, y = samples(SAMPLES, 1, ordered=True)
    parts = [together.learn_part(batches(x, y, rows), expected_samples=SAMPLES) for rows in SHARDS["even"]]
    assert not together.is_fitted
    assert_same(learned(together.fit_parts(parts)), learned(whole.fit(batches(x, y, range(SAMPLES)))))
    assert together._inputs.sample.seen == whole._inputs.sample.seen == SAMPLES
    x, y = samples(HELD_OUT, 2, ordered=True)
    thirds = [range(0, 100), range(100, 100), range(100, 300)]
    together.calibrate_parts([together.judge_part(batches(x, y, rows)) for rows in thirds], false_alarm_rate=0.05)
    assert_same(learned(together), learned(whole.calibrate(batches(x, y, range(HELD_OUT)), 0.05)))


@pytest.mark.parametrize(("samples", "size"), [(10, 3), (2, 3), (0, 2), (7, 1)])
def test_shares_are_all_rows_in_order(samples, size):
    shares = []
    for rank in range(size):
        ranks = Ranks()
        ranks.rank, ranks.size = rank, size
        shares.append(ranks.share(samples))
    assert [row for share in shares for row in share] == list(range(samples))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_process_that_nobody_launched_is_alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with distributed.join() as ranks:
        assert (ranks.rank, ranks.size, ranks.is_main) == (0, 1, True)
        assert ranks.merged(3, max) == 3


@pytest.mark.slow
def test_three_processes_learn_what_one_learns(tmp_path):
    expected = everything(Ranks())
    assert [status for status, _ in ended(start("fit", tmp_path, 3), 300)] == [0, 0, 0]
    found = [safetensors.torch.load_file(tmp_path / f"{rank}.safetensors") for rank in range(3)]
    assert_same(found[0], expected)
    for name, value in found[0].items():
        assert all(torch.equal(other[name], value) for other in found), f"{name} is the same on all ranks"


@pytest.mark.slow
def test_the_other_rank_fails_with_the_reason_of_one_that_fails(tmp_path):
    other, failing = ended(start("raises", tmp_path, 2), 60)
    assert failing == (1, "[rank1]: ddu.errors.LabelError: Class 7 has 1 sample.")
    assert other == (
        1,
        "[rank0]: ddu.errors.RankError: Rank 0 of 2 stopped, because rank 1 failed: LabelError: Class 7 has 1 sample. "
        "Start the same command again: nothing was written.",
    )


@pytest.mark.slow
def test_the_other_rank_stops_its_pass_within_a_minute_of_a_kill(tmp_path):
    other, killed = ended(start("killed", tmp_path, 2), 60)
    assert killed == (-9, "")
    assert other == (
        1,
        "[rank0]: ddu.errors.RankError: Rank 0 of 2 stopped, because rank 1 has given no sign of life for 20 seconds: "
        "it was killed, perhaps for lack of memory, or its host is gone. Start the same command again: nothing was "
        "written.",
    )


def test_what_checks_know_of_parts_is_what_they_know_of_the_whole():
    images = torch.rand(90, 3, 8, 8) * torch.arange(1, 91)[:, None, None, None]
    logits, labels = torch.randn(90, 4), torch.arange(90) % 4
    whole, merged = Pass(), Pass()
    for seen, parts in ((whole, [range(90)]), (merged, [range(20), range(20, 21), range(21, 90)])):
        for rows in map(list, parts):
            agreement = Agreement(4)
            agreement.add(logits[rows], labels[rows])
            part = Pass(agreement)
            part.inputs.add(images[rows])
            seen.merge(part)
        seen.merge(Pass())  # of a rank without samples
    assert merged.labels is not None
    assert whole.labels is not None
    assert merged.labels.hits == whole.labels.hits
    assert merged.labels.labels.tolist() == whole.labels.labels.tolist() == labels.bincount().tolist()
    assert merged.labels.predictions.tolist() == logits.argmax(1).bincount(minlength=4).tolist()
    assert merged.inputs.sample.seen == 90
    np.testing.assert_array_equal(merged.inputs.sample.hashes, whole.inputs.sample.hashes)
    pixels = images.double().transpose(0, 1).flatten(1).numpy()
    channels = merged.inputs.channels
    for found, expected in (
        (channels.mean, pixels.mean(1)),
        (channels.deviation, pixels.std(1)),
        (channels.least, pixels.min(1)),
        (channels.most, pixels.max(1)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-6)  # each image is summed up in single precision
    for name in ("mean", "deviation", "least", "most"):
        np.testing.assert_allclose(getattr(channels, name), getattr(whole.inputs.channels, name), rtol=1e-12)


def test_parts_without_any_batch_are_refused():
    detector = DETECTORS["ddu"](network("ddu"))
    with pytest.raises(InputError, match="The loader gave no batches, so there is nothing to fit"):
        detector.fit_parts([detector.learn_part([]), detector.learn_part([])])
    fitted_before = fitted("ddu", "even", Ranks())
    with pytest.raises(InputError, match="nothing to calibrate on"):
        fitted_before.calibrate_parts([fitted_before.judge_part([])])
    assert fitted_before.calibration is not None


def test_a_detector_that_needs_all_data_at_once_is_refused_in_parts():
    class AllAtOnce(BaseDetector):
        name = "all_at_once"

        def _learn(self, batches):
            self.rows = list(batches)

        def _evidence(self, batch):
            raise NotImplementedError

    detector = AllAtOnce(FeatureTap(network("ddu")), None)
    x, y = samples(30, 0, ordered=False)
    with pytest.raises(
        NotSupportedError, match="AllAtOnce learns from all of its training data at once: fit it in one"
    ):
        detector.learn_part(batches(x, y, range(30)))
