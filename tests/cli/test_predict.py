"""`ddu predict` as a user meets it."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.small_networks import CLASSES, draw_images, make_detector, write_module

pytestmark = pytest.mark.filterwarnings("ignore::ddu.errors.BlindSpotWarning")  # of a network that nobody trained


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "detector"
    make_detector().save(folder)
    return folder


@pytest.fixture
def predict(command, saved, tmp_path, monkeypatch):
    """`ddu predict` with a network and its detector, in a folder with three images, noise and a file that is none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.delitem(sys.modules, "user_models", raising=False)
    write_module(tmp_path)
    Path("in").mkdir()
    for index, image in enumerate(draw_images(3, seed=7)[0]):
        Image.fromarray(image.numpy()).save(f"in/{index}.png")
    noise = np.random.default_rng(0).integers(0, 2, (12, 12), dtype=np.uint8) * 255
    Image.fromarray(noise).save("in/noise.png")
    Path("in/torn.png").write_text("torn")

    def run(*arguments: str) -> tuple[int, str, str]:
        return command("predict", "user_models:with_preprocessing", *arguments, "--detector", str(saved))

    return run


def test_a_table_on_the_screen_has_a_row_for_each_input(predict):
    code, out, _ = predict("in")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith(" in/")}
    assert list(rows) == ["in/0.png", "in/1.png", "in/2.png", "in/noise.png", "in/torn.png"]
    assert "left" in rows["in/0.png"]
    assert "out_of_distribution" in rows["in/noise.png"]
    assert "invalid" in rows["in/torn.png"]
    assert "in/torn.png: cannot be read as an image: it has no known image format." in out.splitlines()
    assert "5 inputs: " in out
    assert "1 out_of_distribution, 1 invalid." in out


def test_a_narrow_screen_shows_whole_paths_and_verdicts_and_fewer_columns(predict, monkeypatch):
    _, wide, _ = predict("in/noise.png")
    monkeypatch.setenv("COLUMNS", "80")
    _, narrow, _ = predict("in/noise.png")
    assert "confidence" in wide
    assert "Too narrow a screen for" not in wide
    header, note = (line for line in narrow.splitlines() if "path" in line or "narrow" in line)
    assert "confidence" not in header
    assert note.strip() == "Too narrow a screen for confidence, candidates: --output has all columns."
    (row,) = (line for line in narrow.splitlines() if line.strip().startswith("in/noise.png"))
    assert row.split()[-1] == "out_of_distribution"


def test_a_reason_that_many_inputs_share_is_said_once_and_below_the_table(predict, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    images = np.full((4, 12, 12), 7, np.float32)
    images[2] = np.nan
    np.save("floats.npy", images)
    _, out, _ = predict("floats.npy")
    *_, scale, finite, summary = out.splitlines()
    assert scale.startswith("floats.npy[0] and 2 more: Floats must be in [0, 1]. Got 7 to 7 instead: ")
    assert finite == "floats.npy[2]: Pixels must be finite, and some are NaN or infinite."
    assert summary == "4 inputs: 4 invalid."
    (row,) = (line for line in out.splitlines() if line.strip().startswith("floats.npy[1]"))
    assert row.split() == ["floats.npy[1]", "invalid"]
    np.save("others.npy", np.arange(2, 9, dtype=np.float32)[:, None, None] + images[0])
    *_, fifth, more, _ = predict("others.npy")[1].splitlines()
    assert fifth.startswith("others.npy[4]: ")
    assert more == "... and 2 other reasons: write all of them with --output."


def test_long_results_are_cut_on_the_screen_and_counted(predict):
    np.save("many.npy", draw_images(130, seed=8)[0].numpy())
    code, out, _ = predict("many.npy")
    assert code == 0
    assert "many.npy[99]" in out
    assert "many.npy[100]" not in out
    assert "... and 30 more: write all of them with --output." in out
    assert "130 inputs: " in out


def test_a_file_has_the_probabilities_that_were_asked_for(predict):
    code, out, _ = predict("in", "--output", "rows.jsonl", "--probabilities")
    assert code == 0
    assert "rows.jsonl has a row for each, with the reason of those that are invalid." in out
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    assert list(rows[0]["probs"]) == [*CLASSES]
    assert sum(rows[0]["probs"].values()) == pytest.approx(1)
    assert predict("in", "--output", "plain.jsonl")[0] == 0
    assert "probs" not in json.loads(Path("plain.jsonl").read_text().splitlines()[0])


@pytest.mark.parametrize(
    ("verdicts", "inputs", "expected"),
    [
        (["out_of_distribution"], ["in"], 3),
        (["out_of_distribution"], ["in/0.png", "in/torn.png"], 0),
        (["invalid"], ["in/0.png", "in/torn.png"], 3),
        (["ambiguous", "invalid"], ["in/0.png", "in/torn.png"], 3),
        (["invalid"], ["in/0.png", "in/1.png", "in/noise.png"], 0),
    ],
)
@pytest.mark.parametrize("output", [[], ["--output", "rows.csv"]])
def test_the_exit_status_gates_on_verdicts(predict, verdicts, inputs, expected, output):
    code, _, err = predict(*inputs, *output, "--fail-on", *verdicts)
    assert code == expected
    assert ("--fail-on: 1 " in err) == (expected == 3)
    assert not output or Path("rows.csv").exists()


def test_inputs_may_follow_the_verdicts_of_a_gate(predict):
    code, out, err = predict("--fail-on", "out_of_distribution", "invalid", "in/0.png", "in/torn.png")
    assert code == 3
    assert "2 inputs: " in out
    assert "--fail-on: 1 invalid." in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--columns", "path", "table.csv"),
            "There is nothing for inputs: --columns takes all words that follow it. Give inputs before --columns, or "
            "write --columns=VALUE.",
        ),
        (("--probabilities",), "Missing argument 'inputs'."),
    ],
)
def test_arguments_that_cannot_be_read_are_named(predict, arguments, message):
    code, _, err = predict(*arguments)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())


def test_another_rate_flags_more(predict):
    np.save("many.npy", draw_images(200, seed=8)[0].numpy())
    flagged = {}
    for rate in ("0.05", "0.5"):
        assert predict("many.npy", "--output", "rows.jsonl", "--false-alarm-rate", rate)[0] == 0
        rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
        flagged[rate] = sum(row["verdict"] == "out_of_distribution" for row in rows) / 200
    assert flagged["0.05"] < 0.15 < 0.35 < flagged["0.5"] < 0.65


def test_files_that_are_no_images_are_told_of(predict):
    Path("in/notes.txt").write_text("")
    code, _, err = predict("in")
    assert code == 0
    assert "Left out 1 file of the folders: no images." in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("in", "--output", "rows.xlsx"), "files that end in .csv, .jsonl, .parquet. Got rows.xlsx instead."),
        (("in", "--fail-on", "ood"), "There is no verdict 'ood' for --fail-on. There are in_distribution, ambiguous, "),
        (("in/4.png",), "There is no file in/4.png: check the working folder."),
        (
            ("4.png", "many.npy", "--output", "rows.csv"),
            "There is none of the files 4.png, many.npy: check the working",
        ),
        (("*.tif",), "No file matches '*.tif': check the working folder, and quotes."),
        (("in", "--false-alarm-rate", "2"), "2"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(predict, arguments, message):
    before = sorted(Path().iterdir())
    code, _, err = predict(*arguments)
    assert code == 1
    assert message in err
    assert len(err.splitlines()) == 1
    assert [path for path in sorted(Path().iterdir()) if path.name != "__pycache__"] == before


def test_a_file_that_does_not_exist_is_a_row_beside_one_that_does(predict):
    code, out, _ = predict("in/4.png", "in/0.png")
    assert code == 0
    assert "2 inputs: " in out
    assert ", 1 invalid." in out


def test_a_pickle_is_refused_with_the_way_out(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (("predict", "model.pt", "a.png"), ("fit", "model.pkl", "--data", "digits", "--output", "d")):
        code, _, err = command(*arguments)
        assert code == 1
        assert "would have to be unpickled, which runs whatever code is in the file." in err
    assert not Path("d").exists()


def test_help_has_examples(command):
    code, out, _ = command("predict", "--help")
    assert code == 0
    assert "ddu predict runs/mnist digit.png" in out


def test_an_engine_needs_its_output_and_a_known_name(predict):
    assert predict("in", "--engine", "ray")[::2] == (
        1,
        "--engine ray writes Parquet files to a folder: name it with --output.\n",
    )
    assert predict("in", "--engine", "rya")[::2] == (1, "There is no engine 'rya'. Did you mean 'ray'?\n")
