"""The job on a Ray cluster of two workers, with real processes."""

import copy
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ddu.errors import InputError
from ddu.fitting import FitSpec, fit_detector
from ddu.predicting import Inputs, predict_rows, predict_to_folder
from ddu.predicting.inputs import ArrayFile, ImageFiles
from ddu.sources import open_source
from tests.small_networks import CLASSES, PREPROCESSING, draw_images, write_module

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained


@pytest.mark.parametrize("shard_rows", [1, 3, 7, 100])
def test_shards_have_every_input_once_in_order(source, photos, shard_rows):
    np.save("new.npy", draw_images(10, seed=1)[0].numpy())
    np.save("empty.npy", np.zeros((0, 12, 12), np.uint8))
    np.savez("new.npz", x=draw_images(5, seed=2)[0].numpy())
    Path("bad.npy").write_text("no array")
    Path("paths.csv").write_text("path\nphotos/a/1.png\n")
    names = ["photos", "new.npy", "new.npz", "bad.npy", "empty.npy", "paths.csv"]
    inputs = Inputs.find(names, PREPROCESSING)
    expected = [name for chunk in inputs.chunks(64) for name in chunk.names]
    shards = inputs.shards(shard_rows)
    assert [name for shard in shards for chunk in shard.chunks(2) for name in chunk.names] == expected
    for shard in shards:
        rows = sum(len(chunk.names) for chunk in shard.chunks(64))
        assert rows <= shard_rows or not isinstance(shard.parts[0], ImageFiles | ArrayFile) or "npz" in str(shard)
    (first, *_) = shards
    assert isinstance(first.parts[0], ImageFiles)


def test_probabilities_without_names_of_classes_are_refused(source, photos):
    nameless = copy.copy(source)
    nameless.class_names = None
    with pytest.raises(InputError, match="the classes have no names"):
        predict_to_folder(nameless, Inputs.find(["photos"], PREPROCESSING), "out", probabilities=True)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with a detector, 20 images of which 2 are broken, an array and an archive."""
    monkeypatch.chdir(tmp_path)
    write_module(tmp_path)
    with Path("user_models.py").open("a") as module:
        module.write(KILLED_ONCE)
    monkeypatch.delitem(sys.modules, "user_models", raising=False)
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    for name, seed in (("train", 1), ("held_out", 2)):
        images, labels = draw_images(400, seed=seed)
        np.savez(f"{name}.npz", x=images.numpy(), y=labels.numpy(), classes=np.array(CLASSES))
    Path("photos").mkdir()
    for index, image in enumerate(draw_images(20, seed=3)[0]):
        Image.fromarray(image.numpy()).save(f"photos/{index:02}.png")
    Path("photos/03.png").write_text("no image")
    Path("photos/17.png").write_bytes(b"")
    np.save("more.npy", draw_images(25, seed=4)[0].numpy())
    np.savez("shard.npz", x=draw_images(9, seed=5)[0].numpy())
    spec = FitSpec("user_models:with_preprocessing", "npz:train.npz", "npz:held_out.npz", false_alarm_rate=0.05)
    fit_detector(spec, "detector")


KILLED_ONCE = """

def killed_once():
    import os, signal
    from pathlib import Path
    network, preprocessing = with_preprocessing()

    def die(module, inputs):
        if Path("broken").exists():
            raise RuntimeError("no weights")
        try:
            os.close(os.open("killed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        Path("victim").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)

    if Path("armed").exists():
        network.register_forward_pre_hook(die)
    return network, preprocessing
"""

INPUTS = ("photos", "more.npy", "shard.npz")


@pytest.mark.slow
def test_a_killed_worker_and_a_resumed_job_lose_and_double_no_row(workplace):
    import pyarrow.parquet

    source = open_source("user_models:killed_once", detector="detector")
    found = Inputs.find(INPUTS, source.preprocessing)
    expected = [row for rows in predict_rows(source, found) for row in rows]
    Path("armed").touch()
    script = f"""
        import os, ray
        from ddu.predicting import Inputs, predict_to_folder
        from ddu.sources import open_source
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        source = open_source("user_models:killed_once", detector="detector")
        found = Inputs.find({INPUTS!r}, source.preprocessing)
        print(predict_to_folder(source, found, "out", detector="detector", shard_rows=10, progress=False).total())
        # Resumed: only what is missing is judged again
        os.remove("out/part-00001.parquet")
        before = {{name: os.stat(f"out/{{name}}").st_mtime_ns for name in os.listdir("out")}}
        predict_to_folder(source, found, "out", detector="detector", shard_rows=10, progress=False)
        after = {{name: os.stat(f"out/{{name}}").st_mtime_ns for name in os.listdir("out")}}
        changed = {{name for name in after if name.endswith("parquet") and after[name] != before.get(name)}}
        assert changed == {{"part-00001.parquet"}}, changed
        # What goes wrong is said, and the other shards are kept
        open("broken", "w").close()
        os.remove("out/part-00001.parquet")
        try:
            predict_to_folder(source, found, "out", detector="detector", shard_rows=10, progress=False)
        except Exception as error:
            print(error)
        os.remove("broken")
        predict_to_folder(source, found, "out", detector="detector", shard_rows=10, progress=False)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path("victim").exists(), "a worker was killed"
    assert "54" in done.stdout.splitlines()
    failure = "Shard 1 of 6 failed: RuntimeError: no weights Finished shards are kept: the same command resumes."
    assert failure in done.stdout.splitlines()
    assert not list(Path("out").glob(".part*")), "nothing is left of the tries"
    files = sorted(path.name for path in Path("out").glob("*.parquet"))
    assert files == [f"part-{number:05}.parquet" for number in range(6)]
    table = pyarrow.parquet.read_table("out").to_pylist()
    assert [row["path"] for row in table] == [row["path"] for row in expected]
    assert [row["path"] for row in table if row["verdict"] == "invalid"] == ["photos/03.png", "photos/17.png"]
    for row, one in zip(table, expected, strict=True):
        assert (row["label"], row["verdict"], row["reason"]) == (one["label"], one["verdict"], one["reason"])
        if one["epistemic"] is None:
            assert row["epistemic"] is None
        else:
            assert row["epistemic"] == pytest.approx(one["epistemic"], rel=1e-4, abs=1e-4)
    with pytest.raises(InputError, match="shard_rows=10"):
        predict_to_folder(source, found, "out", detector="detector", shard_rows=9)
