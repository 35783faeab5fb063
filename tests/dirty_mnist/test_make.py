"""The whole pipeline, at a tiny scale."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ddu.data import ArrayDataset, DataInfo
from ddu.data.dirty_mnist_format import read_arrays, read_manifest
from ddu.dirty_mnist import Filters, Mixing, Settings, make_dirty_mnist
from ddu.dirty_mnist.autoencoder import pixel_rows
from ddu.dirty_mnist.fitting import adam
from ddu.dirty_mnist.labellers import create_labeller, ensemble_logits, labelled
from ddu.dirty_mnist.make import load_autoencoder, read_tensors, stage
from ddu.dirty_mnist.mixtures import Mixer, Mixtures
from ddu.errors import ArtifactError, InputError
from ddu.models import Classifier

SPLITS = ("train", "test")


def labellers(folder: Path) -> list[Classifier]:
    members = []
    for path in sorted(folder.glob("stages/labeller-*")):
        members.append(create_labeller(10).eval())
        members[-1].load_state_dict(read_tensors(path))
    return members


@pytest.fixture
def only_networks(made, tmp_path) -> Path:
    """A folder that a run was killed in when all networks had been trained."""
    shutil.copytree(made / "stages", tmp_path / "stages")
    return tmp_path


@pytest.mark.parametrize("split", SPLITS)
def test_arrays_have_the_promised_shapes(made, split):
    arrays, _ = read_arrays(made, split)
    shapes = {name: (array.dtype.name, *array.shape) for name, array in arrays.items()}
    assert shapes == {
        "images": ("uint8", 150, 28, 28, 1),
        "soft_labels": ("float32", 150, 10),
        "labels": ("uint8", 150, 4),
        "parents": ("int32", 150, 2),
        "weights": ("float32", 150, 2),
        "mutual_information": ("float32", 150),
    }
    assert len(np.unique(arrays["images"], axis=0)) == 150
    np.testing.assert_allclose(arrays["soft_labels"].sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize("split", SPLITS)
def test_images_are_mixtures_of_digits_of_their_own_split(made, split, train_digits, test_digits):
    arrays, _ = read_arrays(made, split)
    own, other = (train_digits, test_digits) if split == "train" else (test_digits, train_digits)
    mixtures = Mixtures(arrays["parents"].astype(np.int64), arrays["weights"])
    found = arrays["images"].reshape(150, -1).astype(int)
    again = (255 * Mixer(load_autoencoder(made), pixel_rows(own.inputs)).images(mixtures)).round().int().numpy()
    assert np.abs(again - found).max() <= 1  # the last digit depends on how images are batched
    mixtures = Mixtures(mixtures.parents % len(other), mixtures.weights)
    foreign = (255 * Mixer(load_autoencoder(made), pixel_rows(other.inputs)).images(mixtures)).round().int().numpy()
    assert (np.abs(foreign - found).max(1) > 1).all()

    classes = own.labels[arrays["parents"]]
    assert (classes[:, 0] != classes[:, 1]).all()


@pytest.mark.parametrize("split", SPLITS)
def test_soft_labels_are_the_ensembles_and_pass_the_filters(made, split, tiny):
    arrays, _ = read_arrays(made, split)
    images = pixel_rows(arrays["images"])
    again = labelled(ensemble_logits(labellers(made), images))
    np.testing.assert_allclose(arrays["soft_labels"], again.probs, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(arrays["mutual_information"], again.mutual_information, rtol=1e-3, atol=1e-5)
    assert again.entropy.min() >= tiny.filters.min_entropy - 1e-5
    assert again.entropy.max() <= tiny.filters.max_entropy + 1e-5
    assert again.mutual_information.max() <= tiny.filters.max_mutual_information + 1e-5
    assert again.probs.topk(2).values[:, 1].min() >= tiny.filters.min_second - 1e-5


def test_drawn_labels_are_as_frequent_as_their_soft_labels_say(made, tiny):
    soft, drawn = ([read_arrays(made, split)[0][name] for split in SPLITS] for name in ("soft_labels", "labels"))
    soft, drawn = np.concatenate(soft).astype(float), np.concatenate(drawn)
    found = (drawn[:, :, None] == np.arange(10)).sum(1)
    expected = tiny.labels * soft
    # A sum of independent draws: its standard deviation is known
    deviation = np.sqrt((tiny.labels * soft * (1 - soft)).sum(0))
    assert (np.abs(found.sum(0) - expected.sum(0)) < 4 * deviation).all()
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.8


def test_the_manifest_accounts_for_every_mixture(made, tiny):
    manifest = read_manifest(made)
    assert manifest["seed"] == 3
    assert manifest["digits"] == {"train": 600, "test": 400}
    assert manifest["settings"]["filters"]["max_mutual_information"] == 0.05
    assert manifest["versions"]["torch"] == torch.__version__
    for known in manifest["splits"].values():
        assert known["images"] == 150
        assert sum(known["filter_results"].values()) == known["mixtures"]
        assert known["mixtures"] % tiny.mixing.chunk == 0
        assert known["filter_results"]["kept"] >= tiny.mixing.pool
        assert known["filter_results"]["plain"] > 0
        assert known["filter_results"]["junk"] > 0


def test_only_the_set_and_the_networks_are_left(made):
    names = sorted(path.relative_to(made).as_posix().split("-")[0] for path in made.rglob("*") if path.is_file())
    assert names == [
        "ambiguous_test.npz",
        "ambiguous_train.npz",
        "manifest.json",
        "stages/autoencoder",
        *["stages/labeller"] * 2,
    ]


def test_a_finished_set_is_left_as_it_is(made, train_digits, test_digits, tiny):
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}

    def progress(stage, done, note):
        raise AssertionError(stage)

    again = make_dirty_mnist(made, train_digits, test_digits, tiny, seed=3, progress=progress)
    assert again == read_manifest(made)
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_another_seed_does_not_overwrite_a_set(made, train_digits, test_digits, tiny):
    with pytest.raises(InputError) as error:
        make_dirty_mnist(made, train_digits, test_digits, tiny, seed=4)
    assert str(error.value) == (
        f"{made} holds an Ambiguous-MNIST of other settings, another seed or other digits (its seed is 3). "
        "Choose another folder, or delete that one."
    )


def assert_same_set(one: Path, other: Path) -> None:
    assert read_manifest(one) == read_manifest(other)
    for split in SPLITS:
        arrays, expected = read_arrays(one, split)[0], read_arrays(other, split)[0]
        for name in expected:
            np.testing.assert_array_equal(arrays[name], expected[name], err_msg=f"{split} {name}")


@pytest.mark.slow
def test_a_killed_run_resumes_and_ends_with_the_same_set(only_networks, made, train_digits, test_digits, tiny):
    digits = only_networks / "digits.npz"
    np.savez(
        digits,
        x_train=train_digits.inputs,
        y_train=train_digits.labels,
        x_test=test_digits.inputs,
        y_test=test_digits.labels,
    )
    script = Path(__file__).with_name("killed_run.py")
    command = [sys.executable, str(script), str(only_networks), str(digits), "Mix test digits"]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert killed.returncode == -9, killed.stderr
    assert (only_networks / "ambiguous_train.npz").exists()
    assert not (only_networks / "manifest.json").exists()
    assert len(list(only_networks.glob("stages/mixtures-test-*"))) == 1

    make_dirty_mnist(only_networks, train_digits, test_digits, tiny, seed=3)
    assert_same_set(only_networks, made)


# All networks are stages of one kind, and the autoencoder takes the longest to train
@pytest.mark.parametrize(
    "stage",
    [pytest.param("Train the autoencoder", marks=pytest.mark.slow), "Train labeller 2 of 2", "Mix train digits"],
)
def test_an_interrupted_stage_is_done_again(only_networks, made, stage, train_digits, test_digits, tiny):
    for path in only_networks.glob(
        "stages/autoencoder-*" if stage == "Train the autoencoder" else "stages/labeller-2-*"
    ):
        path.unlink()

    def interrupt(running: str, done: float, note: str) -> None:
        if running == stage and done > 0.3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_dirty_mnist(only_networks, train_digits, test_digits, tiny, seed=3, progress=interrupt)
    finished = {path.name.split("-")[0] for path in only_networks.glob("stages/*")}
    assert ("mixtures" in finished) == (stage == "Mix train digits")
    assert not list(only_networks.rglob("*.tmp"))
    make_dirty_mnist(only_networks, train_digits, test_digits, tiny, seed=3)
    assert_same_set(only_networks, made)


def test_stages_of_other_settings_are_not_used(only_networks, train_digits, test_digits, tiny):
    other = replace(tiny, labeller=replace(tiny.labeller, epochs=4))
    stages = []
    make_dirty_mnist(
        only_networks, train_digits, test_digits, other, seed=3, progress=lambda stage, done, note: stages.append(stage)
    )
    assert "Train the autoencoder" not in stages
    assert {"Train labeller 1 of 2", "Train labeller 2 of 2"} <= set(stages)


def test_mixtures_of_up_to_four_digits_can_be_asked_for(only_networks, train_digits, test_digits, tiny):
    make_dirty_mnist(
        only_networks, train_digits, test_digits, replace(tiny, mixing=replace(tiny.mixing, digits=4)), seed=3
    )
    arrays, _ = read_arrays(only_networks, "train")
    assert set(np.count_nonzero(arrays["weights"], axis=1)) == {2, 3, 4}
    classes = np.sort(train_digits.labels[arrays["parents"]], axis=1)
    assert (classes[:, 1:] > classes[:, :-1]).all()


def test_filters_that_nothing_passes_are_an_error_with_the_way_out(only_networks, train_digits, test_digits, tiny):
    impossible = replace(tiny, filters=replace(tiny.filters, max_mutual_information=-1.0))
    with pytest.raises(InputError) as error:
        make_dirty_mnist(only_networks, train_digits, test_digits, impossible, seed=3)
    assert str(error.value) == (
        "Not one of 3,200 mixtures passed the filters: loosen them, or train the autoencoder and the labellers longer."
    )


def test_digits_of_another_shape_are_refused(tmp_path, tiny):
    small = ArrayDataset(np.zeros((4, 8, 8, 1), np.uint8), np.arange(4), DataInfo("small", (1, 8, 8), tuple("0123")))
    with pytest.raises(InputError) as error:
        make_dirty_mnist(tmp_path, small, small, tiny)
    assert str(error.value) == (
        "Ambiguous-MNIST is made from digits of 28x28 bytes, (digit, 28, 28, 1). Got (4, 8, 8, 1) of uint8 instead."
    )


def test_a_file_in_the_way_is_named(tmp_path, train_digits, test_digits, tiny):
    (tmp_path / "taken").touch()
    with pytest.raises(InputError) as error:
        make_dirty_mnist(tmp_path / "taken", train_digits, test_digits, tiny)
    assert str(error.value) == f"{tmp_path}/taken is a file, or inside one: choose a folder."


def test_settings_that_contradict_themselves_are_refused():
    recipe, filters = adam(epochs=1), Filters(0.1, 1.0, 0.1)
    with pytest.raises(InputError) as error:
        Settings(recipe, recipe, Mixing(pool=5999), filters)
    assert str(error.value) == "6,000 images cannot be chosen from a pool of 5,999 mixtures."
    with pytest.raises(InputError) as error:
        Settings(recipe, recipe, Mixing(pool=6000, digits=1), filters)
    assert str(error.value) == "A mixture has at least 2 digits. Got digits=1 instead."


def test_the_manifest_is_plain_json(made):
    text = (made / "manifest.json").read_text()
    assert json.loads(text) == read_manifest(made)
    assert str(made) not in text


# Stages


def test_a_stage_is_made_once(tmp_path):
    calls = []

    def make():
        calls.append(1)
        return {"x": torch.arange(3)}

    for _ in range(2):
        assert stage(tmp_path / "x.safetensors", make)["x"].tolist() == [0, 1, 2]
    assert calls == [1]


def test_a_stage_that_fails_leaves_nothing(tmp_path):
    def make():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage(tmp_path / "x.safetensors", make)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_stage_is_named(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"half a file")
    with pytest.raises(
        ArtifactError, match=r"x\.safetensors is missing or damaged .* Delete it and make the set again\."
    ):
        stage(tmp_path / "x.safetensors", dict)
