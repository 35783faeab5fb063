"""Saving again replaces a detector in one step, for every reader and after every crash."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import ddu
from tests.artifacts.files import batches


def test_a_new_version_replaces_the_old_one_and_leaves_nothing_behind(folder, newer, model):
    (folder / ".detector.safetensors.0123456789abcdef.tmp").write_text("of a process that was killed")
    (folder / "README").write_text("mine")
    newer.save(folder)
    assert ddu.load(folder, model).class_names is None
    assert sorted(path.name for path in folder.iterdir()) == ["README", "detector.safetensors"]


def test_a_crash_while_saving_leaves_the_old_detector(folder, detector, newer, model, monkeypatch):
    x = batches(seed=2)[0][0]

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr("os.fsync", full_disk)
        with pytest.raises(OSError, match="No space left on device"):
            newer.save(folder)
    assert torch.equal(ddu.load(folder, model).predict(x).epistemic, detector.predict(x).epistemic)
    assert not list(folder.glob(".*"))
    newer.save(folder)
    assert torch.equal(ddu.load(folder, model).predict(x).epistemic, newer.predict(x).epistemic)


def test_threads_that_save_and_load_at_the_same_time_do_not_disturb_each_other(tmp_path, detector, newer, model):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    scores = {one.class_names: one.predict(x).epistemic for one in (detector, newer)}
    detector.save(tmp_path)

    def save_or_load(turn):
        if turn % 3 < 2:
            (detector, newer)[turn % 3].save(tmp_path)
        else:
            loaded = ddu.load(tmp_path, model)
            assert torch.equal(loaded.predict(x).epistemic, scores[loaded.class_names])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(save_or_load, range(60)))
    assert [path.name for path in tmp_path.iterdir()] == ["detector.safetensors"]


def run_savers(*arguments):
    run = subprocess.run(
        [sys.executable, "-W", "error", Path(__file__).with_name("savers.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_thousand_saves_and_loads_by_processes_and_threads_are_all_whole(tmp_path):
    run_savers("crowd", tmp_path / "detector", 5, 4, 200)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_a_process_killed_while_saving_leaves_one_whole_detector(tmp_path):
    halfway, outcomes, files = map(int, run_savers("kills", tmp_path / "detector", 20).split())
    assert halfway > 0, "no kill came while files were being written: the test shows nothing"
    assert outcomes == 2
    assert files == 1
