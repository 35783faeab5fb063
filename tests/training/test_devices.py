"""Two processes that train together, started by Lightning and by torchrun."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from ddu.detectors import find_method
from ddu.runs import RunSpec, train_run
from ddu.training import RECIPES

pytestmark = pytest.mark.slow

BEFORE = ["train", "--model", "resffn4_32", "--data", "two_moons", "--recipe", "two_moons"]
COMMAND = [*BEFORE, "--set", "epochs=2"]
SPEC = RunSpec("resffn4_32", "two_moons", RECIPES["two_moons"].with_changes(epochs=2))

LIGHTNING = [sys.executable, "-m", "ddu", *COMMAND, "--devices", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
TORCHRUN += ["--rdzv-endpoint", "localhost:0", "-m", "ddu"]


DUQ = replace(SPEC, method="duq", options=find_method("duq").network.options)


@pytest.mark.parametrize(
    ("command", "spec"),
    [(LIGHTNING, SPEC), ([*TORCHRUN, *COMMAND], SPEC), ([*TORCHRUN, *COMMAND, "--method", "duq"], DUQ)],
    ids=["lightning", "torchrun", "duq"],
)
def test_two_processes_train_the_network_that_one_would(command, spec, tmp_path):
    run = train_run(spec, tmp_path / "alone")
    assert run is not None
    alone = run.load_model().state_dict()
    folder = tmp_path / "run"
    command = [*command, "--accelerator", "cpu", "--output", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The run is in") == 1, "only one of the processes reports"
    assert json.loads((folder / "metrics.json").read_text())["epoch"] == 2
    assert len((folder / "history.csv").read_text().splitlines()) == 3
    together = safetensors.torch.load_file(folder / "model.safetensors")
    # Each batch is the same 64 points, in two halves: equal up to the order of the sums. Steps of Adam do not shrink
    # with the gradient, so they amplify the rounding.
    for name, expected in alone.items():
        torch.testing.assert_close(together[name], expected, rtol=1e-3, atol=1e-4)


def test_the_other_process_fails_within_a_minute_of_a_kill(tmp_path):
    """Without a launcher, so that nobody but the process itself can notice."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "ddu", *BEFORE, "--set", "epochs=100000", "--accelerator", "cpu"]
    first, second = (
        subprocess.Popen(
            [*command, "--output", tmp_path / "run"],
            env=os.environ | where | {"RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    )
    while not (tmp_path / "run/history.csv").exists():
        assert first.poll() is None, first.communicate()
        time.sleep(0.1)
    second.kill()
    _, errors = first.communicate(timeout=60)
    second.communicate()
    assert first.returncode == 1
    assert errors.strip().splitlines()[-1] == (
        "Training stopped, because another of the 2 processes is gone: its own message says why, unless it was killed, "
        "perhaps for lack of memory. The same command resumes after the last finished epoch."
    )
