"""The folder of a run: enough to judge raw images, and bound to the data that it was trained with."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from ddu import data
from ddu.errors import ArtifactError, InputError
from ddu.runs import Run, RunSpec, load_run, train_run
from ddu.training import RECIPES

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
def arrays(tmp_path):
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
def test_changed_data_is_refused_at_resume_and_when_it_is_loaded(arrays, name):
    run, change = arrays
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
