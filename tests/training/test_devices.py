"""Two processes that train together, started by Lightning and by torchrun."""

import json
import subprocess
import sys

import pytest
import safetensors.torch
import torch

from ddu.runs import RunSpec, train_run
from ddu.training import RECIPES

pytestmark = pytest.mark.slow

COMMAND = ["train", "--model", "resffn4_32", "--data", "two_moons", "--recipe", "two_moons", "--set", "epochs=2"]
SPEC = RunSpec("resffn4_32", "two_moons", RECIPES["two_moons"].with_changes(epochs=2))

LIGHTNING = [sys.executable, "-m", "ddu", *COMMAND, "--devices", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
TORCHRUN += ["--rdzv-endpoint", "localhost:0", "-m", "ddu", *COMMAND]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    run = train_run(SPEC, tmp_path_factory.mktemp("alone") / "run")
    assert run is not None
    return run.load_model().state_dict()


@pytest.mark.parametrize("command", [LIGHTNING, TORCHRUN], ids=["lightning", "torchrun"])
def test_two_processes_train_the_network_that_one_would(command, alone, tmp_path):
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
