"""A comparison: whatever is missing is trained and measured, and nothing else."""

import csv
import multiprocessing
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import ddu
from ddu import data, provenance
from ddu.errors import InputError
from ddu.experiments import read_comparison, write_report
from ddu.metrics import expected_calibration_error
from ddu.results import RowFile, RowKey
from ddu.runs import load_run

from .moons import COSTS, lasting, moons, write_plane, write_points

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning")  # networks that get all points right

DETECTORS = [
    "ddu",
    "softmax",
    {"ddu": {"network": "softmax", "density": {"covariance": "shared"}}},
    "confidence",
    "energy",
    "mahalanobis",
    {"mahalanobis": {"perturbation": 0.01}},
    "relative_mahalanobis",
    {"ensemble_mi": {"members": 2}},
    {"ensemble_pe": {"members": 2}},
    {"ensemble_ee": {"members": 2}},
    "duq",
    "sngp",
    "sngp_mean_field",
    "knn",
    {"knn": {"k": 3}},
    "vim",
    "react",
    "odin",
]


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    return write_plane(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def everything(tmp_path_factory, plane):
    """Every detector in one comparison: the comparison, its folder, its rows and what was said."""
    comparison, folder = moons(plane, DETECTORS), tmp_path_factory.mktemp("comparison")
    said: list[str] = []
    rows = comparison.measure(folder, command="ddu compare these.yaml", progress=False, say=said.append)
    return comparison, folder, rows, said


def values(rows, detector, network, ood=None):
    return {row.metric: row.value for row in rows if (row.detector, row.network, row.ood) == (detector, network, ood)}


def test_every_detector_has_every_row(everything, plane):
    comparison, _, rows, _ = everything
    assert {row.status for row in rows} == {"ok"}
    assert len({(row.detector, row.network) for row in rows}) == len(DETECTORS)
    in_distribution = values(rows, "ddu", "resffn2_16+sn")
    assert in_distribution.keys() >= {"accuracy", "nll", "nll_uncalibrated", "brier", "ece", "ece_uncalibrated", "aurc"}
    assert in_distribution.keys() >= {"false_alarm_rate", *COSTS}
    assert values(rows, "ddu", "resffn2_16+sn", plane).keys() >= {"auroc", "aupr_out", "aupr_in", "fpr95", "aurc"}
    for contender in comparison.detectors:
        label = comparison.label(contender)
        assert values(rows, contender.name, label).keys() == in_distribution.keys()
        assert values(rows, contender.name, label, plane).keys() == values(rows, "ddu", "resffn2_16+sn", plane).keys()
    assert {row.command for row in rows} == {"ddu compare these.yaml"}
    assert {row.members for row in rows if row.detector.startswith("ensemble")} == {2}


def test_networks_are_trained_once_and_shared(everything):
    _, folder, _, said = everything
    trained = {"ddu-seed0", "softmax-seed0", "softmax-seed0-member1", "duq-seed0", "sngp-seed0"}
    assert {path.name for path in (folder / "networks").iterdir()} == trained
    assert sum(words.startswith("Train ") for words in said) == len(trained)


def test_networks_are_trained_without_a_detector_which_nobody_would_use(everything):
    _, folder, _, _ = everything
    for path in (folder / "networks").iterdir():
        assert load_run(path).spec.method is None
        assert not (path / "detector").exists()


def test_a_row_knows_its_run(everything):
    comparison, folder, rows, _ = everything
    by_network = {name: load_run(folder / "networks" / f"{name}-seed0") for name in comparison.networks}
    for contender in comparison.detectors:
        found = [row for row in rows if (row.detector, row.network) == (contender.name, comparison.label(contender))]
        run = by_network[contender.network]
        assert {row.reductions for row in found} == {run.reductions}
        (fingerprint,) = {row.run for row in found}
        assert (fingerprint == run.fingerprint) == (not contender.options)  # options decide the values, too
    assert {row.reductions for row in rows if row.detector == "ddu"} == {"samples 2,000 -> 1,500; epochs 150 -> 1"}
    assert {row.commit for row in rows} == {provenance.commit()}


def test_a_detector_that_was_left_out_for_a_while_may_not_come_back_with_other_options(tmp_path, plane):
    first, without = moons(plane, [{"ddu": {"name": "mine"}}, "energy"]), moons(plane, ["energy"])
    changed = moons(plane, [{"ddu": {"name": "mine", "density": {"covariance": "shared"}}}, "energy"])
    for comparison in (first, without):
        comparison.measure(tmp_path, progress=False)
    with pytest.raises(InputError, match=r"^The comparison in .* has density=None, and this one has density="):
        changed.measure(tmp_path, progress=False)


@pytest.mark.parametrize(
    ("detector", "needed"),
    [("energy", "99 held-out samples, there are"), ("ddu", "124 held-out samples, 99 for the threshold and 25 that")],
)
def test_too_few_held_out_samples_are_found_before_anything_is_trained(tmp_path, plane, detector, needed):
    with pytest.raises(InputError, match=rf"^A false-alarm rate of 0\.01 needs at least {needed}"):
        moons(plane, [detector], limit=400).measure(tmp_path / "few", progress=False)
    assert not (tmp_path / "few").exists()


def test_members_differ_in_weights_and_share_what_is_held_out(everything):
    _, folder, _, _ = everything
    first, second = (load_run(folder / "networks" / name) for name in ("softmax-seed0", "softmax-seed0-member1"))
    assert (first.load_data().validation.inputs == second.load_data().validation.inputs).all()
    assert (first.load_data().train.inputs == second.load_data().train.inputs).all()
    weights = [torch.cat([p.flatten() for p in run.load_model().parameters()]) for run in (first, second)]
    assert not torch.equal(*weights)


def test_values_are_those_of_a_detector_made_by_hand(everything, plane):
    _, folder, rows, _ = everything
    run = load_run(folder / "networks" / "ddu-seed0")
    sets, test = run.load_data(), run.load_data().test
    detector = ddu.DDU(run.load_model()).fit(data.loader(sets.train)).calibrate(data.loader(sets.validation), 0.01)
    known = detector.predict(torch.from_numpy(test.inputs))
    unknown = detector.predict(torch.from_numpy(data.load_ood(plane, test.info).inputs))
    scores = torch.cat([known.epistemic, unknown.epistemic])
    truth = [0] * len(known) + [1] * len(unknown)
    ours = values(rows, "ddu", "resffn2_16+sn", plane)
    assert ours["auroc"] == pytest.approx(roc_auc_score(truth, scores), abs=1e-6)
    assert ours["detection_rate"] == float((unknown.verdict == "out_of_distribution").mean())
    ours = values(rows, "ddu", "resffn2_16+sn")
    labels = torch.from_numpy(test.labels)
    assert ours["accuracy"] == float((known.label == labels).double().mean())
    assert ours["false_alarm_rate"] == float((known.verdict == "out_of_distribution").mean())
    assert ours["ece"] == pytest.approx(expected_calibration_error(known.probs, labels), abs=1e-6)
    assert ours["training_seconds"] > run.metrics["seconds"]


def test_an_ensemble_costs_what_its_members_cost(everything):
    _, folder, rows, _ = everything
    members = [load_run(folder / "networks" / name) for name in ("softmax-seed0", "softmax-seed0-member1")]
    cost = {name: values(rows, name, "resffn2_16")["training_seconds"] for name in ("softmax", "ensemble_mi")}
    assert cost["softmax"] > members[0].metrics["seconds"]
    assert cost["ensemble_mi"] > sum(member.metrics["seconds"] for member in members)


def test_a_finished_comparison_is_returned_as_it_is(everything):
    comparison, folder, rows, _ = everything
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "comparison.json"}
    said: list[str] = []
    assert comparison.measure(folder, progress=False, say=said.append) == rows
    assert said == []
    assert all(path.stat().st_mtime_ns == then for path, then in before.items() if path.is_file())


def test_the_report_has_tables_with_costs_as_ratios_and_figures(everything):
    _, folder, rows, _ = everything
    written = write_report(folder / "rows.csv")
    table = (folder / "table.md").read_text()
    for title in ("## Out of distribution", "## In distribution", "## Refusing", "## Cost"):
        assert title in table
    assert "A ratio of 1 is the cost of softmax on resffn2_16." in table
    training, reference = (values(rows, name, "resffn2_16")["training_seconds"] for name in ("ensemble_mi", "softmax"))
    (line,) = (line for line in table.split("## Cost")[1].splitlines() if line.startswith("| ensemble_mi |"))
    assert f" {training / reference:.3f} |" in line
    names = {path.name for path in written if path.suffix == ".png"}
    assert names >= {"roc-plane.png", "risk-coverage-two_moons.png", "risk-coverage-plane.png"}
    assert names >= {"scores-softmax.png", "reliability-softmax.png", "reliability-duq.png"}
    assert "reliability-energy.png" not in names  # its probabilities are the softmax's
    assert all(path.stat().st_size > 1000 for path in written)
    assert [path.name for path in written[:3]] == ["table.md", "table.csv", "table.tex"]
    assert (folder / "table.tex").read_text().count(r"\begin{tabular}") == 4
    with (folder / "table.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["detector"] == "ensemble_mi"]
    (ratio,) = (line["mean"] for line in lines if line["metric"] == "training_ratio")
    assert float(ratio) == training / reference


def test_detectors_and_sets_may_be_added_but_not_changed(plane, tmp_path):
    few = moons(plane, ["softmax"])
    rows = few.measure(tmp_path, progress=False)
    said: list[str] = []
    more = moons(plane, ["softmax", "energy"]).measure(tmp_path, progress=False, say=said.append)
    assert said == ["Measure energy on resffn2_16, seed 0"]
    assert more[: len(rows)] == rows
    for changed, message in [
        (
            moons(plane, ["softmax"], limit=1400),
            f"The comparison in {tmp_path} has limit=1500, and this one has limit=1400",
        ),
        (
            moons(plane, ["softmax"], recipe={"name": "two_moons", "epochs": 2}),
            f"The comparison in {tmp_path} has epochs=1, and this one has epochs=2",
        ),
        (
            moons(plane, [{"mahalanobis": {"perturbation": 0.1, "name": "softmax"}}]),
            f"The comparison in {tmp_path} has method=softmax, and this one has method=mahalanobis",
        ),
    ]:
        with pytest.raises(InputError) as caught:
            changed.measure(tmp_path, progress=False)
        assert str(caught.value) == f"{message}: use the same, or another folder."


def test_a_folder_with_other_things_is_left_alone(plane, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError) as caught:
        moons(plane, ["softmax"]).measure(tmp_path)
    assert str(caught.value) == f"{tmp_path} holds files that do not belong to a comparison: choose another folder."
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_one_killed_while_it_wrote_its_first_file_begins_again(plane, tmp_path):
    (tmp_path / ".comparison.json.0123456789abcdef.tmp").write_text("{")
    assert {row.status for row in moons(plane, ["softmax"]).measure(tmp_path, progress=False)} == {"ok"}


def test_mistakes_are_found_before_anything_is_trained(plane, tmp_path):
    nothing = write_points(tmp_path / "nothing.npz", np.empty((0, 2)))
    for comparison, message in [
        (moons(nothing, ["softmax"]), f"The set {nothing} is empty: there is nothing in it to be out of distribution."),
        (moons("two_moons", ["softmax"]), "two_moons is the training data, and cannot be out of distribution as well."),
        (moons(plane, ["softmax"], data="two_mons"), "There is no data set 'two_mons'."),
        (moons("svhm", ["softmax"]), "There is no data set 'svhm'."),
        (moons("digits", ["softmax"]), "cannot be shown as two_moons"),
        (moons(plane, ["softmax"], model="resfn2_16"), "There is no model 'resfn2_16'."),
        (moons(plane, ["softmax"], options={"depth": 3}), "resffn2_16 has no option 'depth'"),
        (moons(plane, [{"ddu": {"density": {"covarance": "full"}}}]), "A density has no option 'covarance'. Did you "),
        (moons(plane, [{"duq": {"network": "ddu"}}]), "This detector needs a network with one RBFHead"),
        (moons(plane, [{"vim": {"q": 3}}]), "ViM has no option 'q'"),
        (
            moons(plane, [{"ddu": {"density": "shared"}}]),
            "The 'density' parameter of DDU must be a GaussianDensity, or a mapping of its options such as "
            "{'covariance': 'shared'}. Got 'shared' instead.",
        ),
        (
            moons(plane, [{"ddu": {"density": {"covariance": "sharde"}}}]),
            "The 'covariance' parameter of GaussianDensity must be ",
        ),
        (
            moons(plane, [{"mahalanobis": {"perturbation": "x"}}]),
            "The 'perturbation' parameter of Mahalanobis must be a float of at least 0. Got 'x' instead.",
        ),
        (moons(plane, [{"mahalanobis": {"layers": ["nowhere"]}}]), "MLP has no layer 'nowhere'."),
        (
            moons(plane, [{"sngp": {"samples": 0}}]),
            "The 'samples' parameter of SNGP must be an integer of at least 1. Got 0 instead.",
        ),
        (moons(plane, [{"knn": {"kk": 3}}]), "knn kk=3 cannot be made of these options: "),
        (
            moons(plane, ["softmax"], model="resnet18"),
            "resnet18 takes images, and an input of two_moons has 2 numbers: ",
        ),
    ]:
        with pytest.raises(InputError) as caught:
            comparison.measure(tmp_path / "new")
        assert message in str(caught.value)
        assert not (tmp_path / "new").exists()


def test_what_fails_is_a_row_that_says_so_and_is_tried_again(plane, tmp_path):
    detectors = [{"knn": {"k": 10_000}}, "duq", "softmax"]
    broken = {"duq": {"recipe": {"lr": 1e30}}}
    said: list[str] = []
    for _ in range(2):
        rows = moons(plane, detectors, networks=broken).measure(tmp_path, progress=False, say=said.append)
        failed = {row.detector: row.error or "" for row in rows if row.status == "failed"}
        assert list(failed) == ["knn k=10000", "duq"]
        assert failed["knn k=10000"].startswith("ValueError: k=10000 exceeds the number of ID samples")
        assert failed["duq"].startswith("TrainingError: The loss became nan at step ")
        assert {row.detector for row in rows if row.status == "ok"} == {"softmax"}
    write_report(tmp_path / "rows.csv")
    assert (
        "- Failed: duq on resffn2_16, seed 0: TrainingError: The loss became nan" in (tmp_path / "table.md").read_text()
    )
    assert said.count("Train duq-seed0, 1 of 1") == 1  # the second time, when the softmax was trained


def test_an_ood_set_that_fails_costs_no_other_rows_and_is_tried_again(plane, tmp_path):
    broken = write_points(tmp_path / "broken.npz", np.array([[0.0, np.nan]]))
    comparison, folder = replace(moons(plane, ["softmax"]), ood=(broken, plane)), tmp_path / "comparison"
    said: list[str] = []
    rows = comparison.measure(folder, progress=False, say=said.append)
    assert [(row.ood, row.severity, row.metric) for row in rows if row.status == "failed"] == [(broken, None, None)]
    assert said[-1] == (
        f"Failed: softmax on resffn2_16 against {broken}, seed 0: "
        "InputError: The model gave NaN or infinite logits for 1 of 1 inputs: check it."
    )
    ours = [row for row in rows if row.status == "ok"]
    assert lasting(ours) == lasting(moons(plane, ["softmax"]).measure(tmp_path / "without", progress=False))
    names = {path.name for path in write_report(folder / "rows.csv")}
    assert names >= {"roc-plane.png", "risk-coverage-plane.png", "scores-softmax.png"}
    assert "roc-broken.png" not in names
    assert f"- Failed: softmax on resffn2_16 against {broken}, seed 0" in (folder / "table.md").read_text()

    write_points(tmp_path / "broken.npz", np.array([[0.0, 9.0]]))
    mended = comparison.measure(folder, progress=False)
    assert {row.status for row in mended} == {"ok"}
    assert {row.ood for row in mended} == {None, broken, plane}


def test_a_detector_that_failed_once_it_was_measured_is_made_good(plane, tmp_path, monkeypatch):
    comparison = moons(plane, ["softmax"])
    rows = comparison.measure(tmp_path, progress=False)
    (folder,) = (tmp_path / "scores").iterdir()
    assert folder.name == f"softmax-on-resffn2_16-two_moons-seed0-{rows[0].run}"
    file = RowFile(tmp_path / "rows.csv")
    file.path.unlink()
    file.append(row for row in rows if row.metric != "accuracy")
    with monkeypatch.context() as broken:
        broken.setattr("ddu.experiments.measure.Trial.see", lambda *_: 1 / 0)
        assert comparison.measure(tmp_path, progress=False)[-1].error == "ZeroDivisionError: division by zero"
    assert set(lasting(comparison.measure(tmp_path, progress=False))) == set(lasting(rows))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_killed_while_it_measures_it_ends_in_the_rows_of_one_that_was_not(everything, plane, tmp_path):
    _, _, rows, _ = everything
    comparison = moons(plane, ["softmax", "energy", "confidence", "knn", {"ensemble_pe": {"members": 2}}, "ddu"])
    # Forked, so that it need not import everything again
    process = multiprocessing.get_context("fork").Process(target=comparison.measure, args=(tmp_path,))
    process.start()
    while not (tmp_path / "rows.csv").exists() and process.is_alive():
        time.sleep(0.001)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*ends in an unfinished line")
        measured = {(row.detector, row.network) for row in RowFile(tmp_path / "rows.csv").read()}
        found = comparison.measure(tmp_path, progress=False)
    assert len(measured) < 6
    assert len({(row.detector, row.network) for row in found}) == 6
    assert lasting(found) == _same_keys(rows, found)


YAML = """
data: two_moons
ood: [{plane}]
limit: 1500
model: resffn2_16
recipe: {{name: two_moons, epochs: 1}}
detectors:
  - softmax
  - ddu
  - ensemble_pe: {{members: 2}}
  - knn
  - sngp
"""


@pytest.mark.slow
def test_killed_while_it_trains_it_takes_its_workers_along_and_can_be_resumed(everything, plane, tmp_path):
    _, _, rows, _ = everything
    config, folder = tmp_path / "moons.yaml", tmp_path / "comparison"
    config.write_text(YAML.format(plane=plane))
    command = [sys.executable, "-m", "ddu", "compare", str(config), "-o", str(folder), "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not list(folder.glob("networks/*/run.json")) and process.poll() is None:
        time.sleep(0.01)
    workers = _children(process.pid)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert len(workers) >= 2
    deadline = time.monotonic() + 20
    while any(map(_is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_is_running, workers))

    trained = {path.parent.name for path in folder.glob("networks/*/metrics.json")}
    assert len(trained) < 4
    said: list[str] = []
    found = read_comparison(config).measure(folder, progress=False, say=said.append)
    assert sum(words.startswith("Train ") for words in said) == 4 - len(trained)
    assert lasting(found) == _same_keys(rows, found)


def _children(process: int) -> list[int]:
    """The processes that a process has started."""
    everyone = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [one for one in everyone if _status(one)[1:2] == [str(process)]]


def _is_running(process: int) -> bool:
    return _status(process)[:1] not in ([], ["Z"])


def _status(process: int) -> list[str]:
    """State, parent and more; nothing of a process that has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _same_keys(rows, found):
    """What an uninterrupted comparison says of the same."""
    by_key = {row[: len(fields(RowKey))]: row for row in lasting(rows)}
    return [by_key[row[: len(fields(RowKey))]] for row in lasting(found)]


def test_the_work_of_a_seed_has_each_network_as_often_as_the_largest_ensemble_needs_it():
    detectors = ["softmax", "ddu", {"ensemble_mi": {"members": 3}}, {"ensemble_pe": {"members": 2}}]
    work = {one.spec.label: one for one in moons("plane", detectors).work()}
    assert {label: (one.networks, one.samples, one.ood) for label, one in work.items()} == {
        "resffn2_16": (3, 1500, ("plane",)),
        "resffn2_16+sn": (1, 1500, ("plane",)),
    }
