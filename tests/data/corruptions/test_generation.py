import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddu.data.corruptions import corrupt, generate, generation
from ddu.data.corruptions.generation import file_digest, write_array
from ddu.errors import InputError, LabelError

LABELS = np.array([3, 1, 4, 1, 5, 9, 2])
NAMES = ("fog", "brightness")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_layout_is_that_of_cifar_10_c(images, tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "CHUNK", 3)
    folder = generate(images, LABELS, tmp_path / "a" / "CIFAR-10-C", corruptions=NAMES, seed=5, workers=1)
    assert folder == tmp_path / "a" / "CIFAR-10-C"
    assert sorted(content(folder)) == ["brightness.npy", "fog.npy", "labels.npy", "manifest.json"]
    labels = np.load(folder / "labels.npy")
    assert labels.dtype == np.uint8
    np.testing.assert_array_equal(labels, np.tile(LABELS, 5))
    for name in NAMES:
        corrupted = np.load(folder / f"{name}.npy", mmap_mode="r")
        assert corrupted.shape == (35, 32, 32, 3)
        expected = np.concatenate([corrupt(images, name, severity, seed=5) for severity in range(1, 6)])
        np.testing.assert_array_equal(corrupted, expected)


def test_the_manifest_says_what_the_files_were_made_of_and_how(images, tmp_path):
    generate(images, LABELS, tmp_path, corruptions=["fog"], severities=[2, 4], seed=5, workers=1)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert {key: manifest[key] for key in ("format", "seed", "severities", "shape")} == {
        "format": "ddu-corruptions",
        "seed": 5,
        "severities": [2, 4],
        "shape": [7, 32, 32, 3],
    }
    assert len(manifest["images_sha256"]) == len(manifest["labels_sha256"]) == 64
    assert manifest["files"]["fog"]["constants"] == {
        "amount": [0.2, 0.5, 0.75, 1, 1.5],
        "decay": [3, 3, 2.5, 2, 1.75],
    }
    assert set(manifest["files"]["fog"]["versions"]) == {"ddu", "numpy", "scipy", "pillow"}
    assert manifest["files"]["fog"]["bytes"] == (tmp_path / "fog.npy").stat().st_size


def test_what_is_there_is_kept_and_others_are_added(images, tmp_path):
    generate(images, LABELS, tmp_path, corruptions=["fog"], workers=1)
    made = (tmp_path / "fog.npy").stat()
    generate(images, LABELS, tmp_path, corruptions=NAMES, workers=1)
    kept = (tmp_path / "fog.npy").stat()
    assert (kept.st_ino, kept.st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    assert (tmp_path / "brightness.npy").exists()
    assert set(json.loads((tmp_path / "manifest.json").read_text())["files"]) == {"fog", "brightness"}


def flip_a_byte(folder: Path) -> None:
    data = bytearray((folder / "fog.npy").read_bytes())
    data[-1] ^= 1
    (folder / "fog.npy").write_bytes(data)


def cut(folder: Path) -> None:
    os.truncate(folder / "fog.npy", 1000)


def remove(folder: Path) -> None:
    (folder / "fog.npy").unlink()


def made_by(key: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"]["fog"][key] |= value
        (folder / "manifest.json").write_text(json.dumps(manifest))
        flip_a_byte(folder)

    return change


def not_yet_listed(folder: Path) -> None:
    """Killed between the file and the manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["fog"]
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        cut,
        remove,
        not_yet_listed,
        made_by("versions", {"numpy": "1.0"}),
        made_by("constants", {"amount": [1, 2, 3, 4, 5]}),
    ],
    ids=["changed", "cut", "removed", "not listed", "by another version", "with other constants"],
)
def test_what_is_not_whole_or_not_the_same_is_made_again(images, tmp_path, damage):
    generate(images, LABELS, tmp_path, corruptions=NAMES, workers=1)
    whole = content(tmp_path)
    damage(tmp_path)
    assert content(tmp_path) != whole
    generate(images, LABELS, tmp_path, corruptions=NAMES, workers=1)
    repaired = content(tmp_path)
    assert repaired.pop("fog.npy") == whole.pop("fog.npy")
    assert json.loads(repaired.pop("manifest.json")) == json.loads(whole.pop("manifest.json"))
    assert repaired == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"seed": 1},
            "The corrupted set in {} has seed=0, and this one has seed=1: use the same, or another folder.",
        ),
        (
            {"severities": (1, 2)},
            "The corrupted set in {} has severities=[1, 2, 3, 4, 5], and this one has severities=[1, 2]: "
            "use the same, or another folder.",
        ),
        (
            {"images": np.zeros((7, 32, 32, 3), np.uint8)},
            "The corrupted set in {} has images_sha256=",
        ),
        (
            {"labels": LABELS[::-1]},
            "The corrupted set in {} has labels_sha256=",
        ),
    ],
    ids=["seed", "severities", "images", "labels"],
)
def test_a_folder_with_another_set_is_left_alone(images, tmp_path, change, message):
    given = {"images": images, "labels": LABELS, "folder": tmp_path, "corruptions": ["fog"], "workers": 1}
    generate(**given)
    before = content(tmp_path)
    with pytest.raises(InputError) as caught:
        generate(**given | change)
    assert str(caught.value).startswith(message.format(tmp_path))
    assert content(tmp_path) == before


def test_the_official_archive_is_left_alone(images, tmp_path):
    (tmp_path / "frost.npy").write_bytes(b"official")
    with pytest.raises(InputError) as caught:
        generate(images, LABELS, tmp_path, corruptions=["fog"], workers=1)
    assert str(caught.value) == (
        f"{tmp_path} holds frost.npy, and no manifest.json that says how it was made: give another folder."
    )
    assert content(tmp_path) == {"frost.npy": b"official"}


def test_a_file_is_not_a_folder(images, tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(InputError) as caught:
        generate(images, LABELS, tmp_path / "file", workers=1)
    assert str(caught.value) == f"{tmp_path / 'file'} is a file, or inside one: choose a folder."


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "ddu-corruptions"}'])
def test_a_manifest_of_something_else_is_left_alone(images, tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError) as caught:
        generate(images, LABELS, tmp_path, workers=1)
    assert str(caught.value) == (
        f"{tmp_path / 'manifest.json'} does not describe corrupted images: give another folder."
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"labels": LABELS[:3]}, LabelError, "There are 7 images, so labels must have the shape (7,). Got (3,)."),
        ({"labels": LABELS / 2}, LabelError, "Labels must be whole numbers. Got float64."),
        ({"labels": LABELS - 2}, LabelError, "Labels are stored as bytes, from 0 to 255. Got -1 to 7."),
        ({"labels": LABELS + 250}, LabelError, "Labels are stored as bytes, from 0 to 255. Got 251 to 259."),
        ({"severities": [0]}, InputError, "The severity of a corruption must be 1, 2, 3, 4 or 5. Got 0."),
        ({"seed": -1}, InputError, "The seed must not be negative. Got -1."),
        ({"workers": 0}, InputError, "The number of workers must be at least 1. Got 0."),
        (
            {"corruptions": ["frog"]},
            InputError,
            "There is no corruption 'frog'. The closest names are 'fog', 'frost'; "
            "ddu.data.corruptions.CORRUPTIONS has them all.",
        ),
        ({"images": np.zeros((0, 32, 32, 3), np.uint8)}, InputError, "There are no images to corrupt."),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(images, tmp_path, change, error, message):
    given = {"images": images, "labels": LABELS, "folder": tmp_path / "new", "corruptions": ["fog"], "workers": 1}
    with pytest.raises(error) as caught:
        generate(**given | change)
    assert str(caught.value) == message
    assert not (tmp_path / "new").exists()


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("generate_cloudy", Path(__file__).with_name("generate_cloudy.py"))
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


cloudy = load_script()


def generate_here(folder: Path) -> dict[str, bytes]:
    """What the script makes, made in this process."""
    images, labels = cloudy.cloudy_set()
    generate(images, labels, folder, corruptions=cloudy.CORRUPTIONS, severities=cloudy.SEVERITIES, workers=1)
    return content(folder)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return generate_here(tmp_path_factory.mktemp("uninterrupted"))


def wait_until(condition: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for too long"
        time.sleep(0.005)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def in_the_middle(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that generates with two workers, has finished one file, and is writing the next."""
    script = Path(__file__).with_name("generate_cloudy.py")
    with subprocess.Popen(
        [sys.executable, script, folder, "2"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            wait_until(lambda: process.poll() is not None or list(folder.glob(".glass_blur.npy.*.tmp")))
            assert process.poll() is None
            yield process
        finally:
            process.kill()


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")


@pytest.mark.slow
@needs_proc
def test_killed_and_started_again_gives_the_same_bytes(tmp_path, uninterrupted):
    with in_the_middle(tmp_path) as process:
        workers = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(workers) >= 2
    wait_until(lambda: not any(is_running(worker) for worker in workers))
    left = content(tmp_path)
    assert left["contrast.npy"] == uninterrupted["contrast.npy"]
    assert "glass_blur.npy" not in left
    assert any(name.endswith(".tmp") for name in left)
    kept = (tmp_path / "contrast.npy").stat().st_mtime_ns
    assert generate_here(tmp_path) == uninterrupted
    assert (tmp_path / "contrast.npy").stat().st_mtime_ns == kept


@pytest.mark.slow
@needs_proc
def test_ctrl_c_leaves_whole_files_only_and_no_process(tmp_path, uninterrupted):
    with in_the_middle(tmp_path) as process:
        workers = children_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, stderr = process.communicate(timeout=120)
    assert process.returncode != 0
    assert stderr.count("Traceback") == 1
    assert stderr.rstrip().endswith("KeyboardInterrupt")
    wait_until(lambda: not any(is_running(worker) for worker in workers), seconds=10)
    left = content(tmp_path)
    assert sorted(left) == ["contrast.npy", "labels.npy", "manifest.json"]
    assert left["contrast.npy"] == uninterrupted["contrast.npy"]


def test_two_workers_give_the_results_of_one_in_order_and_few_wait_in_memory(images):
    taken = 0

    def pieces(count):
        nonlocal taken
        for taken in range(1, count + 1):
            yield images[:2], generation.Step("fog", 1, taken), 0

    here = list(generation._run_in_order(generation._corrupt_chunk, pieces(20), workers=1))
    in_two_processes = generation._run_in_order(generation._corrupt_chunk, pieces(20), workers=2)
    for collected, (expected, result) in enumerate(zip(here, in_two_processes, strict=True)):
        np.testing.assert_array_equal(result, expected)
        assert taken <= collected + 5


# Files


def test_an_array_written_in_parts_is_numpys_file(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (7, 4, 3), dtype=np.uint8)
    digest = write_array(tmp_path / "parts.npy", array.shape, (array[:3], array[3:6], array[6:]))
    np.save(tmp_path / "whole.npy", array)
    assert (tmp_path / "parts.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert digest == file_digest(tmp_path / "parts.npy")
    assert digest == hashlib.sha256((tmp_path / "whole.npy").read_bytes()).hexdigest()
