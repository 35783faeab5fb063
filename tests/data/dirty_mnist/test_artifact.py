"""Files of the set: whole, checked, and missed in words."""

import json
import shutil

import numpy as np
import pytest
import torch

from ddu.data.dirty_mnist._artifact import array_digest, read_arrays, read_manifest, stage
from ddu.errors import ArtifactError, InputError


@pytest.fixture
def copy(made, tmp_path):
    """A copy of the small set, to be damaged."""
    return shutil.copytree(made, tmp_path / "copy")


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


def test_digests_tell_arrays_apart_by_content_shape_and_dtype():
    zeros = np.zeros(4, np.int32)
    others = [zeros + 1, zeros.reshape(2, 2), zeros.astype(np.float32), np.zeros(3, np.int32)]
    assert len({array_digest(array) for array in [zeros, *others]}) == 5
    assert array_digest(np.arange(6).reshape(2, 3).T) == array_digest(np.arange(6).reshape(2, 3).T.copy())


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
