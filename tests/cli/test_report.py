"""`ddu report`."""

import pytest

from ddu.runs import RunSpec, train_run
from ddu.training import RECIPES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "moons"
    recipe = RECIPES["two_moons"].with_changes(epochs=1)
    train_run(RunSpec("resffn2_16", "two_moons", recipe, limit=1500), folder)
    return folder


@pytest.mark.filterwarnings("ignore::ddu.errors.CalibrationWarning")
def test_the_command_writes_one_page_and_tells_what_it_does(command, folder, tmp_path):
    code, printed, said = command(
        "report", str(folder), "-o", str(tmp_path / "pages" / "report.html"), "--samples", "2"
    )
    assert code == 0
    assert f"See it in a browser: {tmp_path}/pages/report.html" in printed
    assert "Judge the test set: 2,000 inputs" in said
    page = (tmp_path / "pages" / "report.html").read_text(encoding="utf-8")
    assert "resffn2_16+sn on two_moons" in page
    assert f"<code>ddu report {folder}" in page


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("fitted", "source.json", "a detector of `ddu fit`"),
        ("saved", "detector.safetensors", "a detector alone"),
        ("bundle", "model.onnx", "an exported bundle"),
        ("my_models:make", None, "a network"),
    ],
)
@pytest.mark.parametrize("asked", [("report",), ("evaluate", "--ood", "noise")])
def test_what_is_no_run_is_refused_with_what_it_can_be_asked(command, tmp_path, monkeypatch, asked, name, file, words):
    monkeypatch.chdir(tmp_path)
    if file is not None:
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    code, _, said = command(asked[0], name, *asked[1:])
    assert code == 1
    assert said == (
        f"{name} is {words}, and a run of `ddu train` is needed: it alone knows its test set and how it was trained. "
        f"Ask `ddu doctor` about {name}, with --data.\n"
    )


def test_a_folder_without_a_run_is_an_error_of_one_line(command, tmp_path):
    code, _, said = command("report", str(tmp_path), "-o", str(tmp_path / "report.html"))
    assert code == 1
    assert said.strip() == f"There is no finished run in {tmp_path}: it has no run.json. `ddu train` writes one."
    assert not (tmp_path / "report.html").exists()
