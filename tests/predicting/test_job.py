"""The job: every input is a row, in order, whatever stops it."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ddu.errors import InputError
from ddu.files import locked
from ddu.predicting import Inputs, predict_rows, predict_to_file
from ddu.sources import DetectorSource
from tests.small_networks import PREPROCESSING, draw_images

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained

VALUES = ("confidence", "aleatoric", "epistemic", "p_value")


def judge(source, names, **options):
    found = Inputs.find(names, source.preprocessing)
    return [row for batch in predict_rows(source, found, **options) for row in batch]


def lines(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 1), (3, 2), (64, None)])
def test_rows_are_what_the_source_says_of_each_file(source, photos, batch_size, workers):
    rows = judge(source, ["photos"], batch_size=batch_size, workers=workers, probabilities=True)
    assert [row["path"] for row in rows] == photos
    for row in rows:
        alone = source.predict(row["path"]).to_dict()
        assert row["label"] == alone["label"][0]
        assert (row["verdict"], row["candidates"], row["reason"]) == (alone["verdict"][0], alone["candidates"][0], None)
        for name in VALUES:
            assert row[name] == pytest.approx(alone[name][0], rel=1e-4, abs=1e-4), name
        assert row["probs"] == pytest.approx(alone["probs"][0], rel=1e-4)


def test_a_file_that_cannot_be_read_is_a_row_and_disturbs_no_other(source, photos):
    clean = judge(source, photos, batch_size=4)
    Path("photos/a/0.png").write_text("no image")
    Path("photos/a/2.png").write_bytes(Path(photos[0]).read_bytes()[:-40])
    rows = judge(source, ["photos", "absent.png"], batch_size=4)
    bad = {row["path"]: row for row in rows if row["verdict"] == "invalid"}
    assert list(bad) == ["photos/a/0.png", "photos/a/2.png", "absent.png"]
    assert bad["photos/a/0.png"]["reason"].startswith("cannot be read as an image: ")
    assert "No such file" in bad["absent.png"]["reason"]
    assert [row[name] for row in bad.values() for name in ("label", *VALUES)] == [None] * 15
    others = [row for row in rows if row["path"] not in bad]
    for row, expected in zip(others, clean, strict=True):
        assert row["path"] == expected["path"]
        assert row["epistemic"] == pytest.approx(expected["epistemic"], rel=1e-4, abs=1e-4)


def test_one_bad_row_of_an_array_is_one_bad_row(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = draw_images(5, seed=3)[0].numpy() / np.float32(255)
    expected = source.predict(images).to_dict()
    images[1] = 7.0
    images[3] = np.nan
    np.save("images.npy", images)
    rows = judge(source, ["images.npy"], batch_size=5)
    assert [row["reason"] is not None for row in rows] == [False, True, False, True, False], rows
    assert rows[1]["reason"].startswith("Floats must be in [0, 1]. Got 7 to 7 instead")
    for i in (0, 2, 4):
        assert rows[i]["epistemic"] == pytest.approx(expected["epistemic"][i], rel=1e-4, abs=1e-4)


def test_a_batch_of_nothing_but_bad_files_is_rows_too(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.png").write_text("torn")
    rows = judge(source, ["a.png", "b.png"], batch_size=1)
    assert [row["verdict"] for row in rows] == ["invalid"] * 2


def test_the_next_batch_is_decoded_while_one_is_judged_and_no_more(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", np.zeros((400, 12, 12), np.uint8))
    prepared, most = [], []

    class Watched(DetectorSource):
        def prepare(self, raw):
            prepared.append(len(raw))
            return super().prepare(raw)

        def judge(self, inputs):
            most.append(sum(prepared) - 10 * len(most))
            return super().judge(inputs)

    watched = Watched("watched", source.detector, PREPROCESSING, "", {})
    assert len(judge(watched, ["images.npy"], batch_size=10)) == 400
    assert max(most) <= 20


def test_threads_end_with_the_job_also_where_it_is_left(source, photos):
    before = threading.active_count()
    batches = predict_rows(source, Inputs.find(["photos"], PREPROCESSING), batch_size=2)
    next(batches)
    batches.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("done", [0, 1, 4, 7])
@pytest.mark.parametrize("torn", [b"", b'{"path": "photos/a'])
def test_a_stopped_job_resumes_with_no_row_lost_or_doubled(source, photos, done, torn, monkeypatch):
    inputs = Inputs.find(["photos"], PREPROCESSING)
    whole = predict_to_file(source, inputs, "whole.jsonl", batch_size=2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        stop_after(source, patch, done)
        predict_to_file(source, inputs, "rows.jsonl", batch_size=1)
    assert not Path("rows.jsonl").exists()
    with open("rows.jsonl.partial", "ab") as file:
        file.write(torn)
    judged = count_judged(source, monkeypatch)
    counts = predict_to_file(source, inputs, "rows.jsonl", batch_size=3)
    assert sum(judged) == 7 - done
    assert [row["path"] for row in lines("rows.jsonl")] == photos
    for row, expected in zip(lines("rows.jsonl"), lines("whole.jsonl"), strict=True):
        assert row["epistemic"] == pytest.approx(expected["epistemic"], rel=1e-4, abs=1e-4)
    assert counts == whole
    assert not Path("rows.jsonl.partial").exists()


def stop_after(source, monkeypatch, batches):
    """Ctrl-C in a later batch."""
    real, left = source.detector.predict, [batches]

    def predict(x):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(x)

    if batches == 7:  # when the file is written
        monkeypatch.setattr("ddu.predicting.job.write_rows", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    else:
        monkeypatch.setattr(source.detector, "predict", predict)


def count_judged(source, monkeypatch):
    real, judged = source.detector.predict, list[int]()

    def predict(x):
        judged.append(len(x))
        return real(x)

    monkeypatch.setattr(source.detector, "predict", predict)
    return judged


def test_a_killed_job_whose_first_line_is_torn_begins_anew(source, photos):
    Path("rows.csv.partial").write_bytes(b'{"source"')
    predict_to_file(source, Inputs.find(["photos"], PREPROCESSING), "rows.csv")
    assert len(Path("rows.csv").read_text().splitlines()) == 8


@pytest.mark.parametrize("changed", ["inputs", "probabilities", "source", "false_alarm_rate"])
def test_rows_of_another_job_are_not_mixed_in(source, photos, changed, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        stop_after(source, patch, 2)
        predict_to_file(source, Inputs.find(["photos"], PREPROCESSING), "rows.csv", batch_size=1)
    if changed == "source":
        monkeypatch.setattr(source, "fingerprint", "another")
    if changed == "false_alarm_rate":
        monkeypatch.setattr(source.detector, "calibration", source.detector.calibration)
        source.set_false_alarm_rate(0.1)
    Image.new("L", (12, 12)).save("photos/new.png" if changed == "inputs" else "elsewhere.png")
    before = Path("rows.csv.partial").read_bytes()
    inputs = Inputs.find(["photos"], PREPROCESSING)
    with pytest.raises(InputError) as caught:
        predict_to_file(source, inputs, "rows.csv", probabilities=changed == "probabilities")
    assert str(caught.value) == (
        f"rows.csv.partial has 2 rows of a job with other {changed}: repeat that command to finish it, or delete the "
        "file to begin anew."
    )
    assert Path("rows.csv.partial").read_bytes() == before


def test_a_second_command_on_the_same_file_is_refused(source, photos):
    inputs, busy = Inputs.find(["photos"], PREPROCESSING), r"Another command is writing rows\.csv: wait for it, or"
    with open("rows.csv.partial", "a+b") as file, locked(file), pytest.raises(InputError, match=busy):
        predict_to_file(source, inputs, "rows.csv")
    predict_to_file(source, inputs, "rows.csv")


def test_a_finished_file_is_replaced_by_the_same_command(source, photos):
    for _ in range(2):
        counts = predict_to_file(source, Inputs.find(["photos"], PREPROCESSING), "rows.jsonl")
        assert counts.total() == len(lines("rows.jsonl")) == 7


def test_classes_without_names_have_their_numbers_and_unreadable_ones_come_first(source, photos, monkeypatch):
    monkeypatch.setattr(source, "class_names", None)
    monkeypatch.setattr(source.detector, "class_names", None)
    inputs = Inputs.find(["absent.png", "photos"], PREPROCESSING)
    predict_to_file(source, inputs, "rows.csv", probabilities=True, batch_size=2)
    assert Path("rows.csv").read_text().splitlines()[0].endswith("reason,prob_0,prob_1")


def test_a_name_of_bytes_that_are_no_text_is_written(source, photos):
    odd = "photos/\udcff.png"
    Path(odd).write_bytes(Path(photos[0]).read_bytes())
    for output in ("rows.csv", "rows.jsonl", "rows.parquet"):
        predict_to_file(source, Inputs.find([odd], PREPROCESSING), output)
    assert lines("rows.jsonl")[0]["path"] == "photos/\\udcff.png"
    assert lines("rows.jsonl")[0]["verdict"] != "invalid"


KILLED = """
import sys, time
import torch
from ddu.predicting import Inputs, predict_to_file
from ddu.sources import open_source

source = open_source("tests.small_networks:with_preprocessing", detector=sys.argv[1])
judge = source.judge
def slowly(inputs):
    time.sleep(0.02)
    return judge(inputs)
source.judge = slowly
print(predict_to_file(source, Inputs.find([sys.argv[2]], source.preprocessing), sys.argv[3], batch_size=3))
"""


@pytest.mark.slow
def test_a_job_that_is_killed_again_and_again_has_every_row_once(source, tmp_path):
    images = draw_images(300, seed=4)[0].numpy()
    np.save(tmp_path / "images.npy", images)
    source.detector.save(tmp_path / "detector")
    partial = tmp_path / "rows.jsonl.partial"
    arguments = [str(tmp_path / name) for name in ("detector", "images.npy", "rows.jsonl")]
    kills = 0
    for _ in range(50):
        process = subprocess.Popen([sys.executable, "-c", KILLED, *arguments], stdout=subprocess.DEVNULL)
        before = partial.stat().st_size if partial.exists() else 0
        while process.poll() is None and kills < 4:
            if partial.exists() and partial.stat().st_size > before + 3000:
                process.kill()
                process.wait()
                kills += 1
                break
            time.sleep(0.005)
        if process.wait() == 0:
            break
    assert kills == 4
    rows = lines(tmp_path / "rows.jsonl")
    assert [row["path"] for row in rows] == [f"{tmp_path}/images.npy[{i}]" for i in range(300)]
    expected = source.predict(images)
    found = torch.tensor([row["epistemic"] for row in rows], dtype=torch.float64)
    torch.testing.assert_close(found, expected.epistemic.double(), rtol=1e-4, atol=1e-4)
    assert not partial.exists()
