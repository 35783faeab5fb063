"""`ddu reproduce` as a user meets it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddu.engines import OneByOne, Processes, current_engine
from ddu.experiments import REPRODUCTIONS, Reproduction
from ddu.experiments.entropy_variance import EntropyVariance
from ddu.experiments.five_ensemble import FiveEnsemble
from ddu.experiments.reproduction import read_rows
from ddu.results import METRICS

NOISY = [name for name, metric in METRICS.items() if metric.noisy]


def test_the_list_has_every_name_and_what_it_shows(command):
    code, printed, _ = command("reproduce", "list")
    assert code == 0
    for name in REPRODUCTIONS:
        assert f" {name} " in printed


def test_a_plan_says_what_would_be_trained_and_runs_nothing(command, tmp_path):
    code, printed, _ = command(
        "reproduce", "entropy-variance", "--scale", "paper", "--plan", "-o", str(tmp_path / "out")
    )
    assert code == 0
    assert "entropy-variance: 1 seed, 30 new networks, ? core-hours" in printed
    assert "networks to train, and core-hours (hours of one CPU core)" in printed
    assert "trained on cifar10 against svhn" in printed
    (line,) = [line.split() for line in printed.splitlines() if "wide_resnet28_10+sn" in line]
    assert line == ["wide_resnet28_10+sn", "50,000", "350", "30", "30", "?"]
    assert "?: the throughput was not measured." in printed
    assert not (tmp_path / "out").exists()


def test_the_plan_of_all_adds_up(command):
    code, printed, _ = command("reproduce", "all", "--plan", "--seeds", "2")
    assert code == 0
    lines = [line.split() for line in printed.splitlines()]
    hours = [float(line[-2]) for line in lines if line and line[0].rstrip(":") in REPRODUCTIONS]
    assert len(hours) == len(REPRODUCTIONS)
    (total,) = [float(line[5]) for line in lines if line[:2] == ["In", "all:"]]
    assert total == pytest.approx(sum(hours), abs=0.005 * len(hours) + 0.005)


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_a_plan_can_be_read_on_eighty_columns(command, monkeypatch, scale):
    monkeypatch.setenv("COLUMNS", "80")
    _, printed, _ = command("reproduce", "all", "--scale", scale, "--plan")
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    labels = {work.key[1] for one in REPRODUCTIONS.values() for work in one.experiment(scale).work()}
    assert all(f" {label} " in printed for label in labels)


@pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")  # a network that hardly learns anything
def test_a_run_that_only_shows_that_the_code_runs_is_not_judged(command, tmp_path):
    code, printed, _ = command("reproduce", "objective-mismatch", "--scale", "smoke", "-o", str(tmp_path))
    assert code == 0
    folder = tmp_path / "objective-mismatch/smoke"
    said = "This scale only shows that the code runs: the claim is not judged."
    assert said in " ".join(printed.split())
    assert f"**{said}**" in (folder / "page.md").read_text()
    assert "holds" not in printed


def test_at_the_scale_cpu_what_is_smaller_and_the_verdict_with_its_parts_are_printed(command, tmp_path, monkeypatch):
    rows = read_rows(Path(__file__).parents[2] / "results/reproduction/entropy-variance/cpu")
    monkeypatch.setattr(EntropyVariance, "measure", lambda *_, **__: rows)
    monkeypatch.setattr(Reproduction, "write_page", lambda *_: [])
    code, printed, _ = command("reproduce", "entropy-variance", "-o", str(tmp_path))
    printed = " ".join(printed.split())
    assert code == 0
    assert "Smaller than the paper's: networks wide_resnet28_10+sn -> lenet; data cifar10 -> mnist;" in printed
    assert "epochs 50 -> 12. The claim: " in printed
    assert "It holds in part. Deviation between networks of the mean entropy: 0.135 nats" in printed


def has_processes(group):
    """Whether a process of a group is still there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_are_processes_of_this_machine(command, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(FiveEnsemble, "measure", lambda *_, **__: asked.append(current_engine()) or [])
    monkeypatch.setattr(Reproduction, "write_page", lambda *_: [])
    for workers in ([], ["--workers", "3"]):
        assert command("reproduce", "five-ensemble", *workers, "-o", str(tmp_path))[0] == 0
    assert asked == [OneByOne(), Processes(3)]


def test_workers_are_not_for_a_cluster(command, tmp_path):
    code, _, complaint = command("reproduce", "two-moons", "--workers", "2", "--engine", "ray", "-o", str(tmp_path))
    assert code == 1
    assert complaint.startswith("--workers is for --engine local: with --engine ray, --worker-cpus and --worker-gpus ")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ddu.errors.DDUWarning")  # networks that hardly learn anything
def test_workers_end_on_ctrl_c_and_the_same_command_resumes_to_the_rows_of_one_process(tmp_path):
    arguments = ["reproduce", "ood-cifar10", "--scale", "smoke", "-o", str(tmp_path), "--workers", "2"]
    run = [sys.executable, "-m", "ddu", *arguments]
    # A group of its own, as a terminal gives to a command: Ctrl-C reaches the workers as well
    process = subprocess.Popen(run, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("networks/*/metrics.json")) and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    deadline = time.monotonic() + 20
    while has_processes(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not has_processes(process.pid)
    trained = len(list(tmp_path.glob("networks/*/metrics.json")))
    assert trained < 5

    resumed = subprocess.run(run, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert f"Train {5 - trained} networks, 2 at a time" in resumed.stderr
    rows = read_rows(tmp_path / "ood-cifar10/smoke")
    alone = REPRODUCTIONS["ood-cifar10"].experiment("smoke").measure(tmp_path / "alone")

    def lasting(rows):
        return {row.key: row.value for row in rows if row.metric not in NOISY}

    assert lasting(rows) == lasting(alone)


def test_an_unknown_name_is_answered_with_the_closest(command):
    code, _, complaint = command("reproduce", "two-mons")
    assert code == 1
    assert complaint.startswith("There is no reproduction 'two-mons'. Did you mean 'two-moons'?")
