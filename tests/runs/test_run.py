"""A run: trained, fitted, calibrated, tested, enough to judge raw images, and bound to its data."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import ddu
from ddu import data, provenance
from ddu.calibration import Calibration, HeldOut
from ddu.data import ArrayDataset, DataInfo
from ddu.detectors import DUQ, SNGP, Ensemble, Softmax, find_method
from ddu.errors import ArtifactError, DataError, DataWarning, InputError
from ddu.layers import GaussianProcessHead, RBFHead
from ddu.runs import Run, RunSpec, is_finished, load_run, train_run
from ddu.runs.run import _test
from ddu.training import RECIPES, Training

SPEC = RunSpec("resffn2_32", "two_moons", RECIPES["two_moons"].with_changes(epochs=3), seed=1, limit=1500)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_run(SPEC, tmp_path_factory.mktemp("runs") / "moons", command="ddu train --these words")


def test_a_run_holds_all_that_made_it_and_all_that_it_made(run):
    names = {path.name for path in run.folder.iterdir()}
    assert names >= {"run.json", "splits.npz", "model.safetensors", "detector", "metrics.json", "history.csv"}
    assert names >= {"last.ckpt", "best.ckpt", "tensorboard"}
    written = json.loads((run.folder / "run.json").read_text())
    assert written["command"] == "ddu train --these words"
    assert written["versions"].keys() >= {"ddu", "python", "torch", "numpy", "lightning"}
    assert written["spec"]["recipe"]["lr"] == 1e-3
    assert (written["fingerprint"], written["digest"], written["samples"]) == (run.fingerprint, run.digest, 1500)
    assert written["commit"] == provenance.commit()
    assert load_run(run.folder).spec == SPEC


def test_the_split_is_saved_and_disjoint(run):
    with np.load(run.folder / "splits.npz") as parts:
        train, validation = parts["train"], parts["validation"]
    assert len(train) + len(validation) == 1500
    assert not set(train) & set(validation)
    sets = run.load_data()
    everything = data.load("two_moons")
    assert np.array_equal(sets.train.inputs, everything.inputs[train])
    assert np.array_equal(sets.validation.labels, everything.labels[validation])


def test_the_detector_of_a_run_judges_like_one_made_by_hand(run):
    sets = run.load_data()
    by_hand = ddu.DDU(run.load_model()).fit(data.loader(sets.train)).calibrate(data.loader(sets.validation), 0.01)
    points = torch.from_numpy(sets.test.inputs)
    ours, theirs = run.detector.predict(points), by_hand.predict(points)
    assert torch.equal(ours.epistemic, theirs.epistemic)
    assert (ours.verdict == theirs.verdict).all()
    labels = torch.from_numpy(sets.test.labels)
    assert run.metrics["test_accuracy"] == float((ours.label == labels).double().mean())
    assert run.metrics["test_false_alarm_rate"] == float((ours.verdict == "out_of_distribution").mean())


@pytest.mark.parametrize("detector", [Softmax(torch.nn.Identity()), Ensemble([torch.nn.Identity()] * 2)])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_likelihood_of_a_sure_and_wrong_prediction_is_finite(detector, temperature):
    """Where the probability itself, exp(-200), is zero in single precision."""
    kept = HeldOut(torch.arange(99.0), torch.zeros(99).long())
    detector.calibration = Calibration(kept, temperature)
    points = np.array([[200.0, 0.0], [0.0, 200.0]], dtype=np.float32)
    info = DataInfo("points", (2,), ("left", "right"))
    metrics = _test(detector, ArrayDataset(points, np.array([1, 1]), info))
    assert metrics["test_nll"] == pytest.approx(100 / temperature)
    assert metrics["test_accuracy"] == 0.5


def test_a_finished_run_is_returned_as_it_is(run):
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")}
    again = train_run(SPEC, run.folder)
    assert again is not None
    assert again.metrics == run.metrics
    assert {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")} == before


def test_another_run_does_not_overwrite_it(run):
    other = RunSpec("resffn2_32", "two_moons", RECIPES["two_moons"].with_changes(epochs=3, lr=0.1), seed=1, limit=1500)
    with pytest.raises(
        InputError, match=r" has lr=0\.001, and this one has lr=0\.1: use the same, or another folder\.$"
    ):
        train_run(other, run.folder)


def test_mistakes_are_found_before_the_first_epoch(tmp_path):
    quick = RECIPES["quick"]
    for spec, message in [
        (RunSpec("resnet81", "two_moons", quick), r"^There is no model 'resnet81'\."),
        (RunSpec("resnet18", "minst", quick), r"^There is no data set 'minst'\."),
        (RunSpec("resffn2_32", "two_moons", quick, options={"depth": 3}), r"^resffn2_32 has no option 'depth'"),
        (RunSpec("resffn2_32", "two_moons", quick, false_alarm_rate=2.0), r"^The false-alarm rate must be "),
        (
            RunSpec("resffn2_32", "two_moons", quick, limit=99),
            r"^A false-alarm rate of 0\.01 needs at least 124 held-out ",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            train_run(spec, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r" holds files that do not belong to a run: choose another folder\.$"):
        train_run(SPEC, tmp_path)


@pytest.fixture
def arrays(tmp_path):
    """Writes a set of 2,000 points, in which some arrays may be replaced, and gives its name."""

    def write(**replaced):
        moons = data.load("two_moons")
        content = {"x_train": moons.inputs, "y_train": moons.labels, "x_test": moons.inputs, "y_test": moons.labels}
        np.savez(tmp_path / "mine.npz", **{**content, **replaced})
        return f"npz:{tmp_path / 'mine.npz'}"

    return write


def few_of_class_two(count: int) -> np.ndarray:
    labels = data.load("two_moons").labels.copy()
    labels[:count] = 2
    return labels


@pytest.mark.parametrize(
    ("replaced", "options", "message"),
    [
        ({"y_train": few_of_class_two(1)}, {}, r"^Class 2 has 1 sample, and a variance needs at least 2: "),
        (
            {"classes": ["a", "b", "c"]},
            {},
            r"^The model has 3 classes, and the labels of the 1,800 training samples cover 2 of them; class 2 has "
            r"none\. Add samples of every class\.$",
        ),
        (
            {"classes": ["a", "b", "c"]},
            {"limit": 100},
            r"; class 2 has none\. Add samples of every class, or raise the limit of 100\.$",
        ),
        (
            {},
            {"limit": 1},
            r"has no samples to hold out with a limit of 1: add samples, or raise the limit\.$",
        ),
        ({}, {"options": {"num_classes": 5}}, r"^There are 2 class names for 5 classes: give one for each\.$"),
        ({}, {"false_alarm_rate": 0.001}, r"^A false-alarm rate of 0\.001 needs at least 1249 held-out samples, "),
        ({"x_test": np.zeros((0, 2)), "y_test": np.zeros(0, int)}, {}, r"has no samples to test on: add samples"),
        (
            {"x_test": np.zeros((2000, 3))},
            {},
            r" have the shape \(3,\) in one split and \(2,\) in the other: make them alike\.$",
        ),
    ],
)
def test_what_labels_counts_and_shapes_forbid_is_said_before_the_first_epoch(
    tmp_path, arrays, monkeypatch, replaced, options, message
):
    monkeypatch.setattr("ddu.runs.run.fit", lambda *_, **__: pytest.fail("it was trained"))
    with pytest.raises(InputError, match=message):
        train_run(RunSpec("resffn2_16", arrays(**replaced), RECIPES["two_moons"], **options), tmp_path / "run")


@pytest.mark.parametrize("method", ["duq", "sngp"])
def test_a_detector_without_a_density_may_have_a_class_with_one_sample(tmp_path, arrays, monkeypatch, method):
    class TrainedError(Exception):
        pass

    def stop(*_, **__):
        raise TrainedError

    monkeypatch.setattr("ddu.runs.run.fit", stop)
    name, options = arrays(y_train=few_of_class_two(1)), find_method(method).network.options
    with pytest.raises(TrainedError):
        train_run(RunSpec("resffn2_16", name, RECIPES["two_moons"], method, options=options), tmp_path / "run")


@pytest.fixture
def photos(tmp_path):
    """Thirty grey images of noise for each of two classes in train, and two in test."""
    random = np.random.default_rng(0)
    for part, count in (("train", 30), ("test", 2)):
        for name in ("cat", "dog"):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for index in range(count):
                Image.fromarray(random.integers(0, 256, (16, 16), dtype=np.uint8)).save(folder / f"{index}.png")
    return tmp_path / "photos"


@pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning", "ignore::ddu.errors.FewSamplesWarning")
def test_images_that_cannot_be_read_are_found_before_the_first_epoch_or_left_out(tmp_path, photos, monkeypatch):
    recipe = RECIPES["quick"].with_changes(validation_share=0.3)
    options = {"width": 1 / 16}
    spec = RunSpec("resnet18", f"folder:{photos}", recipe, false_alarm_rate=0.1, options=options)
    bad = [photos / "train" / "cat" / "7.png", photos / "test" / "dog" / "0.png"]
    for path in bad:
        path.write_bytes(b"junk")
    monkeypatch.setattr("ddu.runs.run.fit", lambda *_, **__: pytest.fail("it was trained"))
    with pytest.raises(DataError) as caught:
        train_run(spec, tmp_path / "run")
    assert str(caught.value).startswith(f"2 of the 64 images of folder:{photos} cannot be read.")
    assert all(f"\n{path} cannot be read as an image: " in str(caught.value) for path in bad)

    monkeypatch.setattr("ddu.runs.run.fit", lambda model, *_, **__: Training(model.eval(), [], 1))
    with pytest.warns(DataWarning, match=r"^Left out 2 of the 64 images of "):
        train_run(replace(spec, skip_bad=True), tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.spec.skip_bad
    with pytest.warns(DataWarning, match=r"^Left out 2 of the 64 images of "):
        sets = run.load_data()
    assert (len(sets.train) + len(sets.validation), len(sets.test)) == (59, 3)
    noise = Image.fromarray(np.zeros((16, 16), dtype=np.uint8))
    noise.save(bad[0])
    noise.save(bad[1])
    with pytest.raises(
        ArtifactError, match=r"^folder:.* has other samples or labels now than the run in .* was trained "
    ):
        run.load_data()


def test_copies_are_not_divided_between_training_and_calibration(tmp_path, arrays):
    groups = np.random.default_rng(0).permutation(2000) // 10
    for limit in (None, 1600):
        spec = RunSpec(
            "resffn2_16",
            arrays(groups_train=groups),
            RECIPES["two_moons"].with_changes(epochs=1, validation_share=0.2),
            limit=limit,
            false_alarm_rate=0.05,
        )
        run = train_run(spec, tmp_path / str(limit))
        assert run is not None
        sets = run.load_data()
        train, validation = sets.train.groups, sets.validation.groups
        assert train is not None
        assert validation is not None
        assert not set(train) & set(validation)
        counts = np.unique(np.concatenate([train, validation]), return_counts=True)[1]
        assert counts.tolist() == [10] * ((limit or 2000) // 10)


def test_a_run_killed_while_it_wrote_its_first_file_begins_again(tmp_path):
    (tmp_path / ".run.json.0123456789abcdef.tmp").write_text("{")
    assert not is_finished(SPEC, tmp_path)


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(ArtifactError, match=r"it has no run\.json\. `ddu train` writes one\.$"):
        load_run(tmp_path)


@pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning")
@pytest.mark.parametrize(("method", "detector", "head"), [("duq", DUQ, RBFHead), ("sngp", SNGP, GaussianProcessHead)])
def test_a_run_for_another_method_ends_in_its_detector(tmp_path, method, detector, head):
    recipe = RECIPES[f"{method}_two_moons"].with_changes(epochs=2)
    by_recipe = train_run(RunSpec("resffn2_16", "two_moons", recipe, method), tmp_path / "recipe")
    plain = RECIPES["two_moons"].with_changes(epochs=1)
    options = find_method(method).network.options
    by_method = train_run(RunSpec("resffn2_16", "two_moons", plain, method, options=options), tmp_path / "method")
    for run in (by_recipe, by_method):
        assert run is not None
        assert isinstance(run.load_model().head, head)
        assert type(run.detector) is detector
        assert 0.5 < run.metrics["test_accuracy"] <= 1


def test_a_split_may_have_a_seed_of_its_own(run, tmp_path):
    member = train_run(replace(SPEC, seed=7, split_seed=SPEC.seed), tmp_path / "member")
    assert member is not None
    ours, others = member.load_data(), run.load_data()
    assert np.array_equal(ours.train.inputs, others.train.inputs)
    assert np.array_equal(ours.validation.inputs, others.validation.inputs)
    weights = [torch.cat([p.flatten() for p in one.load_model().parameters()]) for one in (member, run)]
    assert not torch.equal(*weights)


def test_a_network_is_loaded_without_the_data_it_was_trained_on(tmp_path):
    points, labels = data.load("two_moons").inputs, data.load("two_moons").labels
    np.savez(tmp_path / "mine.npz", x_train=points, y_train=labels, x_test=points, y_test=labels)
    spec = RunSpec("resffn2_16", f"npz:{tmp_path / 'mine.npz'}", RECIPES["two_moons"].with_changes(epochs=1))
    train_run(spec, tmp_path / "run")
    (tmp_path / "mine.npz").unlink()
    assert load_run(tmp_path / "run").detector.predict(torch.from_numpy(points[:5])).probs.shape == (5, 2)


@pytest.mark.parametrize("method", ["softmax", "confidence"])
def test_a_run_for_the_softmax_ends_in_the_softmax(tmp_path, method):
    recipe = RECIPES["two_moons"].with_changes(epochs=1)
    run = train_run(RunSpec("resffn2_16", "two_moons", recipe, method), tmp_path / "run")
    assert run is not None
    assert type(run.detector) is Softmax
    assert run.detector.score == ("entropy" if method == "softmax" else "confidence")


def test_a_network_alone_has_no_detector_and_says_so(tmp_path):
    recipe = RECIPES["two_moons"].with_changes(epochs=1)
    run = train_run(RunSpec("resffn2_16", "two_moons", recipe, method=None), tmp_path / "run")
    assert run is not None
    assert run.metrics.keys() == {"epoch", "seconds"}
    assert not (run.folder / "detector").exists()
    with pytest.raises(ArtifactError) as caught:
        run.detector  # noqa: B018
    assert str(caught.value) == f"The run in {run.folder} trained a network alone: it has no detector."


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("ensemble_mi", "ensemble_mi needs 5 networks, and a run trains one: `ddu compare` trains several."),
        ("knn", "knn cannot be saved, so it cannot be trained for: use it in `ddu evaluate`."),
        ("sofmax", "There is no method 'sofmax'. Did you mean 'softmax'?"),
    ],
)
def test_a_method_that_one_run_cannot_end_in_is_refused_before_the_first_epoch(tmp_path, method, message):
    with pytest.raises(InputError) as caught:
        train_run(replace(SPEC, method=method), tmp_path / "run")
    assert str(caught.value) == message
    assert not (tmp_path / "run").exists()


pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning", "ignore::ddu.errors.FewSamplesWarning")

RECIPE = RECIPES["quick"].with_changes(epochs=1, validation_share=0.2)


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Run:
    spec = RunSpec("resnet18", "digits", RECIPE, options={"width": 1 / 16}, false_alarm_rate=0.05)
    run = train_run(spec, tmp_path_factory.mktemp("runs") / "digits")
    assert run is not None
    return run


JUDGE = """
import sys
import numpy as np
from PIL import Image
from ddu.runs import load_run

folder, png, array, found = sys.argv[1:]
run = load_run(folder)
prediction = run.predict([png, Image.open(png), np.load(array)])
verdicts = [str(one) for one in prediction.verdict]
np.savez(found, probs=prediction.probs, epistemic=prediction.epistemic, verdicts=verdicts)
"""


@pytest.mark.slow
def test_a_run_folder_alone_judges_raw_images(digits, tmp_path):
    test = digits.load_data().test
    grey = np.round(255 * test.inputs[0, :, :, 0]).astype(np.uint8)
    Image.fromarray(grey).save(tmp_path / "digit.png")
    np.save(tmp_path / "digit.npy", test.inputs[0])
    shutil.copytree(digits.folder, tmp_path / "elsewhere")
    (tmp_path / "empty").mkdir()
    arguments = ["elsewhere", "digit.png", "digit.npy", "found.npz"]
    done = subprocess.run(
        [sys.executable, "-c", JUDGE, *arguments],
        cwd=tmp_path,
        env={**os.environ, "DDU_DATA": str(tmp_path / "empty")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "empty").iterdir())
    expected = digits.detector.predict(test.__getitems__([0])[0])
    rounded = digits.detector.predict(digits.preprocessing(grey))
    with np.load(tmp_path / "found.npz") as found:
        for name in ("probs", "epistemic"):
            want = torch.stack([getattr(one, name)[0] for one in (rounded, rounded, expected)])
            np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-6)
        verdicts = [one.verdict[0] for one in (rounded, rounded, expected)]
        assert found["verdicts"].tolist() == [str(one) for one in verdicts]


def test_raw_images_are_judged_as_the_samples_of_the_set_are(digits):
    test = digits.load_data().test
    expected = digits.detector.predict(test.__getitems__(range(20))[0])
    found = load_run(digits.folder).predict(test.inputs[:20])
    assert torch.equal(found.epistemic, expected.epistemic)
    assert torch.equal(found.probs, expected.probs)
    assert (found.verdict == expected.verdict).all()
    assert found.class_names == test.info.classes


def test_vectors_are_judged_as_they_are(tmp_path):
    spec = RunSpec("resffn2_16", "two_moons", RECIPES["two_moons"].with_changes(epochs=1))
    run = train_run(spec, tmp_path / "run")
    assert run is not None
    points = run.load_data().test.inputs[:5]
    assert torch.equal(run.predict(points).epistemic, run.detector.predict(torch.from_numpy(points)).epistemic)


@pytest.fixture
def changeable(tmp_path):
    """A run on a set of its own, and a function that changes one number of that set."""
    moons = data.load("two_moons")
    content = {"x_train": moons.inputs, "y_train": moons.labels, "x_test": moons.inputs, "y_test": moons.labels}
    np.savez(tmp_path / "mine.npz", **content)
    spec = RunSpec("resffn2_16", f"npz:{tmp_path / 'mine.npz'}", RECIPES["two_moons"].with_changes(epochs=1))
    run = train_run(spec, tmp_path / "run")
    assert run is not None

    def change(name: str) -> None:
        changed = content[name].copy()
        changed.flat[7] = 1 - changed.flat[7]
        np.savez(tmp_path / "mine.npz", **{**content, name: changed})

    return run, change


@pytest.mark.parametrize("name", ["x_train", "y_train", "x_test", "y_test"])
def test_changed_data_is_refused_at_resume_and_when_it_is_loaded(changeable, name):
    run, change = changeable
    assert len(run.load_data().test) == 2000
    change(name)
    with pytest.raises(ArtifactError) as caught:
        load_run(run.folder).load_data()
    assert str(caught.value) == (
        f"{run.spec.data} has other samples or labels now than the run in {run.folder} was trained with: restore them, "
        "or train again in another folder."
    )
    with pytest.raises(InputError) as refused:
        train_run(run.spec, run.folder)
    assert str(refused.value).startswith(
        f"The run in {run.folder} has data digest={run.digest}, and this one has data "
    )


def test_what_rows_say_of_a_run_is_in_its_folder(digits):
    loaded = load_run(digits.folder)
    written = json.loads((digits.folder / "run.json").read_text())
    assert loaded.fingerprint == digits.fingerprint == written["fingerprint"]
    assert loaded.samples == 1297
    assert loaded.reductions is None
    assert loaded.preprocessing == data.info("digits").preprocessing


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("run.json", "{", r"run\.json is damaged \("),
        ("run.json", "{}", r"run\.json does not describe a run of this ddu: KeyError\('data'\)\.$"),
        ("metrics.json", "{", r"run\.json does not describe a run of this ddu: "),
    ],
)
def test_a_damaged_folder_is_named(digits, tmp_path, name, content, problem):
    shutil.copytree(digits.folder, tmp_path / "run")
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(ArtifactError, match=problem):
        load_run(tmp_path / "run")


def test_a_run_that_is_not_finished_is_named(digits, tmp_path):
    shutil.copytree(digits.folder, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    with pytest.raises(ArtifactError) as caught:
        load_run(tmp_path / "run")
    assert str(caught.value) == (
        f"There is no finished run in {tmp_path / 'run'}: it has no metrics.json. `ddu train` writes one."
    )


def test_a_training_is_resumed_in_the_precision_that_it_began_in_on_any_processor(tmp_path, monkeypatch):
    spec = replace(SPEC, recipe=SPEC.recipe.with_changes(precision="auto"), method=None)

    def stop_in_the_second_epoch(share, note):
        if note.startswith("epoch 2"):
            raise KeyboardInterrupt

    def on_a_processor_for(native):
        def settled(precision, accelerator="auto"):
            return native if precision == "auto" else precision

        for module in ("ddu.runs.run", "ddu.training.loop"):
            monkeypatch.setattr(f"{module}.settled_precision", settled)

    on_a_processor_for("bf16-mixed")
    with pytest.raises(KeyboardInterrupt):
        train_run(spec, tmp_path, on_progress=stop_in_the_second_epoch)
    on_a_processor_for("32-true")
    run = train_run(spec, tmp_path, progress=False)
    assert run is not None
    assert len(run.history) == 3
    assert json.loads((tmp_path / "run.json").read_text())["precision"] == "bf16-mixed"
