"""Detectors around the network of one run."""

import numpy as np
import pytest

from ddu.experiments import evaluate, write_report
from ddu.errors import InputError
from ddu.results import RowFile
from ddu.runs import METHODS, RunConfig, train_run
from ddu.training import RECIPES

from .moons import COSTS, write_plane, write_points

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning")


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    return write_plane(tmp_path_factory.mktemp("data"))


def trained(folder, *, lr=1e-3, **options):
    recipe = RECIPES["two_moons"].with_changes(epochs=1, lr=lr)
    return train_run(RunConfig("resffn2_16", "two_moons", recipe, seed=2, limit=1500, options=options), folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "moons")


def test_the_usual_detectors_are_measured_on_one_network(run, plane):
    rows = evaluate(run, [plane], command="ddu evaluate")
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
    first = evaluate(run, [plane], ["softmax"], output=tmp_path / "rows.jsonl", say=said.append)
    both = evaluate(run, [plane], ["softmax", "knn"], output=tmp_path / "rows.jsonl", say=said.append)
    assert said == ["Measure softmax", "Measure knn"]
    assert both[: len(first)] == first
    assert evaluate(run, [plane], ["knn"], output=tmp_path / "rows.jsonl") == both[len(first) :]


@pytest.mark.filterwarnings("ignore::ddu.errors.LabelWarning")  # it is hardly trained
@pytest.mark.parametrize("method", ["duq", "sngp"])
def test_a_network_with_another_head_is_asked_by_its_own_detector(plane, tmp_path, method):
    rows = evaluate(trained(tmp_path / "run", **METHODS[method]), [plane])
    assert {(row.detector, row.status) for row in rows} == {(method, "ok")}


def test_an_ensemble_is_no_business_of_one_run(run, plane):
    with pytest.raises(InputError) as caught:
        evaluate(run, [plane], ["softmax", "ensemble_mi"])
    assert str(caught.value) == "ensemble_mi needs several networks, and a run has one: `ddu compare` trains them."


def test_a_detector_that_does_not_fit_the_network_is_refused_at_once(run, plane, tmp_path):
    with pytest.raises(InputError, match=r"^This detector needs a network with one RBFHead"):
        evaluate(run, [plane], ["softmax", "duq"], output=tmp_path / "rows.csv")
    assert not (tmp_path / "rows.csv").exists()


def test_the_training_data_is_not_out_of_distribution(run, tmp_path):
    with pytest.raises(InputError) as caught:
        evaluate(run, ["two_moons"], ["softmax"], output=tmp_path / "rows.csv")
    assert str(caught.value) == "two_moons is the training data, and cannot be out of distribution as well."
    assert not (tmp_path / "rows.csv").exists()


def test_what_was_said_of_other_sets_before_is_kept(run, plane, tmp_path):
    near = write_points(tmp_path / "near.npz", np.random.default_rng(1).uniform(-2, 2, (50, 2)))
    file = tmp_path / "rows.csv"
    for ood in (plane, near):
        evaluate(run, [ood], ["softmax"], output=file)
    names = {path.name for path in write_report(file)}
    assert {"roc-plane.png", "roc-near.png"} < names


def test_another_run_of_the_same_name_is_refused(run, plane, tmp_path):
    other, file = trained(tmp_path / "other", lr=1e-2), tmp_path / "shared.csv"
    first = evaluate(run, [plane], ["softmax"], output=file)
    with pytest.raises(InputError) as caught:
        evaluate(other, [plane], ["softmax"], output=file)
    assert str(caught.value) == (
        f"{file} has rows of softmax on resffn2_16+sn, seed 2, of another run on two_moons: its recipe, limit or "
        "options differ from this one's. Choose another file."
    )
    assert RowFile(file).read() == first
    # Another file in the same folder is nobody else's
    own = evaluate(other, [plane], ["softmax"], output=tmp_path / "other.csv")
    assert [row.value for row in own] != [row.value for row in first]
    # Rows without scores do not tell whose they are, and are not taken over
    (tmp_path / "shared" / "scores" / "softmax-on-resffn2_16+sn-two_moons-seed2.npz").unlink()
    again = {row.key: row.value for row in evaluate(other, [plane], ["softmax"], output=file)}
    lasting = [row for row in own if row.metric not in COSTS]
    assert [again[row.key] for row in lasting] == [row.value for row in lasting]
