"""Detectors around the network of one run."""

import shutil

import numpy as np
import pytest

from ddu.detectors import find_method
from ddu.errors import InputError
from ddu.experiments import Evaluation, summarise, write_report
from ddu.results import RowFile
from ddu.runs import Run, RunSpec, train_run
from ddu.training import RECIPES

from .moons import lasting, write_plane, write_points

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning")


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    return write_plane(tmp_path_factory.mktemp("data"))


def trained(folder, method="ddu", *, lr=1e-3, alone=False) -> Run:
    recipe = RECIPES["two_moons"].with_changes(epochs=1, lr=lr)
    options = find_method(method).network.options
    spec = RunSpec("resffn2_16", "two_moons", recipe, None if alone else method, seed=2, limit=1500, options=options)
    run = train_run(spec, folder)
    assert run is not None
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "moons")


def test_the_usual_detectors_are_measured_on_one_network(run, plane):
    rows = Evaluation(run, (plane,)).measure(command="ddu evaluate")
    assert list(dict.fromkeys(row.detector for row in rows)) == ["ddu", "softmax", "energy", "mahalanobis"]
    assert {(row.status, row.network, row.seed, row.command) for row in rows} == {
        ("ok", "resffn2_16+sn", 2, "ddu evaluate")
    }
    assert RowFile(run.folder / "rows.csv").read() == rows
    accuracy = {row.value for row in rows if row.metric == "accuracy"}
    assert accuracy == {run.metrics["test_accuracy"]}  # one network
    (alarms,) = (row.value for row in rows if (row.detector, row.metric) == ("ddu", "false_alarm_rate"))
    assert alarms == run.metrics["test_false_alarm_rate"]


def test_what_is_in_the_file_is_not_measured_again(run, plane, tmp_path):
    said: list[str] = []
    first = Evaluation(run, (plane,), ("softmax",)).measure(tmp_path / "rows.jsonl", say=said.append)
    both = Evaluation(run, (plane,), ("softmax", "knn")).measure(tmp_path / "rows.jsonl", say=said.append)
    assert said == ["Measure softmax", "Measure knn"]
    assert both[: len(first)] == first
    assert Evaluation(run, (plane,), ("knn",)).measure(tmp_path / "rows.jsonl") == both[len(first) :]


@pytest.mark.filterwarnings("ignore::ddu.errors.LabelWarning")  # it is hardly trained
@pytest.mark.parametrize("method", ["duq", "sngp"])
def test_a_network_with_another_head_is_asked_by_its_own_detector(plane, tmp_path, method):
    rows = Evaluation(trained(tmp_path / "run", method), (plane,)).measure()
    assert {(row.detector, row.status) for row in rows} == {(method, "ok")}


@pytest.mark.filterwarnings("ignore::ddu.errors.LabelWarning")
@pytest.mark.parametrize(
    ("method", "detectors"), [("duq", ("duq",)), ("ddu", ("ddu", "softmax", "energy", "mahalanobis"))]
)
def test_a_network_that_was_trained_alone_is_asked_by_what_its_head_is_for(plane, tmp_path, method, detectors):
    """Such as those of a comparison."""
    assert Evaluation(trained(tmp_path / "run", method, alone=True), (plane,)).methods == detectors


def test_an_ensemble_is_no_business_of_one_run(run, plane):
    with pytest.raises(InputError) as caught:
        Evaluation(run, (plane,), ("softmax", "ensemble_mi")).measure()
    assert str(caught.value) == "ensemble_mi needs several networks, and a run has one: `ddu compare` trains them."


def test_a_detector_that_does_not_fit_the_network_is_refused_at_once(run, plane, tmp_path):
    with pytest.raises(InputError, match=r"^This detector needs a network with one RBFHead"):
        Evaluation(run, (plane,), ("softmax", "duq")).measure(tmp_path / "rows.csv")
    assert not (tmp_path / "rows.csv").exists()


def test_the_training_data_is_not_out_of_distribution(run, tmp_path):
    with pytest.raises(InputError) as caught:
        Evaluation(run, ("two_moons",), ("softmax",)).measure(tmp_path / "rows.csv")
    assert str(caught.value) == "two_moons is the training data, and cannot be out of distribution as well."
    assert not (tmp_path / "rows.csv").exists()


def test_what_was_said_of_other_sets_before_is_kept(run, plane, tmp_path):
    near = write_points(tmp_path / "near.npz", np.random.default_rng(1).uniform(-2, 2, (50, 2)))
    file = tmp_path / "rows.csv"
    for ood in (plane, near):
        Evaluation(run, (ood,), ("softmax",)).measure(file)
    names = {path.name for path in write_report(file)}
    assert {"roc-plane.png", "roc-near.png"} < names


def test_another_run_of_the_same_name_has_rows_of_its_own(run, plane, tmp_path):
    other, file = trained(tmp_path / "other", lr=1e-2), tmp_path / "shared.csv"
    first = Evaluation(run, (plane,), ("softmax",)).measure(file)
    second = Evaluation(other, (plane,), ("softmax",)).measure(file)
    assert {row.run for row in first} == {run.fingerprint}
    assert {row.run for row in second} == {other.fingerprint}
    assert RowFile(file).read() == first + second
    assert Evaluation(run, (plane,), ("softmax",)).measure(file) == first
    alone = Evaluation(other, (plane,), ("softmax",)).measure(tmp_path / "other.csv")
    assert lasting(second) == lasting(alone)
    assert lasting(second) != lasting(first)
    (table,) = summarise(first + second)
    names = [f"resffn2_16+sn (run {one.fingerprint})" for one in (run, other)]
    assert [table.network_name(line) for line in table.lines] == names
    assert len(list((tmp_path / "shared" / "scores").iterdir())) == 2


def test_rows_alone_as_in_a_fresh_clone_are_not_measured_again_and_keep_their_figures(run, plane, tmp_path):
    evaluation, file = Evaluation(run, (plane,), ("softmax",)), tmp_path / "rows.csv"
    first = evaluation.measure(file)
    (figure,) = (path for path in evaluation.write_page(file) if path.name == "roc-plane.png")
    shutil.rmtree(tmp_path / "scores")
    said: list[str] = []
    assert evaluation.measure(file, say=said.append) == first
    assert said == []
    assert figure not in evaluation.write_page(file)
    assert figure.is_file()


def test_the_page_has_the_rows_of_this_run(run, plane, tmp_path):
    other, file = trained(tmp_path / "other", lr=1e-2), tmp_path / "rows.csv"
    for one in (run, other):
        Evaluation(one, (plane,), ("energy",)).measure(file)
    Evaluation(run, (plane,), ("energy",)).write_page(file)
    table = (tmp_path / "table.csv").read_text()
    assert run.fingerprint in table
    assert other.fingerprint not in table
