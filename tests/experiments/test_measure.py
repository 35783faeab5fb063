"""A detector that fails is a row that says so and does not spoil the others; costs are those of a thousand inputs."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from ddu.detectors import DDU, Energy, Softmax
from ddu.errors import InputError
from ddu.experiments import measure_cost
from ddu.experiments.measure import Recorder, Subject
from ddu.experiments.trained import TrainedNetwork
from ddu.results import RowFile
from ddu.runs import RunSpec, train_run
from ddu.training import RECIPES

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning")


class NoPrediction(Energy):
    """Can be measured, but not timed."""

    def predict(self, x, **options):
        raise RuntimeError("not today")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    spec = RunSpec("resffn2_16", "two_moons", RECIPES["two_moons"].with_changes(epochs=1), method=None)
    run = train_run(spec, tmp_path_factory.mktemp("runs") / "moons", progress=False)
    assert run is not None
    run_model = run.load_model()
    run_model.unused = torch.nn.Linear(2, 2)  # a layer that never runs
    found = TrainedNetwork(run, run.load_data()._asdict())
    found.__dict__["model"] = run_model
    return found


def recorded(network, tmp_path, makers):
    recorder = Recorder(RowFile(tmp_path / "rows.csv"), tmp_path / "scores", [], 0.01)
    subjects = {Subject(name, "resffn2_16", "two_moons", 0, "12ab"): make for name, make in makers.items()}
    recorder.record(network, subjects)
    return recorder.rows.read()


def test_a_detector_whose_layer_never_runs_fails_alone(network, tmp_path):
    makers = {"bad": lambda model: DDU(model, features="unused"), "softmax": Softmax, "ddu": DDU}
    rows = recorded(network, tmp_path, makers)
    assert {row.detector for row in rows if row.status == "failed"} == {"bad"}
    assert {row.detector for row in rows if row.metric == "seconds_per_thousand"} == {"softmax", "ddu"}


def test_what_lacks_rows_is_found_in_one_reading_of_the_file(network, tmp_path, monkeypatch):
    recorded(network, tmp_path, {"broken": NoPrediction, "softmax": Softmax})
    recorder = Recorder(RowFile(tmp_path / "rows.csv"), tmp_path / "scores", ["flat"], 0.01)
    names = ("softmax", "broken", "ddu")
    softmax, broken, ddu = (Subject(name, "resffn2_16", "two_moons", 0, "12ab") for name in names)
    readings, read = [], RowFile.read
    monkeypatch.setattr(RowFile, "read", lambda file: readings.append(file) or read(file))
    found = recorder.missing([softmax, broken, ddu])
    assert found == {softmax: ["flat"], broken: ["test", "flat"], ddu: ["test", "flat"]}
    assert replace(recorder, ood=[]).missing([softmax]) == {}
    assert len(readings) == 2


def test_a_detector_that_cannot_be_timed_fails_alone(network, tmp_path):
    rows = recorded(network, tmp_path, {"broken": NoPrediction, "softmax": Softmax})
    (failure,) = (row for row in rows if row.status == "failed")
    assert (failure.detector, failure.error) == ("broken", "RuntimeError: not today")
    assert {row.detector for row in rows if row.metric == "training_seconds"} == {"softmax"}


def test_seconds_are_scaled_to_a_thousand_inputs():
    calls = []

    def slow(inputs: torch.Tensor) -> None:
        calls.append(len(inputs))
        time.sleep(0.01)

    cost = measure_cost(slow, torch.zeros(200, 3), repeats=2)
    assert calls == [200] * 4  # to warm up, for memory, twice for time
    # Sleeping may take longer than asked for, never less
    assert 0.05 <= cost["seconds_per_thousand"] < 1


@pytest.mark.parametrize("allocate", [lambda n: torch.ones(n), lambda n: np.ones(n, dtype=np.float32)])
def test_memory_is_the_peak_whoever_allocated_it(allocate):
    def hungry(inputs: torch.Tensor) -> int:
        first = allocate(10_000_000)  # 40 MB
        second = allocate(5_000_000)  # 20 MB, beside it; what comes after they are freed may use their memory or not
        return len(first) + len(second)

    allocate(30_000_000)  # an earlier peak does not count
    cost = measure_cost(hungry, torch.zeros(500, 1), repeats=1)
    if "megabytes_per_thousand" not in cost:
        pytest.skip("this system cannot tell the peak of memory")
    assert cost["megabytes_per_thousand"] == pytest.approx(120, rel=0.1)


def test_nothing_to_measure_is_refused():
    with pytest.raises(InputError) as caught:
        measure_cost(len, torch.zeros(0, 3))
    assert str(caught.value) == "inputs must be non-empty and repeats at least 1. Got 0 inputs and 3 repeats."
