"""A file that is damaged, edited or not a detector is refused in words."""

import copy
import json
from contextlib import contextmanager

import pytest
import safetensors
import safetensors.torch
import torch

import ddu
from ddu import artifacts
from ddu.errors import (
    ArtifactError,
    DDUWarning,
    NotFittedError,
)
from tests.artifacts.files import batches, file_of, manifest_of, refusal, rewrite, sign


def test_an_unfitted_detector_is_not_saved(model, tmp_path):
    with pytest.raises(NotFittedError):
        ddu.DDU(model).save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way_is_refused(detector, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ArtifactError) as caught:
        detector.save(path)
    assert str(caught.value) == f"{path} is a file: a detector is saved as a folder, so give another name."
    assert path.read_text() == "mine"
    assert refusal(path, detector.model) == (
        f"There is no detector in {path}: it has no detector.safetensors. Give the folder that save() wrote."
    )


def test_a_folder_without_a_detector_is_refused(model, tmp_path):
    assert refusal(tmp_path / "nowhere", model) == (
        f"There is no detector in {tmp_path / 'nowhere'}: it has no detector.safetensors. Give the folder that save() "
        "wrote."
    )


CHANGED = (
    "{} was changed after it was saved: its checksum does not match its content. Copy it again, or save the detector "
    "again."
)


@pytest.mark.parametrize("left", [0, 4, 8, 300, -1])
def test_a_truncated_file_is_refused(folder, model, left):
    path = file_of(folder)
    path.write_bytes(path.read_bytes()[:left])
    message = refusal(folder, model)
    assert message.startswith(f"{path} is truncated or not written by ddu (its ")
    assert message.endswith(f" {path.stat().st_size}). Copy it again, or save the detector again.")


@pytest.mark.parametrize(
    "change",
    [
        {"data_offsets": [-8, 0]},
        {"data_offsets": [0, 2**60]},
        {"data_offsets": [8, 0]},
        {"data_offsets": [0.5, 8.5]},
        {"data_offsets": ["0", "8"]},
        {"data_offsets": None},
        {"shape": [2**40, 2**40]},
        {"shape": [-1, -1]},
        {"shape": "eight"},
        {"dtype": "F128"},
        {"dtype": []},
    ],
    ids=str,
)
def test_a_header_that_does_not_fit_the_file_is_refused(folder, model, change):
    path = file_of(folder)
    with changed_header(path) as header:
        header[a_tensor(header)] |= change
    assert refusal(folder, model).startswith(f"{path} is truncated or not written by ddu (")


def test_tensors_that_share_bytes_are_refused_before_memory_is_taken(folder, model):
    path = file_of(folder)
    with changed_header(path) as header:
        header |= {f"copy {index}": header[a_tensor(header)] for index in range(1000)}
    assert f"bytes, and the file has {path.stat().st_size})" in refusal(folder, model)


@contextmanager
def changed_header(path):
    """The header of a file, to be changed."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    yield header
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def a_tensor(header):
    return next(name for name in sorted(header) if name != "__metadata__")


@pytest.mark.parametrize("header", ["[]", "7", "null", '{"__metadata__": []}', '{"__metadata__": {"ddu-detector": 1}}'])
def test_a_header_that_is_any_json_is_refused(folder, model, header):
    file_of(folder).write_bytes(len(header).to_bytes(8, "little") + header.encode())
    assert str(file_of(folder)) in refusal(folder, model)


def test_a_flipped_bit_in_the_tensors_is_refused(folder, model):
    path = file_of(folder)
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    for position in (begin, (begin + len(data)) // 2, len(data) - 1):
        flipped = bytearray(data)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        assert refusal(folder, model) == CHANGED.format(path)


@pytest.mark.parametrize(
    ("key", "value"), [("density_threshold", -1e9), ("temperature", 2.0), ("class_names", ["x", "y", "z"])]
)
def test_an_edited_manifest_is_refused(folder, model, key, value):
    manifest = manifest_of(folder)
    manifest["content"][key] = value
    rewrite(folder, manifest)
    assert refusal(folder, model) == CHANGED.format(file_of(folder))


def test_no_flipped_bit_in_the_header_goes_unnoticed(folder, model, detector):
    """A header that still loads says the same: what changed was white space."""
    path = file_of(folder)
    data = path.read_bytes()
    for position in range(0, 8 + int.from_bytes(data[:8], "little"), 7):
        flipped = bytearray(data)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        try:
            loaded = ddu.load(folder, model)
        except ArtifactError:
            continue
        assert (loaded.calibration, loaded.class_names) == (detector.calibration, detector.class_names)
        x = batches(seed=2)[0][0]
        assert torch.equal(loaded.predict(x).epistemic, detector.predict(x).epistemic)


def test_a_newer_format_is_refused(folder, model):
    sign(folder, manifest_of(folder) | {"format_version": 4})
    assert refusal(folder, model) == (
        f"{file_of(folder)} has format version 4, and ddu {ddu.__version__} reads up to 3: install the newer "
        "ddu that wrote it, or a later one."
    )


def test_an_older_format_is_refused(folder, model):
    sign(folder, manifest_of(folder) | {"format_version": 1})
    assert refusal(folder, model) == (
        f"{file_of(folder)} has format version 1, and ddu {ddu.__version__} reads 3: fit the detector again and "
        "save it."
    )


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"ddu-detector": "[]"}, {"ddu-detector": "3"}])
def test_another_safetensors_file_is_refused(folder, model, metadata):
    safetensors.torch.save_file({"weight": torch.zeros(2)}, file_of(folder), metadata)
    assert refusal(folder, model) == f"{file_of(folder)} does not hold a ddu detector."


def test_an_unknown_detector_is_refused(folder, model):
    manifest = manifest_of(folder)
    manifest["content"]["detector"] = "oracle"
    sign(folder, manifest)
    assert refusal(folder, model) == (
        f"{folder} holds a detector 'oracle', and this ddu knows ddu, softmax, energy, mahalanobis, ensemble, duq, "
        "sngp."
    )


def test_another_model_is_refused_or_only_noted(folder, detector, model):
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight[0, 0] += 1e-3
    was, now = (artifacts.model_fingerprint(m)[:12] for m in (model, other))
    message = (
        f"The detector was fitted to a Sequential with the fingerprint {was}, this Sequential has {now}: load the "
        "weights it was fitted to, or fit again."
    )
    assert refusal(folder, other) == (
        f"{message} If only the precision or layout differs, ddu.load(folder, model, strict=False) in Python loads it "
        "with a warning."
    )
    with pytest.warns(DDUWarning) as noted:
        loaded = ddu.load(folder, other, strict=False)
    assert [str(warning.message) for warning in noted] == [message]
    assert noted[0].filename == __file__
    assert loaded.epistemic_threshold == detector.epistemic_threshold
