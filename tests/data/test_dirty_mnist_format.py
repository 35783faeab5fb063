"""Files of the set: whole, checked, and missed in words."""

import json
import shutil

import numpy as np
import pytest

from ddu.data.dirty_mnist_format import (
    FORMAT,
    FORMAT_VERSION,
    numbers,
    read_arrays,
    read_manifest,
    seed_for,
    write_arrays,
    write_manifest,
)
from ddu.errors import ArtifactError, InputError


@pytest.fixture
def made(tmp_path):
    """A set of three images."""
    folder, splits = tmp_path / "made", {}
    folder.mkdir()
    for split in ("train", "test"):
        arrays = {"images": np.zeros((3, 28, 28, 1), np.uint8), "labels": np.ones((3, 2), np.uint8)}
        splits[split] = {"sha256": write_arrays(folder, split, arrays)}
    write_manifest(folder, {"format": FORMAT, "format_version": FORMAT_VERSION, "seed": 0, "splits": splits})
    return folder


@pytest.fixture
def copy(made, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(made, tmp_path / "copy")


def test_what_was_written_is_read_again(made):
    arrays, manifest = read_arrays(made, "test")
    assert manifest == read_manifest(made)
    assert {name: (array.dtype.name, array.shape) for name, array in arrays.items()} == {
        "images": ("uint8", (3, 28, 28, 1)),
        "labels": ("uint8", (3, 2)),
    }


def test_digests_tell_arrays_apart_by_content_shape_and_dtype(tmp_path):
    zeros = np.zeros(4, np.int32)
    others = [zeros + 1, zeros.reshape(2, 2), zeros.astype(np.float32), np.zeros(3, np.int32)]
    assert len({write_arrays(tmp_path, "train", {"x": array}) for array in [zeros, *others]}) == 5
    turned = np.arange(6).reshape(2, 3).T
    assert len({write_arrays(tmp_path, "train", {"x": array}) for array in (turned, turned.copy())}) == 1


def test_the_same_purpose_gives_the_same_numbers_and_others_give_others():
    np.testing.assert_array_equal(numbers(5, "mix", 1).random(8), numbers(5, "mix", 1).random(8))
    streams = [(0, "mix", 1), (0, "mix", 2), (1, "mix", 1), (0, "noise", 1), (0, "mix", 11)]
    assert len({numbers(*stream).integers(2**60) for stream in streams}) == len(streams)
    assert len({seed_for(*stream) for stream in streams}) == len(streams)


def test_a_folder_without_a_set_says_how_to_make_one(tmp_path):
    with pytest.raises(ArtifactError) as error:
        read_manifest(tmp_path)
    assert str(error.value) == (
        f"There is no Ambiguous-MNIST in {tmp_path}: it has no manifest.json. "
        f"Make it with: ddu data make dirty-mnist --output {tmp_path}"
    )


def test_an_unknown_split_is_refused(made):
    with pytest.raises(InputError) as error:
        read_arrays(made, "validation")
    assert str(error.value) == "Ambiguous-MNIST has the splits train, test, and no 'validation'."


def test_a_truncated_array_file_is_named(copy):
    path = copy / "ambiguous_train.npz"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ArtifactError, match=r"ambiguous_train\.npz is missing or damaged"):
        read_arrays(copy, "train")


def test_a_missing_array_file_is_named(copy):
    (copy / "ambiguous_train.npz").unlink()
    with pytest.raises(ArtifactError, match=r"ambiguous_train\.npz is missing or damaged"):
        read_arrays(copy, "train")


def test_changed_arrays_are_noticed(copy):
    arrays = dict(np.load(copy / "ambiguous_train.npz"))
    arrays["labels"][0, 0] ^= 1
    np.savez(copy / "ambiguous_train.npz", **arrays)
    with pytest.raises(ArtifactError) as error:
        read_arrays(copy, "train")
    assert str(error.value) == (
        f"{copy}/ambiguous_train.npz was changed after it was made: its checksum does not match the manifest's."
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", r"manifest\.json is damaged"),
        ("[]", r"manifest\.json does not describe an Ambiguous-MNIST\."),
        (json.dumps({"format": "ddu-detector"}), r"manifest\.json does not describe an Ambiguous-MNIST\."),
        (
            json.dumps({"format": "ddu-dirty-mnist", "format_version": 2}),
            "has format version 2, and ddu .* reads up to 1",
        ),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path, content, complaint):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ArtifactError, match=complaint):
        read_manifest(tmp_path)
