"""Ways to do jobs: each job once, its result with its place, and one that fails stops no other."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch

from ddu.engines import Engine, OneByOne, Processes, _visible_cards, current_engine, using
from ddu.errors import InputError
from tests.small_networks import CLASSES, draw_images, write_module


def third(job):
    """A third of a number, which 3 does not have."""
    if job == 3:
        raise InputError("not 3")
    return job / 3


def check(engine: Engine):
    results = dict(engine.map(third, [1, 3, 6]))
    assert (results[0], results[2]) == (1 / 3, 2.0)
    assert isinstance(results[1], InputError)
    assert str(results[1]) == "not 3"
    assert list(engine.map(third, [])) == []


def test_jobs_are_done_one_by_one():
    check(OneByOne())


@pytest.mark.slow
def test_jobs_are_done_by_processes():
    check(Processes(2))


def count_threads(job):
    """How many threads a worker has."""
    return torch.get_num_threads()


@pytest.mark.slow
def test_processes_share_the_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        assert dict(Processes(2).map(count_threads, [0, 1, 2])) == {0: 3, 1: 3, 2: 3}
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_who_wants_no_more_results_does_not_wait_for_those_that_are_on_their_way():
    results = Processes(2).map(time.sleep, [0, 600, 600, 600])
    assert next(results) == (0, None)
    started = time.monotonic()
    results.close()
    assert time.monotonic() - started < 60
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("visible", "there", "expected"),
    [(None, 2, ["0", "1"]), ("3, 5", 2, ["3", "5"]), ("GPU-a,-1,7", 1, ["GPU-a"]), (None, 0, []), ("", 0, [])],
)
def test_visible_graphics_cards_are_those_that_cuda_may_use(visible, there, expected, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    assert _visible_cards() == expected


def card(folder):
    """The graphics cards that a worker sees; three workers wait for each other, so that each does one job."""
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < 3:
        time.sleep(0.05)
    return os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.slow
def test_processes_take_the_graphics_cards_in_turn(tmp_path, monkeypatch):
    """The cards are pretended: what is tested is what each worker would see of them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert sorted(cards for _, cards in Processes(3).map(card, [tmp_path] * 3)) == ["3", "3", "5"]


def test_a_command_chooses_the_engine_for_what_runs_inside():
    assert isinstance(current_engine(), OneByOne)
    with using(Processes(3)):
        assert current_engine() == Processes(3)
    assert isinstance(current_engine(), OneByOne)


def run(script, folder):
    """A program that has a cluster of two cores, in a process of its own."""
    start = "import ray\nray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)\n"
    path = os.pathsep.join([str(folder), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(script)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "RAY_worker_niceness": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_parts_count_once(tmp_path):
    """A detector is fitted by workers, of which one is killed in the middle of a pass: it is that of one process."""
    write_module(tmp_path)
    for name, seed in (("train", 1), ("held_out", 2)):
        images, labels = draw_images(400, seed=seed)
        np.savez(tmp_path / f"{name}.npz", x=images.numpy(), y=labels.numpy(), classes=np.array(CLASSES))
    run(
        """
        import os, signal, warnings
        from pathlib import Path
        import numpy as np
        from ddu import engines, fitting
        from ddu.engines import RayTasks, using
        from ddu.fitting import FitSpec, Passes, fit_detector
        from ddu.sources import open_source
        from tests.test_engines import check, third

        warnings.simplefilter("ignore")
        check(RayTasks(cpus=1))
        engines.ROWS = 50
        spec = FitSpec("user_models:with_preprocessing", "npz:train.npz", "npz:held_out.npz", false_alarm_rate=0.05)
        alone = fit_detector(spec, "alone", progress=False)

        class Fragile(Passes):
            def learn(self, rows):
                return self.once_killed("train", rows, super().learn(rows))

            def judge(self, rows):
                return self.once_killed("held_out", rows, super().judge(rows))

            def once_killed(self, name, rows, found):
                if rows.start == 200 and not os.path.exists(f"killed-{name}"):
                    Path(f"killed-{name}").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return found

        fitting.Passes = Fragile
        with using(RayTasks(cpus=1)):
            fit_detector(spec, "together", progress=False)
        assert os.path.exists("killed-train") and os.path.exists("killed-held_out")
        one, two = (open_source("user_models:with_preprocessing", detector=name) for name in ("alone", "together"))
        for mine, theirs in zip(one.detector.score.densities, two.detector.score.densities, strict=True):
            assert mine.counts_.tolist() == theirs.counts_.tolist()
        new = np.random.default_rng(0).integers(0, 256, (50, 12, 12), dtype=np.uint8)
        first, second = one.predict(new), two.predict(new)
        np.testing.assert_allclose(second.epistemic, first.epistemic, rtol=1e-5)
        np.testing.assert_array_equal(second.p_value, first.p_value)
        """,
        tmp_path,
    )


@pytest.mark.slow
def test_networks_and_curves_are_tasks_and_end_as_one_by_one(tmp_path):
    run(
        """
        from pathlib import Path
        import torch
        from ddu.engines import RayTasks, using
        from ddu.experiments.active_protocols import find_protocol
        from ddu.experiments.learning_curves import LearningCurves
        from ddu.experiments.training_pool import Job, train_networks
        from ddu.runs import RunSpec, load_run, train_run
        from ddu.training import RECIPES

        said = []
        recipe = RECIPES["two_moons"].with_changes(epochs=1)
        jobs = [Job(Path(f"run{seed}"), RunSpec("resffn4_32", "two_moons", recipe, seed=seed)) for seed in (0, 1)]
        curves = LearningCurves(find_protocol("digits", "cpu", until=30, epochs=1), ("random",), (0, 1))
        with using(RayTasks(cpus=1)):
            bad = Job(Path("bad"), RunSpec("resffn4_32", "two_moons", recipe, limit=1))
            failures = train_networks([*jobs, bad], say=said.append, progress=False)
            rows = curves.measure("active")
        assert list(failures) == [Path("bad")], failures
        assert said[0] == "Train 3 networks on the cluster" and len(said) == 4, said
        here = train_run(jobs[0].spec, "here", progress=False).load_model().state_dict()
        for name, weight in load_run(jobs[0].folder).load_model().state_dict().items():
            torch.testing.assert_close(weight, here[name])
        assert load_run(jobs[1].folder).spec.seed == 1
        assert {(row.seed, row.labels) for row in rows} >= {(0, 30), (1, 30)}
        alone = LearningCurves(curves.protocol, ("random",), (0,)).measure("alone")
        assert {(r.labels, r.value) for r in alone if r.metric == "accuracy"} == {
            (r.labels, r.value) for r in rows if r.metric == "accuracy" and r.seed == 0
        }
        """,
        tmp_path,
    )
