"""A detector that fails is a row that says so, and does not spoil the others."""

import pytest
import torch

from ddu.detectors import DDU, Energy, Softmax
from ddu.experiments.measure import Recorder, Subject
from ddu.experiments.trained import TrainedNetwork
from ddu.results import RowFile
from ddu.runs import RunSpec, train_run
from ddu.training import RECIPES

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning")


class NoPrediction(Energy):
    """Can be measured, but not timed."""

    def predict(self, x):
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


def test_a_detector_that_cannot_be_timed_fails_alone(network, tmp_path):
    rows = recorded(network, tmp_path, {"broken": NoPrediction, "softmax": Softmax})
    (failure,) = (row for row in rows if row.status == "failed")
    assert (failure.detector, failure.error) == ("broken", "RuntimeError: not today")
    assert {row.detector for row in rows if row.metric == "training_seconds"} == {"softmax"}
